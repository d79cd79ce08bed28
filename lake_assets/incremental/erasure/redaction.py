"""Removal of an id from the engine's own tables: rows in quarantine, and samples of audits in `etl.session`."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from itertools import groupby
from operator import itemgetter
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, In, NotNull

from lake_assets.base.id_matcher import IdMatcher, id_pattern
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import QUARANTINE, session_table

ERASED = "(erased)"
"""Replaces a key with the id in the sample of an audit."""


def delete_quarantined_rows(catalog: Catalog, matcher: IdMatcher) -> int:
    """Delete the rows in quarantine that have one of the ids in any column; a number, in a column of ids.

    Returns:
        How many rows were deleted.
    """
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(catalog, QUARANTINE)
            rows = table.scan(selected_fields=("row_hash", "row")).to_arrow()
            hashes = [row["row_hash"] for row in rows.to_pylist() if _has_id(row["row"], matcher)]
            if hashes:
                with iceberg.leaving_no_files(catalog, table):
                    table.delete(In("row_hash", set(hashes)))  # type: ignore[call-arg, arg-type]
            return len(hashes)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _has_id(row: str | None, matcher: IdMatcher) -> bool:
    columns: dict[str, Any] = json.loads(row or "{}")
    if any(matcher.is_id(columns.get(name)) for name in matcher.columns):
        return True
    return any(isinstance(value, str) and value in matcher.words for value in columns.values())


def redact_audit_samples(catalog: Catalog, ids: Collection[str]) -> int:
    """Replace the keys that mention one of the ids in samples of audits by `ERASED`; results and counts are kept.

    Returns:
        How many rows of `etl.session` mentioned it.
    """
    by_process, pattern = itemgetter("process_name"), id_pattern(*ids)
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(catalog, session_table(catalog))
            rows = table.scan(NotNull("audits")).to_arrow()  # type: ignore[call-arg, arg-type]
            stored = rows.to_pylist()
            mentioning = [row for row in stored if _mentions(row["audits"], pattern)]
            moves = {_move(row) for row in mentioning}
            # A session that an audit stopped has the number of the next one.
            rewritten = [row for row in stored if _move(row) in moves]
            with table.transaction() as transaction:
                for process, group in groupby(sorted(rewritten, key=by_process), key=by_process):
                    redacted = [_redacted(row, pattern) for row in group]
                    revisions = {row["revision"] for row in redacted}
                    same_rows = And(
                        EqualTo("process_name", process),  # type: ignore[call-arg, arg-type]
                        In("revision", revisions),  # type: ignore[call-arg, arg-type]
                    )
                    replacement = rows.from_pylist(redacted, schema=rows.schema)
                    transaction.overwrite(replacement, overwrite_filter=same_rows)
            return len(mentioning)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _move(row: dict[str, Any]) -> tuple[str, int]:
    return row["process_name"], row["revision"]


def _mentions(audits: str | None, pattern: re.Pattern[str]) -> bool:
    keys = [key for audit in json.loads(audits or "[]") for key in audit["sample"]]
    return any(pattern.search(key) for key in keys)


def _redacted(row: dict[str, Any], pattern: re.Pattern[str]) -> dict[str, Any]:
    audits = json.loads(row["audits"])
    for audit in audits:
        audit["sample"] = [ERASED if pattern.search(key) else key for key in audit["sample"]]
    return row | {"audits": json.dumps(audits, ensure_ascii=False, separators=(",", ":"))}
