"""Requests to convert, merge and delete ids, to erase people, and to keep what is young only. Pure.

Chains come by themselves: a lead becomes a contact, which is merged into another one, which is merged again. All
requests of a step are carried out at its last millisecond; those of an org are sent in the order in which they count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lake_assets.demo.engagement_simulator.activity import Activity, Rows
from lake_assets.demo.engagement_simulator.model import Simulation
from lake_assets.demo.engagement_simulator.people import People, id_name
from lake_assets.engagement.requests.identity import Op

REQUESTS, RETENTION, RECORDS = 2, 3, 5
TTL_DAYS = (30, 90, 365)
LATEST_STEPS = 8
"""An engagement that a request precedes becomes known so many steps later at most."""


@dataclass(frozen=True)
class Request:
    """A request of an org. values: of its message, but for the org's id, the moment and the record.

    new: the id that rows get; None if they get none. record: the one engagement that it carries, if any.
    """

    org: int
    executed_at: int
    values: Mapping[str, Any]
    new: int | None = None
    record: Rows | None = None


class Requests:
    """What is asked for, step by step. It changes what people are called."""

    def __init__(self, simulation: Simulation, people: People, activity: Activity) -> None:
        self._simulation, self._people, self._activity = simulation, people, activity
        self._again: list[Request] = []
        self._count = 0

    @property
    def over(self) -> bool:
        """Nothing is to be sent again."""
        return not self._again

    def mutations(self, step: int) -> list[Request]:
        """The requests of the mutation topic in a step: repeated ones, then its own."""
        rng = np.random.default_rng((self._simulation.seed, REQUESTS, step))
        count = rng.binomial(self._simulation.touches_of(step), self._simulation.requests)
        repeated = self._again
        made: list[Request] = []
        for org in self._people.draw_orgs(rng, count).tolist():
            ask = self._early if rng.random() < self._simulation.early else self._known
            made += ask(rng, org, step)
        made = self._with_records(made, step)
        self._again = [request for request in made if rng.random() < self._simulation.repeated]
        return repeated + made

    def retention(self, step: int) -> list[Request]:
        """The requests of the retention topic in a step: as many of an org's policy as of a person."""
        rng = np.random.default_rng((self._simulation.seed, RETENTION, step))
        count = rng.binomial(self._simulation.touches_of(step), self._simulation.retention)
        return [self._policy(rng, org, step) for org in self._people.draw_orgs(rng, count).tolist()]

    def _with_records(self, made: list[Request], step: int) -> list[Request]:
        """Some of them with the record of a call, to the id that their rows get."""
        rng = np.random.default_rng((self._simulation.seed, RECORDS, step))
        start, found = self._simulation.step_start(step), []
        for request in made:
            if request.new is not None and rng.random() < self._simulation.records:
                anew = rng.random() < 0.5
                record = self._activity.record(request.org, request.new, engaged=start, anew=anew)
                request = replace(request, record=record)
            found.append(request)
        return found

    def _known(self, rng: np.random.Generator, org: int, step: int) -> Iterator[Request]:
        """What is asked about an id that somebody has."""
        old = self._people.someone(rng, org)
        if rng.random() < self._simulation.deletions:
            self._people.forget(org, old)
            yield self._mutation(org, step, "delete", old)
        elif old % 2:
            new = self._people.someone(rng, org)
            self._people.rename(org, old, new)
            yield self._mutation(org, step, "merge", old, new)
        else:
            yield self._mutation(org, step, "convert", old, old + 1)
            if rng.random() < self._simulation.cycles:
                yield self._mutation(org, step, "merge", old + 1, old)
            else:
                self._people.rename(org, old, old + 1)

    def _early(self, rng: np.random.Generator, org: int, step: int) -> Iterator[Request]:
        """A conversion of somebody of whom nothing is known yet; the engagement follows, or never does."""
        old, start = self._people.new_lead(org), self._simulation.step_start(step)
        if rng.random() >= self._simulation.missing:
            sent = start + int(rng.integers(1, LATEST_STEPS + 1)) * self._simulation.step_ms
            self._activity.deliver_late(org, old, engaged=start, sent=sent)
        yield self._mutation(org, step, "convert", old, old + 1)

    def _policy(self, rng: np.random.Generator, org: int, step: int) -> Request:
        if rng.random() < 0.5:
            return self._request(org, step, op="ttl", ttl_days=int(rng.choice(TTL_DAYS)))
        who = self._people.someone(rng, org)
        self._people.forget(org, who)
        return self._request(org, step, op="gdpr", who_id=id_name(who))

    def _mutation(self, org: int, step: int, op: Op, old: int, new: int | None = None) -> Request:
        named = {} if new is None else {"new_id": id_name(new)}
        return replace(self._request(org, step, op=op, old_id=id_name(old), **named), new=new)

    def _request(self, org: int, step: int, **values: Any) -> Request:
        self._count += 1
        request_id = f"r-{self._simulation.seed}-{self._count}"
        return Request(org, self._simulation.step_start(step + 1) - 1, {"request_id": request_id, **values})
