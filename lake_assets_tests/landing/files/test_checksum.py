"""Checksums against a plain sum of hashes; and every change of the records that must show."""

from __future__ import annotations

import hashlib
import random

from hypothesis import assume, given
from hypothesis import strategies as st

from lake_assets.landing.records import Checksum, Record, checksum

RECORDS = st.lists(st.binary(max_size=4), max_size=8)
NAMES = st.text(st.characters(codec="utf-8"), max_size=3)
FIELD = st.none() | st.binary(max_size=3)
MESSAGES = st.builds(
    Record,
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    FIELD,
    FIELD,
    st.lists(st.tuples(NAMES, FIELD), max_size=2).map(tuple),
)


@given(RECORDS)
def test_it_is_the_count_and_the_sum_of_hashes(records: list[bytes]) -> None:
    total = sum(int(hashlib.sha256(record).hexdigest(), 16) for record in records)
    assert checksum(iter(records)) == Checksum(len(records), total % 2**256)


@given(RECORDS, RECORDS, st.randoms(use_true_random=False))
def test_parts_add_up_in_any_order(some: list[bytes], others: list[bytes], chance: random.Random) -> None:
    whole = some + others
    chance.shuffle(whole)
    assert checksum(some) + checksum(others) == checksum(whole)
    assert checksum(whole) - checksum(others) == checksum(some)


@given(RECORDS, st.data())
def test_a_record_that_is_missing_doubled_or_changed_shows(records: list[bytes], data: st.DataObject) -> None:
    assume(records)
    place = data.draw(st.integers(0, len(records) - 1))
    changed = data.draw(st.binary(max_size=4).filter(lambda found: found != records[place]))
    before, after, here = records[:place], records[place + 1 :], records[place]
    wrong = [before + after, [*records, here], [*before, changed, *after]]
    assert checksum(records) not in [checksum(found) for found in wrong]


def test_an_even_number_of_equal_changes_shows() -> None:
    assert checksum([b"a", b"a", b"c"]) != checksum([b"b", b"b", b"c"])


@given(MESSAGES, MESSAGES)
def test_canonical_bytes_are_equal_if_and_only_if_records_are(one: Record, other: Record) -> None:
    assert (one.canonical == other.canonical) == (one == other)
    assert one.size == len(one.canonical)


def test_what_lies_between_two_fields_is_not_lost() -> None:
    bare = Record(0, 0, 0, None, None)
    alike = [
        bare,
        bare._replace(key=b""),
        bare._replace(value=b""),
        bare._replace(key=b"ab", value=b"c"),
        bare._replace(key=b"a", value=b"bc"),
        bare._replace(headers=(("a", b"b"),)),
        bare._replace(headers=(("a", b""), ("b", b""))),
        bare._replace(headers=(("b", b""), ("a", b""))),
        bare._replace(headers=(("a", None),)),
    ]
    assert len({record.canonical for record in alike}) == len(alike)
