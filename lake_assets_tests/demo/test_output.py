"""A check prints what holds, and stops the demo if it does not."""

from __future__ import annotations

import pytest

from lake_assets.demo.home import check
from lake_assets.errors import LakeError


def test_a_result_as_expected_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    check("hours 2 and 3 are built", [[2, 3]], [[2, 3]])
    assert capsys.readouterr().out == "  ✓ hours 2 and 3 are built\n"


def test_another_result_stops_the_demo_and_is_named() -> None:
    with pytest.raises(LakeError, match=r"Expected: two rows\. Found 3 instead of 2\.(.|\n)*logs"):
        check("two rows", 3, 2)
