"""Requests to convert, merge and delete ids, to erase people, and to limit the age of engagements. Pure.

Chains of ids arise by themselves: a lead becomes a contact, the contact is merged into another one, and that one is
merged again. All requests of a step are executed in its last millisecond. Requests of an org are sent in the order in
which they take effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lake_assets.demo.engagement_simulator.activity import Activity, Rows
from lake_assets.demo.engagement_simulator.model import Simulation
from lake_assets.demo.engagement_simulator.people import People, Random, id_name, is_contact
from lake_assets.engagement.requests.identity import Op

REQUESTS, RETENTION, RECORDS = 2, 3, 5
"""Numbers of these uses of random numbers, as in `activity.py`."""

TTL_DAYS = (30, 90, 365)
POLICY_SHARE = 0.5
NEW_RECORD_SHARE = 0.5
MAX_STEPS_LATE = 8
"""An engagement that follows its request becomes known at most this many steps later."""


@dataclass(frozen=True)
class Request:
    """A request of an org.

    Attributes:
        org: The org.
        executed_at: Milliseconds since 1970-01-01 UTC.
        values: Fields of the message, without the org's id, the moment and the record.
        new: Id that the rows get; None if they are deleted.
        record: The engagement that the request carries; None if it carries none.
    """

    org: int
    executed_at: int
    values: Mapping[str, Any]
    new: int | None = None
    record: Rows | None = None


class Requests:
    """The requests, step by step. They change the ids of people."""

    def __init__(self, simulation: Simulation, people: People, activity: Activity) -> None:
        self._simulation = simulation
        self._people = people
        self._activity = activity
        self._to_repeat: list[Request] = []
        self._count = 0

    @property
    def over(self) -> bool:
        """Whether no request is left to be sent again."""
        return not self._to_repeat

    def mutations(self, step: int) -> list[Request]:
        """Return the requests of the mutation topic in a step: repeated ones first, then new ones."""
        rng = self._random(REQUESTS, step)
        count = rng.binomial(self._simulation.touches_of(step), self._simulation.requests)
        made: list[Request] = []
        for org in self._people.draw_orgs(rng, count).tolist():
            if rng.random() < self._simulation.early:
                made += self._early(rng, org, step)
            else:
                made += self._known(rng, org, step)
        made = self._with_records(made, step)
        repeated = self._to_repeat
        self._to_repeat = [request for request in made if rng.random() < self._simulation.repeated]
        return repeated + made

    def retention(self, step: int) -> list[Request]:
        """Return the requests of the retention topic in a step: policies of orgs and erasures of people, one to one."""
        rng = self._random(RETENTION, step)
        count = rng.binomial(self._simulation.touches_of(step), self._simulation.retention)
        found = []
        for org in self._people.draw_orgs(rng, count).tolist():
            if rng.random() < POLICY_SHARE:
                found.append(self._policy(rng, org, step))
            else:
                found.append(self._erasure(rng, org, step))
        return found

    def _random(self, use: int, step: int) -> Random:
        return np.random.default_rng((self._simulation.seed, use, step))

    def _with_records(self, requests: list[Request], step: int) -> list[Request]:
        """Add the record of a call to some requests, under the id that their rows get."""
        rng = self._random(RECORDS, step)
        engaged = self._simulation.step_start(step)
        found = []
        for request in requests:
            if request.new is not None and rng.random() < self._simulation.records:
                anew = rng.random() < NEW_RECORD_SHARE
                record = self._activity.record(request.org, request.new, engaged, anew=anew)
                request = replace(request, record=record)
            found.append(request)
        return found

    def _known(self, rng: Random, org: int, step: int) -> Iterator[Request]:
        """Yield the requests about an id that somebody has now."""
        old = self._people.someone(rng, org)
        if rng.random() < self._simulation.deletions:
            self._people.forget(org, old)
            yield self._mutation(org, step, "delete", old)
        elif is_contact(old):
            new = self._people.someone(rng, org)
            self._people.rename(org, old, new)
            yield self._mutation(org, step, "merge", old, new)
        else:
            contact = old + 1
            yield self._mutation(org, step, "convert", old, contact)
            if rng.random() < self._simulation.cycles:
                yield self._mutation(org, step, "merge", contact, old)
            else:
                self._people.rename(org, old, contact)

    def _early(self, rng: Random, org: int, step: int) -> Iterator[Request]:
        """Yield a conversion of an id without any known engagement. The engagement follows later, or never."""
        old = self._people.new_lead(org)
        if rng.random() >= self._simulation.missing:
            engaged = self._simulation.step_start(step)
            steps_late = int(rng.integers(1, MAX_STEPS_LATE + 1))
            sent = engaged + steps_late * self._simulation.step_ms
            self._activity.deliver_late(org, old, engaged, sent)
        yield self._mutation(org, step, "convert", old, old + 1)

    def _policy(self, rng: Random, org: int, step: int) -> Request:
        return self._request(org, step, op="ttl", ttl_days=int(rng.choice(TTL_DAYS)))

    def _erasure(self, rng: Random, org: int, step: int) -> Request:
        who = self._people.someone(rng, org)
        self._people.forget(org, who)
        return self._request(org, step, op="gdpr", who_id=id_name(who))

    def _mutation(self, org: int, step: int, op: Op, old: int, new: int | None = None) -> Request:
        named = {"op": op, "old_id": id_name(old)}
        if new is not None:
            named["new_id"] = id_name(new)
        return replace(self._request(org, step, **named), new=new)

    def _request(self, org: int, step: int, **values: Any) -> Request:
        self._count += 1
        request_id = f"r-{self._simulation.seed}-{self._count}"
        end_of_step = self._simulation.step_start(step + 1) - 1
        return Request(org, end_of_step, {"request_id": request_id, **values})
