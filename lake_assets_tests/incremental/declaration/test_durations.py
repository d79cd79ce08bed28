"""Durations as text."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import RawTable
from lake_assets.incremental.declaration.model import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30 minutes", 1800), ("1 minute", 60), (" 2 hours ", 7200), ("90seconds", 90), ("1 day", 86400), ("0 hours", 0)],
)
def test_a_number_and_a_unit_are_a_duration(text: str, seconds: int) -> None:
    assert parse_duration(text, where="it") == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "30", "minutes", "-5 minutes", "1.5 hours", "2 weeks", "1 hour 30 minutes", 30])
def test_anything_else_is_refused_with_its_value(text: object) -> None:
    with pytest.raises(ConfigurationError, match=r"complete_after= of prod\.events is .*no duration.*\n.*30 minutes"):
        RawTable("prod.events", time_column="at", complete_after=text)  # type: ignore[arg-type]
