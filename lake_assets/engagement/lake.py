"""The configuration of an engagement lake. The same code serves every kind of activity.

This module reads and writes nothing, and does not import Spark.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from lake_assets.engagement.requests import PERSON, TTL_DAYS
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


StreamName = Literal["ingestion", "mutation", "retention"]
STREAMS: tuple[StreamName, ...] = get_args(StreamName)
TURNS = (*STREAMS, "maintenance")
"""All who take turns on a lake."""

FIELD_TYPES = frozenset({"string", "int", "bigint", "double", "boolean", "date", "timestamp"})
"""Spark SQL types of the fields in the `engagement` struct: those that a JSON scalar can be cast to."""

ANY_TURN = "any"
"""Instead of a predecessor in a lake's `turns`: the turn may follow any other."""

TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
MESSAGE_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
COMMON_IDS = (PERSON, "template_id", "cadence_id", "rep_id")
"""The columns of every lake that may be declared as ids; others are added to its rows and messages."""

_TAKEN = frozenset(
    {"org_id", "engagement_date", "engagement_id", "kind", "outcome", "engaged_at", "engagement", "column", "message"}
    | {"topic", "partition", "offset", "reason", "record", "request_id", "op", "old_id", "new_id", "insert_record"}
    | {"executed_at", "ttl_days", "requested_at"}
)
"""Names of other columns of rows, messages and requests."""

_POSITIVE = ("max_records", "max_file_bytes", "retain_hours")
DEFAULT_MAX_FILE_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class EngagementLake:
    """A lake of one kind of activity.

    Attributes:
        name: Also the folder of its tables and the prefix of its transaction ids, so it never changes.
        fields: Fields of the `engagement` struct: name → type, one of `FIELD_TYPES`.
        ids: Columns whose ids requests may convert, merge and delete, `who_id` among them. A request that names no
            column means the first one. Those that are not columns of every lake are further fields of messages.
        topics: Stream → Kafka topic; by default `<name>.<stream>`.
        max_records: Maximum number of messages in a batch.
        max_file_bytes: Maximum size of the files that maintenance writes for `engagement`.
        seconds: One of `TURNS` → seconds between two of its turns; without an entry, those of the settings.
        retain_hours: Hours for which old versions stay readable; None for those of the settings.
        metrics: What its metrics count.
        turns: One of `TURNS` → those after whose turn it may come, or `ANY_TURN`; without an entry, the usual order.
        simulated_as: Kind or outcome of the simulator → the kind or outcome of this lake; others stay.
        message_keys: Field of a message → the key that it has in the lake's messages; other fields have their own name.
        continuous: Whether `lake up` runs its streams in a process of their own, and Dagster requests no turns of them.
        ttl_days: Days that orgs keep engagements if they are registered without a number; None: for ever.
    """

    name: str
    fields: Mapping[str, str]
    topics: Mapping[StreamName, str] = field(default_factory=dict)
    max_records: int = 1_000_000
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES
    seconds: Mapping[str, int] = field(default_factory=dict)
    retain_hours: int | None = None
    ttl_days: int | None = None
    metrics: tuple[MetricGroup, ...] = EMAILS_AND_CALLS
    simulated_as: Mapping[str, str] = field(default_factory=dict)
    turns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    message_keys: Mapping[str, str] = field(default_factory=dict)
    continuous: bool = False
    ids: tuple[str, ...] = (PERSON,)

    def __post_init__(self) -> None:
        _require_match(IDENTIFIER, self.name, "The name of an engagement lake")
        self._check_fields()
        self._check_ids()
        check_groups(self.metrics)
        for stream in STREAMS:
            _require_match(TOPIC, self.topic(stream), f"The {stream} topic of {self.name}")
        for name, key in self.message_keys.items():
            _require_match(MESSAGE_KEY, key, f"The key of {name} in messages of {self.name}")
        for limit in _POSITIVE:
            value = getattr(self, limit)
            if value is not None and value < 1:
                raise ConfigurationError(f"{limit} of {self.name} is {value}.", remedy="Set it to 1 or more.")
        first, last = TTL_DAYS
        if self.ttl_days is not None and not first <= self.ttl_days <= last:
            raise ConfigurationError(
                f"ttl_days of {self.name} is {self.ttl_days}.", remedy=f"Set it to a number from {first} to {last}."
            )

    def _check_fields(self) -> None:
        if not self.fields:
            raise ConfigurationError(f"{self.name} has no fields.", remedy="Name at least one field.")
        for name, kind in self.fields.items():
            _require_match(IDENTIFIER, name, f"A field of {self.name}")
            if kind not in FIELD_TYPES:
                raise ConfigurationError(
                    f"The field {name} of {self.name} has the type {kind!r}.",
                    remedy=f"Use one of {', '.join(sorted(FIELD_TYPES))}.",
                )

    def _check_ids(self) -> None:
        object.__setattr__(self, "ids", tuple(self.ids))
        if PERSON not in self.ids:
            raise ConfigurationError(
                f"ids of {self.name} are {self.ids!r}, without {PERSON}.",
                remedy=f"Write a list with {PERSON} in it, which erasures follow.",
            )
        for column in self.ids:
            _require_match(IDENTIFIER, column, f"An id column of {self.name}")
            if column in _TAKEN or column.startswith(("sent_", "record_")) or self.ids.count(column) > 1:
                raise ConfigurationError(
                    f"ids of {self.name} name {column!r}, which is taken.",
                    remedy=f"Name each column once, such as {', '.join(COMMON_IDS)}, or a column of its own.",
                )

    @property
    def further_ids(self) -> tuple[str, ...]:
        """The id columns that not every lake has."""
        return tuple(column for column in self.ids if column not in COMMON_IDS)

    def topic(self, stream: StreamName) -> str:
        """Return the Kafka topic that a stream reads."""
        return self.topics.get(stream, self.app_name(stream))

    def message_key(self, name: str) -> str:
        """Return the key of a field in the JSON object of a message."""
        return self.message_keys.get(name, name)

    @property
    def lock(self) -> str:
        """The coordinator's name of the resource that the streams share."""
        return f"engagement.{self.name}"

    def app_name(self, stream: StreamName) -> str:
        """Return the name of a stream in notifications, in the checkpoint and for the coordinator."""
        return f"{self.name}.{stream}"

    def app_id(self, stream: StreamName, commit: str) -> str:
        """Return the transaction app id (`txnAppId`) of one of a stream's commits."""
        return f"{self.app_name(stream)}.{commit}"


def _require_match(pattern: re.Pattern[str], value: str, what: str) -> None:
    if not pattern.fullmatch(value):
        raise ConfigurationError(f"{what} is {value!r}.", remedy=f"Use a name that matches {pattern.pattern}.")
