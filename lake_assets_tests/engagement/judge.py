"""What is wrong with a message, told without Spark: slow, and obvious. For messages as a simulation makes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any

from lake_assets.engagement.messages import PATTERNS, Format


def reason(value: bytes, shape: Format, orgs: Collection[str]) -> str | None:
    """Why a message makes no row; None if it is sound. orgs: those that are known."""
    try:
        values = json.loads(value)
    except ValueError:
        return "not JSON"
    missing = [name for name in shape.required if _lacks(values, name)]
    for name, (other, exempt) in shape.required_unless.items():
        missing += [name] if _lacks(values, name) and values[other] != exempt else []
    if missing:
        return f"missing field {missing[0]}"
    wrong = _bad_value(values, shape) or _bad_choice(values, shape) or _bad_record(values, shape)
    return wrong or (None if values["org_id"] in orgs else "unknown org")


def _lacks(values: Mapping[str, Any], name: str) -> bool:
    return values.get(name) is None or not str(values[name]).strip(" ")


def _bad_value(values: Mapping[str, Any], shape: Format) -> str | None:
    name, inner = shape.nested or ("", {})
    nested = values.get(name) or {}
    fields = [(field, kind, values.get(field)) for field, kind in shape.fields.items()]
    fields += [(f"{name}.{field}", kind, nested.get(field)) for field, kind in inner.items()]
    as_json = shape.record[0] if shape.record else None
    for path, kind, found in fields:
        if path != as_json and found is not None and not _is(found, kind):
            return f"bad {'date' if kind in PATTERNS else kind} {path}"
    return None


def _bad_choice(values: Mapping[str, Any], shape: Format) -> str | None:
    said = {name: values.get(name) for name in shape.choices}
    wrong = (name for name, value in said.items() if value is not None and value not in shape.choices[name])
    return next((f"unknown {name}" for name in wrong), None)


def _bad_record(values: Mapping[str, Any], shape: Format) -> str | None:
    """What is wrong with a record that a request carries: as if it were a message, but for its org."""
    name, of = shape.record or ("", shape)
    if values.get(name) is None:
        return None
    wrong = reason(json.dumps({**values[name], "org_id": "any"}).encode(), of, ("any",))
    kind, _, field = (wrong or "").rpartition(" ")
    return f"{kind} {name}.{field}" if wrong else None


def _is(value: Any, kind: str) -> bool:
    """Whether a value can be read as one of this Spark type."""
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return str(value).lower() in ("true", "false")
    parsers: dict[str, Callable[[str], object]] = {
        "int": int,
        "bigint": int,
        "double": float,
        "date": _moment,
        "timestamp": _moment,
    }
    try:
        parsers[kind](str(value))
    except ValueError:
        return False
    return kind not in PATTERNS or re.search(PATTERNS[kind], str(value)) is not None


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
