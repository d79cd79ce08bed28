"""Audit results by hour: which hours to hold back so that the others can be published. Pure.

A held hour keeps the rows that it has. It is built in a session of its own when a source touches it or the code
changes. Until then the target's complete-through stays below it, unless it was above it before.
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

REASON_SEPARATOR = "; "
"""Between the reasons of a held hour."""

MAX_REASONS = 3
"""Number of reasons in a message about held hours. Hours with other reasons are only counted."""


def failed_hours(audits: Iterable[AuditResult]) -> dict[int, str]:
    """Return failed hour → reason for people, without keys of rows; ascending.

    Only blocking audits that know the hours of their offending rows count.
    """
    reasons: dict[int, list[str]] = {}
    for audit in audits:
        if not audit.blocking or audit.passed:
            continue
        for key, rows in audit.hours.items():
            reason = f"{_named(audit.name)}{_describe_counts(audit, rows)}"
            reasons.setdefault(parse_hour(key), []).append(reason)
    return {hour: REASON_SEPARATOR.join(reasons[hour]) for hour in sorted(reasons)}


def held_by_audit(held: Iterable[HeldHour], audit: str) -> tuple[HeldHour, ...]:
    """Return those of the held hours that an audit holds back, whichever session evaluated it."""
    found: list[HeldHour] = []
    for hour in held:
        reasons = hour.why.split(REASON_SEPARATOR)
        if any(reason.startswith(_named(audit)) for reason in reasons):
            found.append(hour)
    return tuple(found)


def hours_to_hold(
    mode: Mode,
    audits: Iterable[AuditResult],
    audited: Collection[int],
    before: Collection[int],
) -> tuple[int, ...]:
    """Return the audited hours to leave out so that the others can be published.

    Args:
        mode: The target's mode.
        audits: The audit results.
        audited: The hours that the audits looked at.
        before: Hours that are held already. A session of only these holds them again, for it delays no other hour.

    Returns:
        Hours in ascending order. Empty if the session must stop as a whole: its hours build on each other, or no other
        hour is left.
    """
    failed = failed_hours(audits).keys()
    others = set(audited) - failed
    if isinstance(mode, Sequential) or not failed <= set(audited):
        return ()
    if others or failed <= set(before):
        return tuple(sorted(failed))
    return ()


def held_by(plan: SessionPlan, audits: Iterable[AuditResult]) -> tuple[HeldHour, ...]:
    """Return the hours that a session holds back because of its audit results; ascending."""
    held: list[HeldHour] = []
    for hour, reason in failed_hours(audits).items():
        held.append(HeldHour(hour, reason, plan.session_id, plan.code_version))
    return tuple(held)


def settled(first: Sequence[AuditResult], again: Iterable[AuditResult]) -> tuple[AuditResult, ...]:
    """Return the final audit results of a session that held hours back.

    Args:
        first: Results on all hours. Those that caused hours to be held back are kept.
        again: Results without these hours: what was published. They replace the rest.
    """
    published = {audit.name: audit for audit in again}
    results: list[AuditResult] = []
    for audit in first:
        holds_hours = audit.blocking and not audit.passed and bool(audit.hours)
        results.append(audit if holds_hours else published.get(audit.name, audit))
    return tuple(results)


def still_held(before: Iterable[HeldHour], done: Collection[int], now: Iterable[HeldHour]) -> tuple[HeldHour, ...]:
    """Return the held hours, ascending, after a session that has built `done` and holds back `now`."""
    held: dict[int, HeldHour] = {}
    for earlier in before:
        if earlier.hour not in done:
            held[earlier.hour] = earlier
    for newer in now:
        held[newer.hour] = newer
    return tuple(held[hour] for hour in sorted(held))


def check_none_held(
    table: str,
    mode: Mode,
    held: Sequence[HeldHour],
    *,
    first: float = inf,
) -> None:
    """Refuse a sequential target with held hours: later hours would build on them.

    Args:
        table: The target.
        mode: Its mode.
        held: Its held hours, ascending.
        first: The first hour that is about to be built, with all later ones. Held hours from there on are allowed.

    Raises:
        ConfigurationError: There are held hours before `first`.
    """
    left = [h.hour for h in held if h.hour < first]
    if isinstance(mode, Sequential) and left:
        raise ConfigurationError(
            f"{table} is declared sequential, and audits hold back its {_describe_hours(left)}:"
            " later hours would build on them.",
            remedy=f"Repair their rows and run `lake rebuild {table} {hour_key(left[0])} {hour_key(left[-1])}`,"
            " or declare the former mode again.",
        )


def capped(through: int | None, held: Iterable[int], before: int | None) -> int | None:
    """Return a target's complete-through, limited to the hours below each held hour.

    Args:
        through: The complete-through without held hours; None if unknown.
        held: The held hours.
        before: The target's present complete-through. Held hours up to it do not limit it.
    """
    if through is None:
        return None
    limit = through
    for hour in held:
        if before is None or hour > before:
            limit = min(limit, hour - 1)
    return limit


def in_words(held: Sequence[HeldHour]) -> str:
    """Return held hours for people: `hour 2026-01-01-09:00 is held back by audit unique_key: 3 repeated`."""
    sentences: list[str] = []
    hours_left = 0
    for reason, found in groupby(held, key=attrgetter("why")):
        hours = [h.hour for h in found]
        if len(sentences) == MAX_REASONS:
            hours_left += len(hours)
            continue
        verb = "is" if len(hours) == 1 else "are"
        sentences.append(f"{_describe_hours(hours)} {verb} held back by {reason}")
    if hours_left:
        sentences.append(f"and {hours_left} hours more")
    return "; ".join(sentences)


def _named(audit: str) -> str:
    """Return the beginning of a reason. It is stored with held hours, so it stays as it is."""
    return f"audit {audit}: "


def _describe_hours(hours: Sequence[int]) -> str:
    noun = "hour" if len(hours) == 1 else "hours"
    return f"{noun} {format_hours(hours)}"


def _describe_counts(audit: AuditResult, rows: int) -> str:
    """Return the count of one hour; for an audit with several counts, those of the whole session."""
    if len(audit.counts) == 1:
        (name,) = audit.counts
        return f"{rows} {name}"
    return ", ".join(f"{count} {name}" for name, count in audit.counts.items())
