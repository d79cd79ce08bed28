"""The possible flaws of a message, with the reason that each one gives its dead letter. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lake_assets.engagement.model.lake import EngagementLake, StreamName
from lake_assets.engagement.model.messages import NOT_JSON, PATTERNS, UNKNOWN_ORG

Values = Mapping[str, Any]
"""The fields of a message."""

RECORD_FIELD = "insert_record"
UNKNOWN_ORG_ID = "nobody"
BAD_VALUE = "soon"
"""Neither a date, nor a number, nor an operation."""

NOT_UTF8 = b"\xff\xfe"
TIME_FIELDS: Mapping[StreamName, str] = {
    "ingestion": "engaged_at",
    "mutation": "executed_at",
    "retention": "requested_at",
}


@dataclass(frozen=True)
class Flaw:
    """One way in which a message can be wrong.

    Attributes:
        reason: Reason of the dead letter.
        spoil: Takes the values of a sound message and returns the bytes of a message with this flaw alone.
    """

    reason: str
    spoil: Callable[[Values], bytes]


def encode(values: Values, lake: EngagementLake) -> bytes:
    """Return a message's value: a JSON object in UTF-8, without spaces, with the keys of the lake's messages."""
    named = _renamed(values, lake.message_keys, RECORD_FIELD)
    return json.dumps(named, separators=(",", ":")).encode()


def decode(value: bytes, lake: EngagementLake) -> Values:
    """Return the fields of a valid message."""
    names = {key: name for name, key in lake.message_keys.items()}
    return _renamed(json.loads(value), names, lake.message_key(RECORD_FIELD))


def _renamed(values: Values, names: Mapping[str, str], record: str) -> dict[str, Any]:
    """Return values under other names, also those of the record that they contain under the name `record`."""
    found = {names.get(name, name): value for name, value in values.items()}
    if values.get(record):
        found[names.get(record, record)] = _renamed(values[record], names, record)
    return found


def flaws(lake: EngagementLake, stream: StreamName) -> tuple[Flaw, ...]:
    """Return every flaw that a message of a stream's topic can have."""
    time_field = TIME_FIELDS[stream]
    common = (
        Flaw(NOT_JSON, lambda values: encode(values, lake)[:-1]),
        Flaw(NOT_JSON, lambda values: NOT_UTF8 + encode(values, lake)),
        _with(lake, "missing field org_id", org_id=None),
        _with(lake, f"bad date {lake.message_key(time_field)}", **{time_field: BAD_VALUE}),
        _with(lake, UNKNOWN_ORG, org_id=UNKNOWN_ORG_ID),
    )
    if stream == "ingestion":
        return common + _flaws_of_engagements(lake)
    if stream == "mutation":
        return common + _flaws_of_mutations(lake)
    return common + _flaws_of_retention(lake)


def _flaws_of_engagements(lake: EngagementLake) -> tuple[Flaw, ...]:
    found = [_with(lake, f"missing field {lake.message_key('who_id')}", who_id=" ")]
    for name, kind in lake.fields.items():
        if kind != "string":
            found.append(_bad_field(lake, name, kind))
    return tuple(found)


def _flaws_of_mutations(lake: EngagementLake) -> tuple[Flaw, ...]:
    return (
        _with(lake, f"unknown {lake.message_key('op')}", op=BAD_VALUE, new_id="lead-0"),
        _with(lake, f"missing field {lake.message_key('new_id')}", op="merge", new_id=None),
    )


def _flaws_of_retention(lake: EngagementLake) -> tuple[Flaw, ...]:
    return (_with(lake, f"unknown {lake.message_key('op')}", op=BAD_VALUE, ttl_days=1, who_id="lead-0"),)


def _with(lake: EngagementLake, reason: str, **changed: Any) -> Flaw:
    return Flaw(reason, lambda values: encode({**values, **changed}, lake))


def _bad_field(lake: EngagementLake, name: str, kind: str) -> Flaw:
    noun = "date" if kind in PATTERNS else kind

    def spoil(values: Values) -> bytes:
        engagement = {**values["engagement"], name: BAD_VALUE}
        return encode({**values, "engagement": engagement}, lake)

    return Flaw(f"bad {noun} engagement.{name}", spoil)
