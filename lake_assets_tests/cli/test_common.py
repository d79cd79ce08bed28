"""Hours that people write are checked before any work begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lake_assets.cli.common import past_hour
from lake_assets.errors import LakeError

BEGUN = datetime(1970, 1, 1, tzinfo=UTC)


def test_an_hour_that_has_begun_is_taken() -> None:
    now = datetime.now(UTC)
    assert past_hour(f"{now:%Y-%m-%d-%H:00}", where="HOUR") == int((now - BEGUN).total_seconds() // 3600)
    assert past_hour("1970-01-02-03:00", where="HOUR") == 27


@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(days=400), None])
def test_an_hour_of_the_future_is_refused(ahead: timedelta | None) -> None:
    text = "9999-01-01-00:00" if ahead is None else f"{datetime.now(UTC) + ahead + timedelta(hours=1):%Y-%m-%d-%H:00}"
    with pytest.raises(LakeError, match=f"HOUR is {text}, which is in the future"):
        past_hour(text, where="HOUR")


def test_a_text_that_is_no_hour_is_refused() -> None:
    with pytest.raises(LakeError, match="TO is 'soon', which is not an hour key"):
        past_hour("soon", where="TO")
