"""The formats of Kafka messages: fields, types and constraints. Pure; `streams.message_validation` applies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date

from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.requests.identity import OPS, PERSON
from lake_assets.engagement.requests.retention_rules import RETENTION_OPS, TTL_DAYS
from lake_assets.errors import ConfigurationError

NOT_JSON = "not JSON"
UNKNOWN_ORG = "unknown org"
RECORD = "record"
"""Column with the typed values of a record that a message carries; nulls if it carries none."""

COLUMN = "column"
"""Field of a request with the id column that it names."""

ISO_DATE = r"^\d{4}-\d{2}-\d{2}$"
ISO_TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:?\d{2})?$"
"""Spark alone would also accept a time of day, as a moment of the present day."""
USUAL = {"date": ISO_DATE, "timestamp": ISO_TIME}
"""Types of dates and times → the texts that Spark reads as they are. Of old batches, no other texts are dates."""

_ZONE = r"[Zz]|UTC|[+-]\d{2}(:?\d{2})?"
PATTERNS = {
    "date": rf"{ISO_DATE}|^\d{{8}}$",
    "timestamp": rf"^\d{{4}}-\d{{2}}-\d{{2}}([Tt ]\d{{2}}:\d{{2}}(:\d{{2}}([.,]\d+)?)?( ?({_ZONE}))?)?$"
    rf"|^\d{{8}}([Tt]\d{{4}}(\d{{2}}([.,]\d+)?)?({_ZONE})?)?$",
}
"""Types of dates and times → all texts that are one: ISO 8601 as Go, .NET, Java and Python write it. A time without a
zone is UTC, a date alone its midnight. What is finer than a microsecond is cut off."""

TIME_PARTS = (
    r"^(\d{4})-?(\d{2})-?(\d{2})(?:[Tt ](\d{2}):?(\d{2})(?::?(\d{2})(?:[.,](\d{1,6})\d*)?)?)?"
    r"(?: ?(?:[Zz]|UTC|([+-]\d{2})(?::?(\d{2}))?))?$"
)
"""Parts of a text that `PATTERNS` accepts, in groups: year, month, day, hour, minute, second, microseconds, zone."""
TIMES = (date(1800, 1, 1), date(2200, 1, 1))
"""Accepted dates and times: from the first day, inclusive, to the second, exclusive.

`pandas.Timestamp` has nanoseconds in 64 bits (1677 to 2262), and a cut-off is up to `TTL_DAYS` before its request.
"""


@dataclass(frozen=True)
class Format:
    """The JSON object of a topic. Other fields than these are ignored.

    Attributes:
        fields: Field → Spark SQL type.
        required: Fields that must not be missing, null or blank.
        nested: (name, fields) of one nested object; None if there is none.
        choices: Field → its allowed values.
        required_unless: Field → (another field, the value of it that makes the first one optional).
        range: Numeric field → (minimum, maximum).
        record: (field, format) of an object that is stored as its JSON text; None if there is none.
        people: SQL of the id of a person → column with the time of the statement about that person.
        erases: Whether a valid message asks for the erasure of these people, and is applied even if they are erased.
        keys: Field → its key in the JSON object, where that is another name.
        policies: Fields whose missing value is replaced by a value that the org has registered.
        is_of_old_batch: Whether dates and times are the `USUAL` ones alone, and numbers and booleans what Spark casts.
    """

    fields: Mapping[str, str]
    required: tuple[str, ...]
    nested: tuple[str, Mapping[str, str]] | None = None
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    required_unless: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    range: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    record: tuple[str, Format] | None = None
    people: Mapping[str, str] = field(default_factory=dict)
    erases: bool = False
    policies: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    is_of_old_batch: bool = False

    def of_old_batch(self) -> Format:
        """Return the format that a batch of an earlier version is completed with."""
        record = (self.record[0], self.record[1].of_old_batch()) if self.record else None
        return replace(self, record=record, is_of_old_batch=True)

    def without_column(self) -> Format:
        """Return the format without the column that a request names, which earlier versions did not know."""
        fields = {name: kind for name, kind in self.fields.items() if name != COLUMN}
        choices = {name: values for name, values in self.choices.items() if name != COLUMN}
        return replace(self, fields=fields, choices=choices)

    def key(self, path: str) -> str:
        """Return the path of a field in the JSON object."""
        return self.keys.get(path, path)

    @property
    def paths(self) -> dict[str, str]:
        """Path of every field, nested ones included → its type."""
        found = dict(self.fields)
        if self.nested:
            name, inner = self.nested
            for inner_name, kind in inner.items():
                found[f"{name}.{inner_name}"] = kind
        return found


def ingestion_format(lake: EngagementLake) -> Format:
    """Return the format of an engagement in the ingestion topic of a lake."""
    return Format(
        fields={
            "org_id": "string",
            "engagement_id": "string",
            "who_id": "string",
            "kind": "string",
            "template_id": "string",
            "cadence_id": "string",
            "rep_id": "string",
            "outcome": "string",
            "engaged_at": "timestamp",
            **dict.fromkeys(lake.further_ids, "string"),
        },
        required=("org_id", "engagement_id", "who_id", "kind", "engaged_at"),
        nested=("engagement", lake.fields),
        people={"who_id": "engaged_at"},
        keys=lake.message_keys,
    )


def record_format(lake: EngagementLake) -> Format:
    """Return the format of an engagement that a mutation request carries. It belongs to the request's org."""
    engagement = ingestion_format(lake)
    fields = dict(engagement.fields)
    del fields["org_id"]
    required = tuple(name for name in engagement.required if name != "org_id")
    return replace(engagement, fields=fields, required=required)


