"""Orgs of very different size, and the ids that their people go by as they are converted, merged and forgotten. Pure.

An id is a number within its org: even for a lead, odd for the contact that the lead of the number before becomes. Orgs
number their leads alike, so the same id means somebody else in another org. Memory: 8 bytes a person.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lake_assets.demo.engagement_simulator.model import Simulation

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def org_name(simulation: Simulation, org: int) -> str:
    """The org_id of an org: unlike any of another seed."""
    return f"org-{simulation.seed}-{org:04}"


def org_names(simulation: Simulation) -> tuple[str, ...]:
    """The org_ids of a simulation, greatest org first."""
    return tuple(org_name(simulation, org) for org in range(simulation.orgs))


def id_name(number: int) -> str:
    """The who_id of an id."""
    return f"{'contact' if number % 2 else 'lead'}-{number // 2}"


class People:
    """The people of all orgs as they are called now. A person is a number; those of an org follow each other."""

    def __init__(self, simulation: Simulation) -> None:
        weights: Floats = 1 / np.arange(1, simulation.orgs + 1)
        self._weights: Floats = np.cumsum(weights / weights.sum())
        self._counts: Ints = np.maximum(2, simulation.people * weights / weights.sum()).astype(np.int64)
        self._first: Ints = np.cumsum(self._counts) - self._counts
        self._ids: Ints = 2 * (np.arange(self._counts.sum()) - np.repeat(self._first, self._counts))
        self._next: Ints = 2 * self._counts

    def draw_orgs(self, rng: np.random.Generator, count: int) -> Ints:
        """So many orgs, by their sizes."""
        found: Ints = np.searchsorted(self._weights, rng.random(count), side="right")
        return np.minimum(found, len(self._weights) - 1)

    def draw(self, rng: np.random.Generator, orgs: Ints) -> Ints:
        """A person of each of these orgs."""
        return self._first[orgs] + (rng.random(len(orgs)) * self._counts[orgs]).astype(np.int64)

    def ids(self, persons: Ints) -> Ints:
        """What these people are called now."""
        return self._ids[persons]

    def someone(self, rng: np.random.Generator, org: int) -> int:
        """An id that somebody of an org has now."""
        return int(self.ids(self.draw(rng, np.array([org])))[0])

    def new_lead(self, org: int) -> int:
        """An id that nobody of the org ever had."""
        self._next[org] += 2
        return int(self._next[org]) - 2

    def rename(self, org: int, old: int, new: int) -> None:
        """Everybody in an org who has the id `old` has `new` from now on."""
        people = self._people(org)
        people[people == old] = new

    def forget(self, org: int, old: int) -> None:
        """Whoever had the id `old` comes back as somebody new."""
        self.rename(org, old, self.new_lead(org))

    def _people(self, org: int) -> Any:
        return self._ids[self._first[org] : self._first[org] + self._counts[org]]
