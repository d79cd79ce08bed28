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


def encode(values: Values) -> bytes:
    """Return a message's value: a JSON object in UTF-8, without spaces."""
    return json.dumps(values, separators=(",", ":")).encode()


def flaws(lake: EngagementLake, stream: StreamName) -> tuple[Flaw, ...]:
    """Return every flaw that a message of a stream's topic can have."""
    time_field = TIME_FIELDS[stream]
    common = (
        Flaw(NOT_JSON, lambda values: encode(values)[:-1]),
        Flaw(NOT_JSON, lambda values: NOT_UTF8 + encode(values)),
        _with("missing field org_id", org_id=None),
        _with(f"bad date {time_field}", **{time_field: BAD_VALUE}),
        _with(UNKNOWN_ORG, org_id=UNKNOWN_ORG_ID),
    )
    if stream == "ingestion":
        return common + _flaws_of_engagements(lake)
    if stream == "mutation":
        return common + _flaws_of_mutations()
    return common + _flaws_of_retention()


def _flaws_of_engagements(lake: EngagementLake) -> tuple[Flaw, ...]:
    found = [_with("missing field who_id", who_id=" ")]
    for name, kind in lake.fields.items():
        if kind != "string":
            found.append(_bad_field(name, kind))
    return tuple(found)


def _flaws_of_mutations() -> tuple[Flaw, ...]:
    return (
        _with("unknown op", op=BAD_VALUE, new_id="lead-0"),
        _with("missing field new_id", op="merge", new_id=None),
    )


def _flaws_of_retention() -> tuple[Flaw, ...]:
    return (_with("unknown op", op=BAD_VALUE, ttl_days=1, who_id="lead-0"),)


def _with(reason: str, **changed: Any) -> Flaw:
    return Flaw(reason, lambda values: encode({**values, **changed}))


def _bad_field(name: str, kind: str) -> Flaw:
    noun = "date" if kind in PATTERNS else kind

    def spoil(values: Values) -> bytes:
        engagement = {**values["engagement"], name: BAD_VALUE}
        return encode({**values, "engagement": engagement})

    return Flaw(f"bad {noun} engagement.{name}", spoil)
