"""Nodes that serving cannot have left are named, and names that the format cannot hold are refused."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime

import pytest

from lake_assets.errors import ServingError, UsageError
from lake_assets.serving.lineage import LineageEntry, SegmentLineage, State
from lake_assets.serving.registry import (
    SegmentInfo,
    checked_table,
    decode_lineage,
    decode_segment,
    encode_lineage,
    encode_segment,
)

AT = datetime(2026, 1, 1, 1, 2, 3, 456_000, UTC)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not JSON",
        b"[]",
        b"{}",
        b'{"id": "t", "mapFields": {}, "listFields": []}',
        b'{"id": "t", "mapFields": {}, "listFields": {"e": ["a", "b", "COMPLETED"]}}',
        b'{"id": "t", "mapFields": {}, "listFields": {"e": ["a", "b", "DONE", "1"]}}',
        b'{"id": "t", "mapFields": {}, "listFields": {"e": ["a", "b", "COMPLETED", "soon"]}}',
        b'{"id": "t", "mapFields": {}, "listFields": {"e": ["a", "b", "COMPLETED", "99999999999999999999"]}}',
        gzip.compress(b"not JSON", mtime=0),
        gzip.compress(b"{}" * 1000, mtime=0)[:-10],
    ],
)
def test_a_damaged_node_is_named(data: bytes) -> None:
    with pytest.raises(ServingError, match="/the/path"):
        decode_lineage(data, "/the/path")
    with pytest.raises(ServingError, match="/the/path"):
        decode_segment(data, "/the/path")


@pytest.mark.parametrize("name", ["", "a,b", "../a", "a/b", ".a"])
def test_a_name_that_the_format_or_a_folder_cannot_hold_is_refused(name: str) -> None:
    entry = LineageEntry("e", (), (name,), State.IN_PROGRESS, AT)
    with pytest.raises(UsageError, match="is not a valid name for a segment"):
        encode_lineage(SegmentLineage("t", {"e": entry}))


@pytest.mark.parametrize("name", ["account_state", "airlineStats", "_t", "T", "1a", "orders-eu", "sales.orders"])
def test_names_of_tables_are_as_pinot_has_them(name: str) -> None:
    assert checked_table(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-a",
        "a.b.c",
        ".a",
        "a.",
        "a..b",
        "main.t",
        "pg_catalog.t",
        "a b",
        "a/b",
        "../a",
        'a"b',
        "a;b",
        "a\n",
        "ä",
        "İ",
        "airlineStats_OFFLINE",
        "a_REALTIME",
    ],
)
def test_a_name_that_is_not_a_plain_identifier_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid name for a table"):
        checked_table(name)


@pytest.mark.parametrize("head", [None, "7@2026-01-01-00:00"])
def test_a_segment_comes_back_as_it_was(head: str | None) -> None:
    info = SegmentInfo("t_0", 3, 99, "ab", AT, "e", head)
    assert decode_segment(encode_segment(info), "") == info
