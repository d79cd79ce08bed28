"""Occurrences of an id in decoded data: whole words, at any depth, also behind escapes of JSON."""

from __future__ import annotations

import pytest

from lake_assets.base.id_matcher import IdMatcher


@pytest.mark.parametrize(
    ("value", "occurrences"),
    [
        ("a1", 1),
        ("a1, a1 x", 2),
        ("a10 ba1 a1-b", 0),
        (b"id=a1", 1),
        (b"\xffa1\xffa10", 2),
        (r'{"id": "\u00611"}', 1),
        (rb'["\u00611", "a\u0031"]', 2),
        (r"\u00611 is not JSON", 0),
        ({"a1": ["a1", {"x": b"a1"}], "y": 1}, 3),
        ([("a1",), None, 2.5], 1),
        (7, 0),
    ],
)
def test_occurrences_are_counted(value: object, occurrences: int) -> None:
    assert IdMatcher("a1").in_value(value) == occurrences
