"""What two files say of each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lake_assets.landing.records import DataFile, checksum, compare

ONE = DataFile("one", 10, "s", {0: (0, 9), 3: (5, 5)}, frozenset({"r1"}), 2, checksum([b"a", b"b"]))


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "match"),
        ({"name": "other", "size": 11, "zone": "b", "kind": "columnar", "made_from": ("x",)}, "match"),
        ({"ranges": {3: (5, 5), 0: (0, 9)}}, "match"),
        ({"checksum": checksum([b"a", b"c"])}, "corrupt"),
        ({"count": 3}, "corrupt"),
        ({"shard": "t"}, "wait"),
        ({"ranges": {0: (0, 8), 3: (5, 5)}}, "wait"),
        ({"ranges": {0: (0, 9)}}, "wait"),
        ({"deletions": frozenset()}, "wait"),
        ({"deletions": frozenset({"r1", "r2"}), "count": 1, "checksum": checksum([b"a"])}, "wait"),
    ],
)
def test_only_what_must_be_equal_is_compared(changed: dict[str, object], verdict: str) -> None:
    other = replace(ONE, **changed)  # type: ignore[arg-type]
    assert (compare(ONE, other), compare(other, ONE)) == (verdict, verdict)
