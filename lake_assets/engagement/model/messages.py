"""What a message must be to make a row, and why one does not: the reasons of the dead-letter table.

Messages are judged by Spark's own expressions, with no clock, and nothing is looked up but the orgs that were known
when the batch began: judged again, a message gets the same verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING

from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.requests.identity import OPS
from lake_assets.engagement.requests.retention_rules import RETENTION_OPS, TTL_DAYS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NOT_JSON = "not JSON"
UNKNOWN_ORG = "unknown org"
_BROKEN = "_broken"
_POLICY = "policy_"
_NO_POLICIES: Mapping[str, str] = {}
RECORD = "record"
"""The column with the typed values of a record that a message carries; of nulls, if it carries none."""

ISO_DATE = r"^\d{4}-\d{2}-\d{2}$"
ISO_TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:?\d{2})?$"
"""Spark also takes a time alone for a moment, of today: another one tomorrow. Without a zone it is UTC."""
PATTERNS = {"date": ISO_DATE, "timestamp": ISO_TIME}
TIMES = (date(1800, 1, 1), date(2200, 1, 1))
"""Dates and times are from the first day on, and before the second. What works out requests counts nanoseconds in 64
bits (`pandas.Timestamp`: from 1677 to 2262), and a cut-off is `TTL_DAYS` earlier than its request.
"""


@dataclass(frozen=True)
class Format:
    """What a JSON object of a topic holds. More fields than these do not matter.

    fields: name → Spark type. required: of these, what may not be missing, null or blank. nested: the same for one
    object within, if any: (its name, its fields). choices: field → the values that it may have. required_unless: field
    → (another field, and its value that makes the first unnecessary). range: number → its least and its greatest value.
    record: a field that may hold an object of another format, which is kept as its text: (its name, that format).
    people: column that names a person → column with the time of what it says of them. erases: whether a sound one asks
    for the erasure of these: it is carried out, though they are erased already. policies: fields that the org may
    have a value of, which then stands for one that is missing.
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


def ingestion_format(lake: EngagementLake) -> Format:
    """An engagement, as the ingestion topic of a lake brings it."""
    words = ("org_id", "engagement_id", "who_id", "kind", "template_id", "cadence_id", "rep_id", "outcome")
    return Format(
        {**dict.fromkeys(words, "string"), "engaged_at": "timestamp"},
        required=("org_id", "engagement_id", "who_id", "kind", "engaged_at"),
        nested=("engagement", lake.fields),
        people={"who_id": "engaged_at"},
    )


def record_format(lake: EngagementLake) -> Format:
    """An engagement, as a request of mutation carries it: that it is of the request's org goes without saying."""
    engagement = ingestion_format(lake)
    return replace(
        engagement,
        fields={name: kind for name, kind in engagement.fields.items() if name != "org_id"},
        required=tuple(name for name in engagement.required if name != "org_id"),
    )


def mutation_format(lake: EngagementLake) -> Format:
    """A request, as the mutation topic of a lake brings it."""
    words = ("org_id", "request_id", "op", "old_id", "new_id", "insert_record")
    return Format(
        {**dict.fromkeys(words, "string"), "engagement_date": "date", "executed_at": "timestamp"},
        required=("org_id", "request_id", "op", "old_id", "executed_at"),
        choices={"op": OPS},
        required_unless={"new_id": ("op", "delete")},
        record=("insert_record", record_format(lake)),
        people={
            "old_id": "executed_at",
            "new_id": "executed_at",
            f"{RECORD}.who_id": f"{RECORD}.engaged_at",
        },
    )


