"""The formats of Kafka messages, and their validation: typed columns, or the reason that the dead-letter table shows.

Validation uses Spark expressions only, with no clock and no lookup but the orgs registered when the batch began. So a
message that is validated again gets the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING

from lake_assets.engagement.lake import EngagementLake
from lake_assets.engagement.requests import OPS, PERSON, RETENTION_OPS, SENT_AT, TTL_DAYS
from lake_assets.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

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
"""Accepted dates and times: from the first day, inclusive, to the second, exclusive. So all are times of nanoseconds in
64 bits (1677 to 2262), which other readers of the tables have, and so is a cut-off, up to `TTL_DAYS` earlier."""


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
        people: SQL of the id of a person → SQL of the time of the statement about that person.
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

    def without(self, field: str) -> Format:
        """Return the format without a field that earlier versions did not know."""
        fields = {name: kind for name, kind in self.fields.items() if name != field}
        choices = {name: values for name, values in self.choices.items() if name != field}
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
    is_taken = SENT_AT in map(str.lower, lake.message_keys.values())
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
            SENT_AT: "timestamp",
            **dict.fromkeys(lake.further_ids, "string"),
        },
        required=("org_id", "engagement_id", "who_id", "kind", "engaged_at"),
        nested=("engagement", lake.fields),
        people={"who_id": _earliest("engaged_at", SENT_AT)},
        keys={**({SENT_AT: f"_lake_{SENT_AT}"} if is_taken else {}), **lake.message_keys},
    )


def record_format(lake: EngagementLake) -> Format:
    """Return the format of an engagement that a mutation request carries. It belongs to the request's org."""
    engagement = ingestion_format(lake)
    fields = dict(engagement.fields)
    del fields["org_id"], fields[SENT_AT]  # a record is sent when its request is executed
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
            f"{RECORD}.{PERSON}": _earliest(f"{RECORD}.engaged_at", "executed_at"),
        },
        keys=lake.message_keys,
    )


def _earliest(engaged_at: str, sent_at: str) -> str:
    """Return the time of which an engagement tells as SQL, null if it is not known when it happened."""
    return f"CASE WHEN {engaged_at} IS NOT NULL THEN least({engaged_at}, {sent_at}) END"


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


_JSON = "json"
_TYPED_SUFFIX = "_typed"
"""Suffix of the column with the same JSON object as a variant, which knows the JSON type of each value."""

_CORRUPT = "_broken"
_POLICY_PREFIX = "policy_"
_PLACE = ("topic", "partition", "offset")


def validate_messages(messages: DataFrame, message_format: Format, orgs: DataFrame) -> DataFrame:
    """Parse messages and validate them against a format.

    Args:
        messages: topic string, partition int, offset long, value binary.
        orgs: org_id string of the registered orgs, and columns for policies of the format. An org is in one row if it
            has policies.

    Returns:
        topic, partition, offset, message string, reason string (null for a valid message), the format's columns with
        their types, and the struct `RECORD` if the format has a record.
    """
    from pyspark.sql import functions as F

    text = F.col("value").cast("string")
    policies = {name: f"{_POLICY_PREFIX}{name}" for name in message_format.policies if name in orgs.columns}
    json_object = _ParsedObject(_JSON, message_format, policies=policies)
    parsed = messages.select(
        *_PLACE,
        F.make_valid_utf8(text).alias("message"),
        *_parse(text, message_format, _JSON),
    )
    columns = json_object.columns()
    if message_format.record:
        name, format_of_record = message_format.record
        record = _parse(json_object.text(name), format_of_record, RECORD)
        parsed = parsed.select("*", *record)
        columns.append(_typed_record(format_of_record).alias(RECORD))
    policy_columns = [F.col(name).alias(column) for name, column in policies.items()]
    registered = orgs.select(F.col("org_id").alias("known_org"), *policy_columns).distinct()
    same_org = F.col(f"{_JSON}.org_id") == F.col("known_org")
    joined = parsed.join(F.broadcast(registered), same_org, "left")
    return joined.select(*_PLACE, "message", _reason(json_object).alias("reason"), *columns)


def reject_messages(messages: DataFrame, validated: StructType, reason: str, *, keeps_text: bool) -> DataFrame:
    """Return messages as invalid ones, without parsing them.

    Args:
        messages: As for `validate_messages`.
        validated: The columns that `validate_messages` returns; those of the format are null.
        keeps_text: Whether the text of the messages is returned.
    """
    from pyspark.sql import functions as F

    text = F.make_valid_utf8(F.col("value").cast("string")) if keeps_text else F.lit(None).cast("string")
    known = {"message": text, "reason": F.lit(reason)}
    columns = []
    for column in validated.fields:
        is_place = column.name in _PLACE
        value = F.col(column.name) if is_place else known.get(column.name, F.lit(None).cast(column.dataType))
        columns.append(value.alias(column.name))
    return messages.select(*columns)


