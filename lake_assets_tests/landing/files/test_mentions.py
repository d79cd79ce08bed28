"""Whom a dead letter may be of: what the certificate of an erasure would find in it, however it is spelled."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.id_matcher import Words
from lake_assets.landing.records import PIECES, Record, mentions, stretches

LETTERS = st.text(alphabet='ab1_-é .@"{+\n', max_size=12)
IDS = st.text(alphabet="ab1_-é .@+", min_size=1, max_size=PIECES)
WHO = "account-17"


@given(before=LETTERS, who=IDS, after=LETTERS)
def test_a_stretch_is_what_the_certificate_takes_for_a_word(before: str, who: str, after: str) -> None:
    text = before + who + after
    assert (who in set(stretches(text))) == bool(Words(who).count(text))


@pytest.mark.parametrize(
    ("record", "of"),
    [
        ({"value": f"torn {{'account_id': '{WHO}', ".encode()}, True),
        ({"value": f"{WHO}0 x{WHO} {WHO}-b".encode()}, False),
        ({"value": b"\xff\xfe " + WHO.encode() + b" \xff"}, True),
        ({"value": json.dumps({"note": ["of " + WHO]}).replace("a", "\\u0061").encode()}, True),
        ({"key": WHO.encode()}, True),
        ({"headers": (("source", None), ("who", WHO.encode()))}, True),
        ({"headers": ((WHO, None),)}, True),
        ({}, False),
        ({"value": b"[" * 5_000}, False),
        ({"value": b'["\\ud800"]'}, False),
    ],
)
def test_every_part_of_a_record_is_looked_into(record: dict[str, object], of: bool) -> None:
    found = Record(**{"partition": 0, "offset": 0, "timestamp": 0, "key": None, "value": None, **record})  # type: ignore[arg-type]
    assert (WHO in set(mentions(found))) == of


def test_an_id_of_many_pieces_is_found_where_it_is_a_whole_text() -> None:
    who = ".".join("abcdefgh")
    assert who in set(mentions(Record(0, 0, 0, None, json.dumps({"id": who}).encode())))
    assert who not in set(stretches(f"of {who}"))
