"""What a user declares: raw tables, sources, targets with their modes, keys, columns, audits and transforms.

Only what is known without looking at a table belongs here. Nothing here reads, writes or plans.

May import `base` and `errors`, and nothing of the engine.
"""

from lake_assets.incremental.declaration.decorator import incremental_asset
from lake_assets.incremental.declaration.modes import Defer, Mode, Sequential, Stateful, Stateless
from lake_assets.incremental.declaration.names import IDENTIFIER, TABLE
from lake_assets.incremental.declaration.pipeline import Broken, Pipeline
from lake_assets.incremental.declaration.served import Served
from lake_assets.incremental.declaration.tables import LANDED, LANDING_COLUMNS, RawTable, Rule, Source, Subject, Topic
from lake_assets.incremental.declaration.target import SessionContext, Target, Transform

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
