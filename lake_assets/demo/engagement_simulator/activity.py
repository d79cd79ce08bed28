"""Emails, what comes of them, and calls: when they happen, and when they become known. Pure.

An email is sent; later it bounces, or is opened, and then maybe replied to: each is an engagement of its own. Memory:
some hundred bytes for each engagement of a step, and for each that is still to come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lake_assets.demo.engagement_simulator.model import DAY_MS, Simulation
from lake_assets.demo.engagement_simulator.people import Ints, People

ACTIVITY = 1
"""Each stream of chance is seeded by (seed, a number for its use, ...)."""

SENT, OPENED, REPLIED, BOUNCED, CALL = range(5)
KINDS = ("sent", "opened", "replied", "bounced", "call")
OUTCOMES = (None, "meaningful contact", "not interested", "left voicemail")
OUTCOME_SHARES = (0.2, 0.3, 0.5)
MINUTE_MS = 60_000
LONGEST_MS = 12 * 60 * MINUTE_MS
OLDEST_DAYS = 400
TEMPLATES, CADENCES, REPS_OF_AN_ORG = 40, 12, 8

Rows = npt.NDArray[np.void]
ENGAGEMENT = np.dtype(
    [
        *((name, np.int64) for name in ("number", "org", "person", "who", "engaged", "sent")),
        *((name, np.int16) for name in ("kind", "outcome", "template", "cadence", "rep")),
    ]
)
"""person: -1 if it is nobody's. who: the id, known when it happens. engaged, sent: milliseconds since 1970."""


class Transit:
    """Engagements on their way to the step that they belong in."""

    def __init__(self) -> None:
        self._coming: dict[int, list[Rows]] = {}

    @property
    def empty(self) -> bool:
        return not self._coming

    def put(self, rows: Rows, steps: Ints) -> None:
        for step in np.unique(steps):
            self._coming.setdefault(int(step), []).append(rows[steps == step])

    def take(self, step: int) -> Rows:
        return np.concatenate([np.empty(0, ENGAGEMENT), *self._coming.pop(step, [])])


class Activity:
    """What reps and the people that they touch do, step by step. people: as they are called at each."""

    def __init__(self, simulation: Simulation, people: People) -> None:
        self._simulation, self._people = simulation, people
        self._happening, self._delivery = Transit(), Transit()
        self._count = 0
        self._last: dict[int, int] = {}

    @property
    def over(self) -> bool:
        """Nothing is on its way any more."""
        return self._happening.empty and self._delivery.empty

    def live(self, step: int) -> Rows:
        """The engagements that become known in a step, in the order in which they are sent."""
        rng = np.random.default_rng((self._simulation.seed, ACTIVITY, step))
        touches = self._touches(rng, step)
        for rows in (touches, *self._follow_ups(rng, touches[touches["kind"] == SENT])):
            self._happening.put(rows, self._step_of(rows["engaged"]))
        happened = self._happening.take(step)
        happened["who"] = self._people.ids(happened["person"])
        self._deliver(rng, happened)
        known = self._delivery.take(step)
        self._last.update(zip(known["org"].tolist(), known["number"].tolist(), strict=True))
        return known[np.lexsort((known["number"], known["sent"]))]

    def deliver_late(self, org: int, who: int, engaged: int, sent: int) -> None:
        """One call to somebody of whom nothing is known yet, which becomes known at `sent`, in a later step."""
        row = _call(org, who, engaged, sent)
        self._number(row)
        self._delivery.put(row, self._step_of(row["sent"]))

    def record(self, org: int, who: int, engaged: int, *, anew: bool) -> Rows:
        """One call that a request carries: a new one, or the correction of an engagement of the org that is known."""
        row = _call(org, who, engaged, engaged)
        if anew or org not in self._last:
            self._number(row)
        else:
            row["number"] = self._last[org]
        return row

    def _touches(self, rng: np.random.Generator, step: int) -> Rows:
        count = self._simulation.touches_of(step)
        rows = np.zeros(count, ENGAGEMENT)
        rows["org"] = self._people.draw_orgs(rng, count)
        rows["person"] = self._people.draw(rng, rows["org"])
        rows["engaged"] = self._simulation.step_start(step) + np.sort(rng.integers(0, self._simulation.step_ms, count))
        calls = rng.random(count) < self._simulation.calls
        rows["kind"] = np.where(calls, CALL, SENT)
        rows["outcome"] = np.where(calls, rng.choice(3, count, p=OUTCOME_SHARES) + 1, 0)
        for name, choices in (("template", TEMPLATES), ("cadence", CADENCES), ("rep", REPS_OF_AN_ORG)):
            rows[name] = rng.integers(0, choices, count)
        return rows

    def _follow_ups(self, rng: np.random.Generator, emails: Rows) -> tuple[Rows, ...]:
        """What comes of emails: bounces, openings and replies."""
        luck, simulation = rng.random(len(emails)), self._simulation
        bounced = _later(rng, emails[luck < simulation.bounced], BOUNCED, minutes=1)
        delivered = emails[luck >= simulation.bounced]
        opened = _later(rng, delivered[rng.random(len(delivered)) < simulation.opened], OPENED, minutes=40)
        replied = _later(rng, opened[rng.random(len(opened)) < simulation.replied], REPLIED, minutes=20)
        return bounced, opened, replied

    def _deliver(self, rng: np.random.Generator, happened: Rows) -> None:
        """Number what happened and send it: at once, or late; some of it is long past."""
        self._number(happened)
        late = rng.random(len(happened)) < self._simulation.late
        happened["sent"] = happened["engaged"] + np.where(late, _delays(rng, len(happened), minutes=90), 0)
        old = rng.random(len(happened)) < self._simulation.old
        happened["engaged"] -= DAY_MS * np.where(old, rng.integers(1, OLDEST_DAYS, len(happened)), 0)
        self._delivery.put(happened, self._step_of(happened["sent"]))

    def _number(self, rows: Rows) -> None:
        rows["number"] = np.arange(self._count, self._count + len(rows))
        self._count += len(rows)

    def _step_of(self, moments: Any) -> Ints:
        found: Ints = (moments - self._simulation.start_ms) // self._simulation.step_ms
        return found


def _call(org: int, who: int, engaged: int, sent: int) -> Rows:
    """One call, not numbered yet, to an id that need not be anybody's."""
    row = np.zeros(1, ENGAGEMENT)
    for name, value in {"org": org, "person": -1, "who": who, "engaged": engaged, "sent": sent}.items():
        row[name] = value
    row["kind"], row["outcome"] = CALL, 1
    return row


def _later(rng: np.random.Generator, rows: Rows, kind: int, *, minutes: int) -> Rows:
    """Copies of another kind, which happen after a delay of this median."""
    found = rows.copy()
    found["kind"] = kind
    found["engaged"] += _delays(rng, len(found), minutes=minutes)
    return found


def _delays(rng: np.random.Generator, count: int, *, minutes: int) -> Ints:
    """Milliseconds: log-normal, this is their median, 12 hours at most."""
    drawn = rng.lognormal(np.log(minutes * MINUTE_MS), 1.0, count)
    return np.minimum(drawn, LONGEST_MS).astype(np.int64)
