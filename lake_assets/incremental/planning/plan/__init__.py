"""Which hours to rebuild, and why. Pure: no I/O, no clock, no table.

The input is what changed in each source, what the target has committed, and its mode. The result is a session plan, or
the reason why there is no session. `decide_session` decides: it takes the changed hours from `changed_hours`, and the
range that must be rebuilt for them from `hour_ranges`.

May import `incremental.declaration` and the rest of `incremental.planning`.
"""

from lake_assets.incremental.planning.plan.after_session import committed_after
from lake_assets.incremental.planning.plan.complete_hours import last_buildable_hour
from lake_assets.incremental.planning.plan.decide_session import plan, plan_acknowledged
from lake_assets.incremental.planning.plan.planning_input import (
    Committed,
    PlanningInput,
    Waiting,
    cut,
    in_whole_partitions,
)
from lake_assets.incremental.planning.plan.rebuild import plan_rebuild

__all__ = [
    "Committed",
    "PlanningInput",
    "Waiting",
    "committed_after",
    "cut",
    "in_whole_partitions",
    "last_buildable_hour",
    "plan",
    "plan_acknowledged",
    "plan_rebuild",
]
