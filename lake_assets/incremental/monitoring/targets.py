"""Which targets are not as their sessions left them: dropped, replaced, or rolled back.

Read from metadata alone, so a problem is known while nothing runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lake_assets.errors import TargetError

if TYPE_CHECKING:
    from lake_assets.incremental.execution.engine import Engine


def target_problems(engine: Engine) -> list[TargetError]:
    """Return the problem of each target that has one, upstream targets first."""
    found = []
    for target in engine.pipeline.in_order():
        problem = engine.problem(target)
        if problem is not None:
            found.append(problem)
    return found
