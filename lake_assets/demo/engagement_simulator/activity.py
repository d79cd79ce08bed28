"""Emails with their effects, and calls: when they happen and when they become known. Pure.

An email is sent. Later it bounces, or it is opened and perhaps replied to. Each of these is an engagement. Memory: some
hundred bytes for each engagement of a step, and for each that is still to come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lake_assets.demo.engagement_simulator.model import DAY_MS, Simulation
from lake_assets.demo.engagement_simulator.people import Ints, People, Random

ACTIVITY = 1
"""Number of this use of random numbers. Each random stream has the seed (seed, number of its use, ...)."""

SENT, OPENED, REPLIED, BOUNCED, CALL = range(5)
KINDS = ("sent", "opened", "replied", "bounced", "call")
OUTCOMES = (None, "meaningful contact", "not interested", "left voicemail")
OUTCOME_SHARES = (0.2, 0.3, 0.5)
NO_OUTCOME, MEANINGFUL_CONTACT = 0, 1
NOBODY = -1

MINUTE_MS = 60_000
MAX_DELAY_MS = 12 * 60 * MINUTE_MS
DELAY_SIGMA = 1.0
BOUNCE_MINUTES = 1
OPEN_MINUTES = 40
REPLY_MINUTES = 20
LATE_MINUTES = 90
MAX_AGE_DAYS = 400

TEMPLATES = 40
CADENCES = 12
REPS_PER_ORG = 8

Rows = npt.NDArray[np.void]
ENGAGEMENT = np.dtype(
    [
        ("number", np.int64),
        ("org", np.int64),
        ("person", np.int64),
        ("who", np.int64),
        ("engaged", np.int64),
        ("sent", np.int64),
        ("kind", np.int16),
        ("outcome", np.int16),
        ("template", np.int16),
        ("cadence", np.int16),
        ("rep", np.int16),
    ]
)
"""A row for each engagement.

