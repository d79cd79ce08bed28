"""The clock of a test that moves it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pytest

from lake_assets.incremental.engine.engine import utc_now


@dataclass
class Hands:
    """A clock that a test moves; Dagster's own times are those of the real one."""

    now: datetime

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Hands:
    return Hands(utc_now())
