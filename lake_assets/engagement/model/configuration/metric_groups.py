"""What the metrics of a lake count: groups of columns, each with its kinds, outcomes and rates. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import IDENTIFIER

DIMENSIONS: Mapping[str, str] = {
    "org_id": "string",
    "engagement_date": "date",
    "rep_id": "string",
    "cadence_id": "string",
    "template_id": "string",
}
"""The columns that metrics are counted by → Spark SQL type."""

DIGEST_DIGITS = 16


@dataclass(frozen=True)
class MetricGroup:
    """Counts that belong together, and shares of one of them.

    Attributes:
        name: Shown above the charts of the group.
        kinds: Column → the kind of engagement that it counts.
        outcomes: Column → the outcome that it counts, among the engagements of these kinds.
        rates: Column → the count that it is the share of `whole` for.
        whole: The count that rates are shares of; None if there are no rates.
    """

    name: str
    kinds: Mapping[str, str]
    outcomes: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[str, str] = field(default_factory=dict)
    whole: str | None = None

    def __post_init__(self) -> None:
        if not self.kinds:
            raise self._wrong("has no kinds", "Name at least one `column: kind`.")
        for column in (*self.counts, *self.rates):
            if not IDENTIFIER.fullmatch(column) or column in DIMENSIONS:
                raise self._wrong(f"has the column {column!r}", "Use other lower-case letters, digits and _.")
        self._check_rates()

    def _check_rates(self) -> None:
        counts = ", ".join(self.counts)
        for part in self.rates.values():
            if part not in self.counts:
                raise self._wrong(f"has a rate of {part!r}, which it does not count", f"Name one of: {counts}.")
        if self.rates and self.whole not in self.counts:
            raise self._wrong(f"has rates of {self.whole!r}, which it does not count", f"Name a count: {counts}.")

    @property
    def counts(self) -> tuple[str, ...]:
        """The columns of counts."""
        return (*self.kinds, *self.outcomes)

    def _wrong(self, why: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"The metrics {self.name} {why}.", remedy=remedy)


EMAILS = MetricGroup(
    "emails",
    kinds={"sent": "sent", "opened": "opened", "replied": "replied", "bounced": "bounced"},
    rates={"open_rate": "opened", "reply_rate": "replied", "bounce_rate": "bounced"},
    whole="sent",
)
CALLS = MetricGroup(
    "calls",
    kinds={"calls": "call"},
    outcomes={
        "meaningful_contact": "meaningful contact",
        "not_interested": "not interested",
        "left_voicemail": "left voicemail",
    },
    rates={
        "meaningful_contact_rate": "meaningful_contact",
        "not_interested_rate": "not_interested",
        "left_voicemail_rate": "left_voicemail",
    },
    whole="calls",
)
EMAILS_AND_CALLS = (EMAILS, CALLS)
"""The metrics of every lake before lakes could declare their own. Tables without a digest have these."""


def check_groups(groups: Sequence[MetricGroup]) -> None:
    """Check that no column is in two groups. Raises `ConfigurationError`."""
    seen: dict[str, str] = {}
    for group in groups:
        for column in (*group.counts, *group.rates):
            if column in seen:
                raise ConfigurationError(
                    f"The metrics {seen[column]} and {group.name} both have the column {column!r}.",
                    remedy="Give each count and each rate a column of its own.",
                )
            seen[column] = group.name


def count_columns(groups: Sequence[MetricGroup]) -> list[str]:
    """Return the columns of counts of all groups, in order."""
    found: list[str] = []
    for group in groups:
        found += group.counts
    return found


def rate_columns(groups: Sequence[MetricGroup]) -> dict[str, tuple[str, str]]:
    """Return rate → (part, whole), of all groups, in order."""
    return {rate: (part, whole) for rate, part, whole in _rates(groups)}


def metrics_columns(groups: Sequence[MetricGroup]) -> dict[str, str]:
    """Return column → Spark SQL type of the table of metrics: dimensions, counts, then rates."""
    counts = dict.fromkeys(count_columns(groups), "bigint")
    return {**DIMENSIONS, **counts, **dict.fromkeys(rate_columns(groups), "double")}


def digest(groups: Sequence[MetricGroup]) -> str:
    """Return a digest of everything that decides what the metrics are; equal in every process."""
    told = [(sorted(g.kinds.items()), sorted(g.outcomes.items()), sorted(g.rates.items()), g.whole) for g in groups]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:DIGEST_DIGITS]


def _rates(groups: Sequence[MetricGroup]) -> Iterator[tuple[str, str, str]]:
    for group in groups:
        for rate, part in group.rates.items():
            yield rate, part, str(group.whole)