person: `NOBODY` if the id belongs to nobody. who: the id, which is known once the engagement happens.
engaged, sent: when it happened and when its message is sent, in milliseconds since 1970-01-01 UTC.
"""


class Transit:
    """Engagements that belong to a later step."""

    def __init__(self) -> None:
        self._by_step: dict[int, list[Rows]] = {}

    @property
    def empty(self) -> bool:
        """Whether no engagement is left."""
        return not self._by_step

    def put(self, rows: Rows, steps: Ints) -> None:
        """Add engagements. steps: the step of each row."""
        for step in np.unique(steps):
            waiting = self._by_step.setdefault(int(step), [])
            waiting.append(rows[steps == step])

    def take(self, step: int) -> Rows:
        """Remove the engagements of a step and return them."""
        no_rows = np.empty(0, ENGAGEMENT)
        return np.concatenate([no_rows, *self._by_step.pop(step, [])])


class Activity:
    """The actions of reps and of the people whom they contact, step by step."""

    def __init__(self, simulation: Simulation, people: People) -> None:
        self._simulation = simulation
        self._people = people
        self._future = Transit()
        self._undelivered = Transit()
        self._count = 0
        self._last_number: dict[int, int] = {}

    @property
    def over(self) -> bool:
        """Whether every engagement has happened and is known."""
        return self._future.empty and self._undelivered.empty

    def live(self, step: int) -> Rows:
        """Play a step and return the engagements that become known in it, in the order of their messages."""
        rng = np.random.default_rng((self._simulation.seed, ACTIVITY, step))
        touches = self._touches(rng, step)
        emails = touches[touches["kind"] == SENT]
        for rows in (touches, *self._follow_ups(rng, emails)):
            self._future.put(rows, self._step_of(rows["engaged"]))
        happened = self._future.take(step)
        happened["who"] = self._people.ids(happened["person"])
        self._deliver(rng, happened)
        known = self._undelivered.take(step)
        self._remember(known)
        in_order = np.lexsort((known["number"], known["sent"]))
        return known[in_order]

    def deliver_late(self, org: int, who: int, engaged: int, sent: int) -> None:
        """Add a call to an id without any known engagement. It becomes known at `sent`, in a later step."""
        row = _call(org, who, engaged, sent)
        self._number(row)
        self._undelivered.put(row, self._step_of(row["sent"]))

    def record(self, org: int, who: int, engaged: int, *, anew: bool) -> Rows:
        """Return one call for a request to carry.

        Args:
            org: The org.
            who: The id of the call.
            engaged: When the call happened, in milliseconds since 1970-01-01 UTC.
            anew: True for a new engagement; False to replace the last known engagement of the org, if there is one.
        """
        row = _call(org, who, engaged, engaged)
        if anew or org not in self._last_number:
            self._number(row)
        else:
            row["number"] = self._last_number[org]
        return row

    def _touches(self, rng: Random, step: int) -> Rows:
        count = self._simulation.touches_of(step)
        rows = np.zeros(count, ENGAGEMENT)
        rows["org"] = self._people.draw_orgs(rng, count)
        rows["person"] = self._people.draw(rng, rows["org"])
        moments = np.sort(rng.integers(0, self._simulation.step_ms, count))
        rows["engaged"] = self._simulation.step_start(step) + moments
        is_call = rng.random(count) < self._simulation.calls
        outcomes = rng.choice(len(OUTCOME_SHARES), count, p=OUTCOME_SHARES) + 1
        rows["kind"] = np.where(is_call, CALL, SENT)
        rows["outcome"] = np.where(is_call, outcomes, NO_OUTCOME)
        rows["template"] = rng.integers(0, TEMPLATES, count)
        rows["cadence"] = rng.integers(0, CADENCES, count)
        rows["rep"] = rng.integers(0, REPS_PER_ORG, count)
        return rows

    def _follow_ups(self, rng: Random, emails: Rows) -> tuple[Rows, Rows, Rows]:
        """Return the bounces, opens and replies of emails."""
        simulation = self._simulation
        is_bounced = rng.random(len(emails)) < simulation.bounced
        bounced = _later(rng, emails[is_bounced], BOUNCED, minutes=BOUNCE_MINUTES)
        delivered = emails[~is_bounced]
        is_opened = rng.random(len(delivered)) < simulation.opened
        opened = _later(rng, delivered[is_opened], OPENED, minutes=OPEN_MINUTES)
        is_replied = rng.random(len(opened)) < simulation.replied
        replied = _later(rng, opened[is_replied], REPLIED, minutes=REPLY_MINUTES)
        return bounced, opened, replied

    def _deliver(self, rng: Random, happened: Rows) -> None:
        """Number the engagements of a step and send their messages: at once or late, some with an old date."""
        count = len(happened)
        self._number(happened)
        is_late = rng.random(count) < self._simulation.late
        delays = _delays(rng, count, minutes=LATE_MINUTES)
        happened["sent"] = happened["engaged"] + np.where(is_late, delays, 0)
        is_old = rng.random(count) < self._simulation.old
        age_days = rng.integers(1, MAX_AGE_DAYS, count)
        happened["engaged"] -= DAY_MS * np.where(is_old, age_days, 0)
        self._undelivered.put(happened, self._step_of(happened["sent"]))

    def _remember(self, known: Rows) -> None:
        for org, number in zip(known["org"].tolist(), known["number"].tolist(), strict=True):
            self._last_number[org] = number

    def _number(self, rows: Rows) -> None:
        end = self._count + len(rows)
        rows["number"] = np.arange(self._count, end)
        self._count = end

    def _step_of(self, moments: Any) -> Ints:
        steps: Ints = (moments - self._simulation.start_ms) // self._simulation.step_ms
        return steps


def _call(org: int, who: int, engaged: int, sent: int) -> Rows:
    """Return one call without a number, to an id that may belong to nobody."""
    row = np.zeros(1, ENGAGEMENT)
    row["org"] = org
    row["person"] = NOBODY
    row["who"] = who
    row["engaged"] = engaged
    row["sent"] = sent
    row["kind"] = CALL
    row["outcome"] = MEANINGFUL_CONTACT
    return row


def _later(rng: Random, rows: Rows, kind: int, *, minutes: int) -> Rows:
    """Return copies of another kind that happen after a random delay. minutes: median delay."""
    found = rows.copy()
    found["kind"] = kind
    found["engaged"] += _delays(rng, len(found), minutes=minutes)
    return found


def _delays(rng: Random, count: int, *, minutes: int) -> Ints:
    """Return log-normal delays in milliseconds, 12 hours at most. minutes: median."""
    drawn = rng.lognormal(np.log(minutes * MINUTE_MS), DELAY_SIGMA, count)
    return np.minimum(drawn, MAX_DELAY_MS).astype(np.int64)
