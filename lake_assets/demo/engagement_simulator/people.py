"""Organizations of very different size, and the current ids of their people. Pure.

An id is a number within its org. A lead has an even number. When a lead is converted, the contact has the next number.
All orgs number their leads from 0, so the same id means different people in different orgs. Memory: 8 bytes per person.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lake_assets.demo.engagement_simulator.model import Simulation

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Random = np.random.Generator

MIN_PEOPLE = 2
IDS_PER_PERSON = 2


def org_name(simulation: Simulation, org: int) -> str:
    """Return the org_id of an org. Simulations with different seeds have different org_ids."""
    return f"org-{simulation.seed}-{org:04}"


def org_names(simulation: Simulation) -> tuple[str, ...]:
    """Return the org_ids of a simulation, largest org first."""
    return tuple(org_name(simulation, org) for org in range(simulation.orgs))


def is_contact(number: int) -> bool:
    """Return whether an id belongs to a contact; otherwise it belongs to a lead."""
    return number % IDS_PER_PERSON == 1


def id_name(number: int) -> str:
    """Return the who_id of an id."""
    kind = "contact" if is_contact(number) else "lead"
    return f"{kind}-{number // IDS_PER_PERSON}"


class People:
    """The people of all orgs with their current ids. A person is a number; the people of an org are consecutive."""

    def __init__(self, simulation: Simulation) -> None:
        weights: Floats = 1 / np.arange(1, simulation.orgs + 1)
        shares: Floats = weights / weights.sum()
        counts = (simulation.people * weights / weights.sum()).astype(np.int64)
        self._cumulative_shares: Floats = np.cumsum(shares)
        self._counts: Ints = np.maximum(MIN_PEOPLE, counts)
        self._first: Ints = np.cumsum(self._counts) - self._counts
        persons = np.arange(self._counts.sum())
        first_of_own_org = np.repeat(self._first, self._counts)
        self._ids: Ints = IDS_PER_PERSON * (persons - first_of_own_org)
        self._next_lead: Ints = IDS_PER_PERSON * self._counts

    def draw_orgs(self, rng: Random, count: int) -> Ints:
        """Return random orgs; large orgs are drawn more often."""
        found: Ints = np.searchsorted(self._cumulative_shares, rng.random(count), side="right")
        last = len(self._cumulative_shares) - 1
        return np.minimum(found, last)

    def draw(self, rng: Random, orgs: Ints) -> Ints:
        """Return a random person of each of these orgs."""
        places = rng.random(len(orgs)) * self._counts[orgs]
        return self._first[orgs] + places.astype(np.int64)

    def ids(self, persons: Ints) -> Ints:
        """Return the current ids of people."""
        return self._ids[persons]

    def someone(self, rng: Random, org: int) -> int:
        """Return the current id of a random person of an org."""
        person = self.draw(rng, np.array([org]))
        return int(self.ids(person)[0])

    def new_lead(self, org: int) -> int:
        """Return an id that nobody of the org has had so far, and reserve it."""
        lead = int(self._next_lead[org])
        self._next_lead[org] += IDS_PER_PERSON
        return lead

    def rename(self, org: int, old: int, new: int) -> None:
        """Give the id `new` to everybody of an org who has the id `old`."""
        ids = self._ids_of(org)
        ids[ids == old] = new

    def forget(self, org: int, old: int) -> None:
        """Give a new id to everybody of an org who has the id `old`."""
        self.rename(org, old, self.new_lead(org))

    def _ids_of(self, org: int) -> Any:
        first = self._first[org]
        return self._ids[first : first + self._counts[org]]
