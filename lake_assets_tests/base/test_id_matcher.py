"""Occurrences of an id in decoded data: whole words, at any depth, also behind escapes of JSON."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.id_matcher import IdMatcher, Words


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


SIGNS = "ab1_-é .]^"


@given(st.lists(st.text(SIGNS, min_size=1, max_size=4), max_size=6), st.text(SIGNS, max_size=12))
def test_any_number_of_ids_is_found_as_one_pattern_finds_them(ids: list[str], text: str) -> None:
    longest_first = sorted(map(re.escape, ids), key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(longest_first)})(?![\w-])")
    assert Words(*ids).count(text) == (len(pattern.findall(text)) if ids else 0)