RETENTION_FORMAT = Format(
    {
        **dict.fromkeys(("org_id", "request_id", "op", "who_id"), "string"),
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
"""A request, as the retention topic of any lake brings it. A ttl without days asks for what the org's policy says."""


def judged(messages: DataFrame, shape: Format, orgs: DataFrame) -> DataFrame:
    """Each message with the format's columns, typed, and its reason, null if it is sound.

    messages: topic, partition, offset, value binary. orgs: org_id string, those that are known, each once if it has
    policies; of the format's policies those columns that there are. Adds message string, and the struct `RECORD` if the
    format has one.
    """
    from pyspark.sql import functions as F

    text = F.col("value").cast("string")
    policies = {name: f"{_POLICY}{name}" for name in shape.policies if name in orgs.columns}
    told = (F.col(name).alias(column) for name, column in policies.items())
    known = F.broadcast(orgs.select(F.col("org_id").alias("known_org"), *told).distinct())
    place = [F.col(name) for name in ("topic", "partition", "offset")]
    found = messages.select(*place, F.make_valid_utf8(text).alias("message"), _parsed(text, shape).alias("json"))
    columns = _columns(shape, "json", policies)
    if shape.record:
        name, of = shape.record
        found = found.withColumn(RECORD, _parsed(F.col(f"json.{name}"), of))
        columns.append(F.struct(*_columns(of, RECORD)).alias(RECORD))
    found = found.join(known, F.col("json.org_id") == F.col("known_org"), "left")
    return found.select(*place, "message", _reason(shape, policies).alias("reason"), *columns)


def typed(records: DataFrame, text: str, shape: Format) -> DataFrame:
    """The same rows with the struct `RECORD`: the typed values of the object that a column of texts holds."""
    from pyspark.sql import functions as F

    parsed = records.withColumn(RECORD, _parsed(F.col(text), shape))
    return parsed.withColumn(RECORD, F.struct(*_columns(shape, RECORD)))


def _parsed(text: Column, shape: Format) -> Column:
    """A JSON object with everything as text: what is no date is then told apart from what is not there."""
    from pyspark.sql import functions as F

    return F.from_json(F.try_validate_utf8(text), _text_schema(shape), {"columnNameOfCorruptRecord": _BROKEN})


def _text_schema(shape: Format) -> str:
    fields = [*_texts(shape.fields), f"{_BROKEN} string"]
    if shape.nested:
        name, inner = shape.nested
        fields.append(f"{name} struct<{', '.join(f'{n}: string' for n in inner)}>")
    return ", ".join(fields)


def _texts(fields: Mapping[str, str]) -> list[str]:
    return [f"{name} string" for name in fields]


def _columns(shape: Format, base: str, policies: Mapping[str, str] = _NO_POLICIES) -> list[Column]:
    """The typed values of a parsed object. base: its column. policies: field → column with the value of the org."""
    from pyspark.sql import functions as F

    def value(name: str, kind: str) -> Column:
        found = _cast(f"{base}.{name}", kind)
        return F.coalesce(found, policies[name]) if name in policies else found

    columns = [value(name, kind).alias(name) for name, kind in shape.fields.items()]
    if shape.nested:
        name, inner = shape.nested
        nested = [_cast(f"{base}.{name}.{n}", kind).alias(n) for n, kind in inner.items()]
        columns.append(F.struct(*nested).alias(name))
    return columns


def _cast(path: str, kind: str) -> Column:
    """The value of a type; null where the text is none, or is a time out of `TIMES`."""
    from pyspark.sql import functions as F

    text = F.col(path)
    if kind not in PATTERNS:
        return text.try_cast(kind)
    value = F.when(text.rlike(PATTERNS[kind]), text).try_cast(kind)
    first, end = (F.lit(day).cast(kind) for day in TIMES)
    return F.when((value >= first) & (value < end), value)


def _reason(shape: Format, policies: Mapping[str, str]) -> Column:
    """The first thing that is wrong, in the order: JSON, missing fields, values, choices, the same of a record, org."""
    from pyspark.sql import functions as F

    verdicts = [_unparsed("json", F.col("message"), NOT_JSON), *_verdicts(shape, "json", policies=policies)]
    if shape.record:
        name, of = shape.record
        unparsed = _unparsed(RECORD, F.col(f"json.{name}"), f"bad object {name}")
        of_record = F.coalesce(unparsed, *_verdicts(of, RECORD, f"{name}."))
        verdicts.append(F.when(F.col(f"json.{name}").isNotNull(), of_record))
    verdicts.append(F.when(F.col("known_org").isNull(), UNKNOWN_ORG))
    return F.coalesce(*verdicts)


def _unparsed(base: str, text: Column, reason: str) -> Column:
    """The reason if a text is no JSON object. base: the column with what was made of it."""
    from pyspark.sql import functions as F

    return F.when(F.col(base).isNull() | F.col(f"{base}.{_BROKEN}").isNotNull() | ~_ends(text), reason)


def _ends(text: Column) -> Column:
    """Whether nothing is behind the JSON value that a text begins with: what is, Spark's parser does not look at.

    The text is read as the first of two elements. The other is its hash, so no text can end the list in its stead.
    """
    from pyspark.sql import functions as F

    end = F.xxhash64(text).cast("string")
    pair = F.from_json(F.concat(F.lit("["), text, F.lit(","), end, F.lit("]")), "array<string>")
    return F.coalesce(F.get(pair, F.lit(1)) == end, F.lit(False))


def _verdicts(shape: Format, base: str, of: str = "", policies: Mapping[str, str] = _NO_POLICIES) -> list[Column]:
    """What may be wrong with a parsed object. base: its column. of: stands before the names of its fields. policies: as
    for `_columns`.
    """
    from pyspark.sql import functions as F

    def lacks(name: str) -> Column:
        return F.col(f"{base}.{name}").isNull() | (F.trim(f"{base}.{name}") == "")

    verdicts = [F.when(lacks(name), f"missing field {of}{name}") for name in shape.required]
    for name, (other, value) in shape.required_unless.items():
        none = lacks(name) & F.col(policies[name]).isNull() if name in policies else lacks(name)
        verdicts.append(F.when(none & (F.col(f"{base}.{other}") != value), f"missing field {of}{name}"))
    for path, kind in _paths(shape).items():
        noun = "date" if kind in PATTERNS else kind
        no_value = F.col(f"{base}.{path}").isNotNull() & _cast(f"{base}.{path}", kind).isNull()
        verdicts.append(F.when(no_value, f"bad {noun} {of}{path}"))
    for name, (least, greatest) in shape.range.items():
        kind = shape.fields[name]
        verdicts.append(F.when(~_cast(f"{base}.{name}", kind).between(least, greatest), f"bad {kind} {of}{name}"))
    for name, choices in shape.choices.items():
        verdicts.append(F.when(~F.col(f"{base}.{name}").isin(*choices), f"unknown {of}{name}"))
    return verdicts


def _paths(shape: Format) -> dict[str, str]:
    """Every field by its path → its type."""
    name, inner = shape.nested or ("", {})
    return {**shape.fields, **{f"{name}.{n}": kind for n, kind in inner.items()}}
