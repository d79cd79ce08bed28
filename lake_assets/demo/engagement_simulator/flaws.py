"""What can be wrong with a message, each with the reason that its dead letter gets. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lake_assets.engagement.model.lake import EngagementLake, StreamName
from lake_assets.engagement.model.messages import NOT_JSON, PATTERNS, UNKNOWN_ORG

Values = Mapping[str, Any]
NOBODY = "nobody"
NONSENSE = "soon"
TIME_FIELDS: Mapping[StreamName, str] = {
    "ingestion": "engaged_at",
    "mutation": "executed_at",
    "retention": "requested_at",
}


@dataclass(frozen=True)
class Flaw:
    """reason: of the dead letter. spoil: a sound message's values → the bytes of one with this flaw alone."""

    reason: str
    spoil: Callable[[Values], bytes]


def encode(values: Values) -> bytes:
    """A message's value: a JSON object in UTF-8, without spaces."""
    return json.dumps(values, separators=(",", ":")).encode()


def flaws(lake: EngagementLake, stream: StreamName) -> tuple[Flaw, ...]:
    """Every flaw that a message of a stream's topic can have here."""
    time = TIME_FIELDS[stream]
    common = (
        Flaw(NOT_JSON, lambda values: encode(values)[:-1]),
        Flaw(NOT_JSON, lambda values: b"\xff\xfe" + encode(values)),
        _with("missing field org_id", org_id=None),
        _with(f"bad date {time}", **{time: NONSENSE}),
        _with(UNKNOWN_ORG, org_id=NOBODY),
    )
    return common + (_of_engagements(lake) if stream == "ingestion" else _of_requests(stream))


def _of_engagements(lake: EngagementLake) -> tuple[Flaw, ...]:
    blank = _with("missing field who_id", who_id=" ")
    typed = [(name, kind) for name, kind in lake.fields.items() if kind != "string"]
    return (blank, *(_bad_field(name, kind) for name, kind in typed))


def _of_requests(stream: StreamName) -> tuple[Flaw, ...]:
    if stream == "retention":
        return (_with("unknown op", op=NONSENSE, ttl_days=1, who_id="lead-0"),)
    return _with("unknown op", op=NONSENSE, new_id="lead-0"), _with("missing field new_id", op="merge", new_id=None)


def _with(reason: str, **changed: Any) -> Flaw:
    return Flaw(reason, lambda values: encode({**values, **changed}))


def _bad_field(name: str, kind: str) -> Flaw:
    noun = "date" if kind in PATTERNS else kind
    spoilt = {name: NONSENSE}
    return Flaw(
        f"bad {noun} engagement.{name}",
        lambda values: encode({**values, "engagement": {**values["engagement"], **spoilt}}),
    )
