"""Moments as Kafka and the manifest store them."""

from __future__ import annotations

from datetime import UTC, datetime

from lake_assets.base.hours import from_milliseconds, is_moment, milliseconds


def test_a_moment_is_stored_in_milliseconds_and_its_fraction_is_cut_off() -> None:
    at = datetime(2026, 1, 1, 0, 0, 0, 1_999, UTC)
    assert milliseconds(at) == 1_767_225_600_001
    assert from_milliseconds(1_767_225_600_001) == datetime(2026, 1, 1, 0, 0, 0, 1_000, UTC)


def test_a_moment_lies_in_the_years_1_to_9999() -> None:
    first, last = -62_135_596_800_000, 253_402_300_799_999
    assert [is_moment(at) for at in (first - 1, first, last, last + 1)] == [False, True, True, False]
