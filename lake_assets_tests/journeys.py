"""Which cases of a matrix are played by each `make test`, and which by `make journeys` or `make faults`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_now(cases: Iterable[Any], others: pytest.MarkDecorator = pytest.mark.journey) -> list[Any]:
    """Parameters of a test: the first case as it is, the others with a mark."""
    first, *rest = cases
    return [first, *(pytest.param(case, marks=others) for case in rest)]
