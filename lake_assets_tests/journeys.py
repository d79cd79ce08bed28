"""Which cases of a matrix are played by each `make test`, and which by `make journeys`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_now(cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the first case as it is, the others as journeys."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.journey) for case in others)]
