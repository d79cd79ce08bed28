"""What a user declares: raw tables, sources, targets with their modes, keys, columns, audits and transforms.

Only what is known without looking at a table belongs here. Nothing here reads, writes or plans.

May import `base` and `errors`, and nothing of the engine.
"""

from lake_assets.incremental.declaration.decorator import incremental_asset
from lake_assets.incremental.declaration.model import (
    IDENTIFIER,
    LANDED,
    LANDING_COLUMNS,
    TABLE,
    Defer,
    Mode,
    RawTable,
    Rule,
    Sequential,
    Served,
    SessionContext,
    Source,
    Stateful,
    Stateless,
    Subject,
    Target,
    Topic,
    Transform,
)
from lake_assets.incremental.declaration.pipeline import Broken, Pipeline

__all__ = [
    "IDENTIFIER",
    "LANDED",
    "LANDING_COLUMNS",
    "TABLE",
    "Broken",
    "Defer",
    "Mode",
    "Pipeline",
    "RawTable",
    "Rule",
    "Sequential",
    "Served",
    "SessionContext",
    "Source",
    "Stateful",
    "Stateless",
    "Subject",
    "Target",
    "Topic",
    "Transform",
    "incremental_asset",
]