def with_typed_record(rows: DataFrame, column: str, record_format: Format) -> DataFrame:
    """Return the rows with the struct `RECORD`: typed values of the JSON object in a text column."""
    from pyspark.sql import functions as F

    parsed = rows.select("*", *_parse(F.col(column), record_format, RECORD))
    typed = parsed.withColumn(RECORD, _typed_record(record_format))
    return typed.drop(f"{RECORD}{_TYPED_SUFFIX}")


def _typed_record(record_format: Format) -> Column:
    from pyspark.sql import functions as F

    return F.struct(*_ParsedObject(RECORD, record_format).columns())


def _parse(text: Column, message_format: Format, column: str) -> tuple[Column, Column]:
    """Parse a JSON object with all values as text, which distinguishes a bad value from a missing one.

    Returns:
        The object as the given column, and the same as a variant.
    """
    from pyspark.sql import functions as F

    fields = [f"`{message_format.key(name)}` string" for name in message_format.fields]
    fields.append(f"{_CORRUPT} string")
    if message_format.nested:
        name, inner = message_format.nested
        inner_fields = ", ".join(f"{inner_name}: string" for inner_name in inner)
        fields.append(f"{name} struct<{inner_fields}>")
    valid = F.try_validate_utf8(text)
    parsed = F.from_json(valid, ", ".join(fields), {"columnNameOfCorruptRecord": _CORRUPT})
    return parsed.alias(column), F.try_parse_json(valid).alias(f"{column}{_TYPED_SUFFIX}")


def _reason(json_object: _ParsedObject) -> Column:
    """Return the first failed check, in the order: JSON, fields, the same of the record, org."""
    from pyspark.sql import functions as F

    checks = [json_object.check_parsed(F.col("message"), NOT_JSON), *json_object.check_fields()]
    if json_object.format.record:
        name, format_of_record = json_object.format.record
        text = json_object.text(name)
        key = json_object.format.key(name)
        record = _ParsedObject(RECORD, format_of_record, label=f"{key}.")
        record_checks = [record.check_parsed(text, f"bad object {key}"), *record.check_fields()]
        checks.append(F.when(text.isNotNull(), F.coalesce(*record_checks)))
    checks.append(F.when(F.col("known_org").isNull(), UNKNOWN_ORG))
    return F.coalesce(*checks)


