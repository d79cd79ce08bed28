"""Verdicts hour by hour: which hours audits hold back, so that the others can be published. Pure: data in, data out.

An hour that is held back keeps the rows it has. It is a session of its own from then on, once a source has touched it
or the code has changed; until then it waits, and complete-through stays below it, unless that had passed it before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from math import inf
from operator import attrgetter

from lake_assets.base.hours import format_hours, hour_key, parse_hour
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Mode, Sequential
from lake_assets.incremental.planning.session import AuditResult, HeldHour, SessionPlan

NAMED = 3
"""So many reasons are named in a message, those of the earliest held hours; the hours of the rest are counted."""


def failed_hours(audits: Iterable[AuditResult]) -> dict[int, str]:
    """Hour → which blocking audits failed in it and how, in words and without keys of rows; by those that can tell."""
    found: dict[int, list[str]] = {}
    for audit in audits:
        if audit.blocking and not audit.passed:
            for key, rows in audit.hours.items():
                found.setdefault(parse_hour(key), []).append(f"audit {audit.name}: {_counted(audit, rows)}")
    return {hour: "; ".join(words) for hour, words in sorted(found.items())}


def hours_to_hold(
    mode: Mode, audits: Iterable[AuditResult], judged: Collection[int], before: Collection[int]
) -> tuple[int, ...]:
    """Of the hours that audits have judged, those to be left out so that the others can be published; ascending.

    Empty where hours build on each other, and where no other hour would be left: such a session is stopped as a whole.
    before: hours that are held already; a session of only these holds them again, for it would stop nothing else.
    """
    failed = failed_hours(audits).keys()
    if isinstance(mode, Sequential) or not failed <= set(judged):
        return ()
    return tuple(sorted(failed)) if set(judged) - failed or failed <= set(before) else ()


def held_by(plan: SessionPlan, audits: Iterable[AuditResult]) -> tuple[HeldHour, ...]:
    """The hours that a session has held back, by its verdicts; ascending."""
    return tuple(HeldHour(h, why, plan.session_id, plan.code_version) for h, why in failed_hours(audits).items())


def settled(first: Sequence[AuditResult], again: Iterable[AuditResult]) -> tuple[AuditResult, ...]:
    """The verdicts of a session that held hours back: those that held them, else those on what was published."""
    published = {audit.name: audit for audit in again}
    return tuple(a if a.blocking and not a.passed and a.hours else published.get(a.name, a) for a in first)


def still_held(before: Iterable[HeldHour], done: Collection[int], now: Iterable[HeldHour]) -> tuple[HeldHour, ...]:
    """The held hours after a session that has built `done` and holds back `now`; ascending."""
    kept = {h.hour: h for h in before if h.hour not in done} | {h.hour: h for h in now}
    return tuple(kept[hour] for hour in sorted(kept))


def check_none_held(table: str, mode: Mode, held: Sequence[HeldHour], *, first: float = inf) -> None:
    """Where hours build on each other none may be held back: a target that holds some back cannot become sequential.

    first: the first hour that is about to be built, with all behind it; the held ones among these are no hindrance.
    Raises `ConfigurationError`.
    """
    left = [h.hour for h in held if h.hour < first]
    if isinstance(mode, Sequential) and left:
        raise ConfigurationError(
            f"{table} is declared sequential, and audits hold back its {_hours(left)}: those behind build on these.",
            remedy=f"Mend their rows and run `lake rebuild {table} {hour_key(left[0])} {hour_key(left[-1])}`, "
            "or declare the former mode again.",
        )


def capped(through: int | None, held: Iterable[int], before: int | None) -> int | None:
    """How far a target may be called complete: below each held hour, but for those up to `before`, where it was."""
    if through is None:
        return None
    return min([through, *(hour - 1 for hour in held if before is None or hour > before)])


def in_words(held: Sequence[HeldHour]) -> str:
    """Held hours for people: `hour 2026-01-01-09:00 is held back by audit unique_key: 3 repeated`."""
    alike = [(why, [h.hour for h in hours]) for why, hours in groupby(held, key=attrgetter("why"))]
    named = [f"{_hours(hours)} {_are(hours)} held back by {why}" for why, hours in alike[:NAMED]]
    left = sum(len(hours) for _, hours in alike[NAMED:])
    return "; ".join([*named, *([f"and {left} hours more"] if left else [])])


def _hours(hours: Sequence[int]) -> str:
    return f"hour{'s' * (len(hours) > 1)} {format_hours(hours)}"


def _are(hours: Sequence[int]) -> str:
    return "is" if len(hours) == 1 else "are"


def _counted(audit: AuditResult, rows: int) -> str:
    """What an audit counted of one hour; where it counts only a session as a whole, that."""
    if len(audit.counts) == 1:
        return f"{rows} {next(iter(audit.counts))}"
    return ", ".join(f"{n} {what}" for what, n in audit.counts.items())