def mutation_format(lake: EngagementLake) -> Format:
    """Return the format of a request in the mutation topic of a lake."""
    return Format(
        fields={
            "org_id": "string",
            "request_id": "string",
            "op": "string",
            "old_id": "string",
            "new_id": "string",
            "insert_record": "string",
            "engagement_date": "date",
            "executed_at": "timestamp",
            COLUMN: "string",
        },
        required=("org_id", "request_id", "op", "old_id", "executed_at"),
        choices={"op": OPS, COLUMN: lake.ids},
        required_unless={"new_id": ("op", "delete")},
        record=("insert_record", record_format(lake)),
        people={
            _of_person("old_id", lake): "executed_at",
            _of_person("new_id", lake): "executed_at",
            f"{RECORD}.{PERSON}": f"{RECORD}.engaged_at",
        },
        keys=lake.message_keys,
    )


def _of_person(column: str, lake: EngagementLake) -> str:
    """Return an id of a request as SQL, null if the request names no person."""
    if lake.ids == (PERSON,):
        return column
    return f"CASE WHEN coalesce(`column`, '{lake.ids[0]}') = '{PERSON}' THEN {column} END"


def retention_format(lake: EngagementLake) -> Format:
    """Return the format of a request in the retention topic of a lake."""
    return replace(RETENTION_FORMAT, keys=lake.message_keys)


RETENTION_FORMAT = Format(
    fields={
        "org_id": "string",
        "request_id": "string",
        "op": "string",
        "who_id": "string",
        "ttl_days": "int",
        "requested_at": "timestamp",
    },
    required=("org_id", "request_id", "op", "requested_at"),
    choices={"op": RETENTION_OPS},
    required_unless={"ttl_days": ("op", "gdpr"), "who_id": ("op", "ttl")},
    range={"ttl_days": TTL_DAYS},
    people={"who_id": "requested_at"},
    erases=True,
    policies=("ttl_days",),
)
"""Format of a request in a retention topic. A `ttl` without days uses the org's registered days."""

_FORMATS = (ingestion_format, record_format, mutation_format, retention_format)
_FIXED = "org_id"
"""The field without another key: redaction finds the org of a message by it, also if the message is not valid."""


def fields_with_keys(lake: EngagementLake) -> tuple[str, ...]:
    """Return the fields that may have another key in the messages of a lake."""
    names: dict[str, None] = {}
    for format_of in _FORMATS:
        names |= dict.fromkeys(format_of(lake).fields)
    del names[_FIXED]
    return tuple(names)


def check_message_keys(lake: EngagementLake) -> None:
    """Check that no two values of a message have the same key. Case does not distinguish keys, as in Spark.

    Raises:
        ConfigurationError: Two have.
    """
    for format_of in _FORMATS:
        message_format = format_of(lake)
        names = [*message_format.fields]
        if message_format.nested:
            names.append(message_format.nested[0])
        seen: dict[str, str] = {}
        for name in names:
            key = message_format.key(name)
            other = seen.setdefault(key.lower(), name)
            if other != name:
                raise ConfigurationError(
                    f"message_keys of {lake.name}: {other} and {name} would both have the key {key!r}.",
                    remedy="Give one of them another key.",
                )
