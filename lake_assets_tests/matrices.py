"""Which cases of a matrix are played by each `make test`, and which by `make faults`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_now(cases: Iterable[Any]) -> list[Any]:
    """Parameters of a test: the first case as it is, the others for `make faults`."""
    first, *rest = cases
    return [first, *(pytest.param(case, marks=pytest.mark.faults) for case in rest)]