@dataclass(frozen=True)
class _ParsedObject:
    """A column with a parsed JSON object, whose values are texts.

    Attributes:
        label: Prefix of the field names in reasons.
        policies: Field → column with the value that the org has registered.
    """

    column: str
    format: Format
    label: str = ""
    policies: Mapping[str, str] = field(default_factory=dict)

    def text(self, path: str) -> Column:
        from pyspark.sql import functions as F

        return F.col(f"{self.column}.{self.format.key(path)}")

    def columns(self) -> list[Column]:
        """Return the typed values, each under the name of its field."""
        from pyspark.sql import functions as F

        columns = []
        for name, kind in self.format.fields.items():
            value = self._cast(self.text(name), kind)
            if name in self.policies:
                value = F.coalesce(value, self.policies[name])
            columns.append(value.alias(name))
        if self.format.nested:
            name, inner = self.format.nested
            nested = [self._cast(self.text(f"{name}.{part}"), kind).alias(part) for part, kind in inner.items()]
            columns.append(F.struct(*nested).alias(name))
        return columns

    def _cast(self, text: Column, kind: str) -> Column:
        """Return the typed value; null if the text has no such value, or a time outside `TIMES`."""
        from pyspark.sql import functions as F

        if kind not in PATTERNS:
            return text.try_cast(kind) if self.format.is_of_old_batch else _typed(text, kind)
        usual = F.when(text.rlike(USUAL[kind]), text) if self.format.is_of_old_batch else _as_usual(text, kind)
        value = usual.try_cast(kind)
        first, end = (F.lit(day).cast(kind) for day in TIMES)
        return F.when((value >= first) & (value < end), value)

    def check_parsed(self, text: Column, reason: str) -> Column:
        """Return the reason if the text is no JSON object."""
        from pyspark.sql import functions as F

        is_null = F.col(self.column).isNull()
        is_corrupt = self.text(_CORRUPT).isNotNull()
        return F.when(is_null | is_corrupt | ~_ends_after_first_value(text), reason)

    def check_fields(self) -> list[Column]:
        """Return the checks of all fields, each null if it passes: missing fields, types, ranges, choices."""
        return [
            *self._check_required(),
            *self._check_types(),
            *self._check_ranges(),
            *self._check_choices(),
        ]

    def _check_required(self) -> list[Column]:
        from pyspark.sql import functions as F

        checks = [F.when(self._is_blank(name), self._missing(name)) for name in self.format.required]
        for name, (other, value) in self.format.required_unless.items():
            is_missing = self._is_blank(name)
            if name in self.policies:
                is_missing &= F.col(self.policies[name]).isNull()
            checks.append(F.when(is_missing & (self.text(other) != value), self._missing(name)))
        return checks

    def _check_types(self) -> list[Column]:
        from pyspark.sql import functions as F

        checks = []
        for path, kind in self.format.paths.items():
            text = self.text(path)
            is_bad = text.isNotNull() & (self._cast(text, kind).isNull() | self._is_no_string(path, kind))
            noun = "date" if kind in PATTERNS else kind
            checks.append(F.when(is_bad, f"bad {noun} {self._shown(path)}"))
        return checks

    def _is_no_string(self, path: str, kind: str) -> Column:
        """Return whether a field of text has a number, an object or the like; false for other fields."""
        from pyspark.sql import functions as F

        is_json_of_record = self.format.record is not None and path == self.format.record[0]
        if kind != "string" or is_json_of_record:
            return F.lit(False)
        value = F.try_variant_get(f"{self.column}{_TYPED_SUFFIX}", f"$.{self.format.key(path)}", "variant")
        return F.coalesce(F.schema_of_variant(value) != "STRING", F.lit(False))

    def _check_ranges(self) -> list[Column]:
        from pyspark.sql import functions as F

        checks = []
        for name, (minimum, maximum) in self.format.range.items():
            kind = self.format.fields[name]
            is_outside = ~self._cast(self.text(name), kind).between(minimum, maximum)
            checks.append(F.when(is_outside, f"bad {kind} {self._shown(name)}"))
        return checks

    def _check_choices(self) -> list[Column]:
        from pyspark.sql import functions as F

        checks = []
        for name, choices in self.format.choices.items():
            is_unknown = ~self.text(name).isin(*choices)
            checks.append(F.when(is_unknown, f"unknown {self._shown(name)}"))
        return checks

    def _is_blank(self, name: str) -> Column:
        from pyspark.sql import functions as F

        text = self.text(name)
        return text.isNull() | (F.trim(text) == "")

    def _missing(self, name: str) -> str:
        return f"missing field {self._shown(name)}"

    def _shown(self, path: str) -> str:
        return f"{self.label}{self.format.key(path)}"


def _typed(text: Column, kind: str) -> Column:
    """Return the value by the rules of `base/values.py`; null if the text has none."""
    from pyspark.sql import functions as F

    if kind == "boolean":
        return F.when(F.lower(text).isin("true", "false"), text.try_cast(kind))
    value = text.try_cast(kind)
    if kind not in ("double", "float"):
        return value
    is_finite = ~F.isnan(value) & (F.abs(value) != F.lit(float("inf")))
    return F.when(is_finite, value)


def _as_usual(text: Column, kind: str) -> Column:
    """Return the text of a date or time as Spark reads it; null if it is none."""
    from pyspark.sql import functions as F

    def part(number: int, missing: str) -> Column:
        found = F.regexp_extract(text, TIME_PARTS, number)
        return F.when(found == "", missing).otherwise(found)

    day = F.concat(part(1, ""), F.lit("-"), part(2, ""), F.lit("-"), part(3, ""))
    clock = F.concat(part(4, "00"), F.lit(":"), part(5, "00"), F.lit(":"), part(6, "00"), F.lit("."), part(7, "0"))
    zone = F.concat(part(8, "+00"), F.lit(":"), part(9, "00"))
    whole = day if kind == "date" else F.concat(day, F.lit("T"), clock, zone)
    return F.when(text.rlike(USUAL[kind]), text).when(text.rlike(PATTERNS[kind]), whole)


def _ends_after_first_value(text: Column) -> Column:
    """Return whether the text ends after its first JSON value. Spark's parser ignores what follows that value.

    The text is parsed as the first of two list elements. The second is a hash of the text, so no text can fake it.
    """
    from pyspark.sql import functions as F

    text_hash = F.xxhash64(text).cast("string")
    pair = F.from_json(F.concat(F.lit("["), text, F.lit(","), text_hash, F.lit("]")), "array<string>")
    second = F.get(pair, F.lit(1))
    return F.coalesce(second == text_hash, F.lit(False))
