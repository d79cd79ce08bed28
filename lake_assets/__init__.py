"""Fact and dimension tables that stay right while their data comes late, changes, and must be erased.

The public API is the names of `__all__`; docs/api.md describes them. Every other name of the package is private and may
change with any version. A name is loaded when it is first used: `import lake_assets` loads neither Dagster nor Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lake_assets import landing
    from lake_assets.components import IncrementalTable, SourceTable
    from lake_assets.coordination import JobCoordinator
    from lake_assets.engagement.notifications import read_changes
    from lake_assets.errors import ChangesExpired, LakeError
    from lake_assets.incremental.dagster.assets import incremental_definitions
    from lake_assets.incremental.dagster.lake_resource import LakeIOManager
    from lake_assets.incremental.declaration import (
        Defer,
        Pipeline,
        RawTable,
        Rule,
        Sequential,
        Served,
        SessionContext,
        Source,
        Stateful,
        Stateless,
        Subject,
        Topic,
        incremental_asset,
    )
    from lake_assets.incremental.engine import audits
    from lake_assets.incremental.engine.engine import utc_now
    from lake_assets.incremental.from_settings import Lake
    from lake_assets.resources import lake_resources
    from lake_assets.settings import Settings, __version__

__all__ = [
    "ChangesExpired",
    "Defer",
    "IncrementalTable",
    "JobCoordinator",
    "Lake",
    "LakeError",
    "LakeIOManager",
    "Pipeline",
    "RawTable",
    "Rule",
    "Sequential",
    "Served",
    "SessionContext",
    "Settings",
    "Source",
    "SourceTable",
    "Stateful",
    "Stateless",
    "Subject",
    "Topic",
    "__version__",
    "audits",
    "incremental_asset",
    "incremental_definitions",
    "lake_resources",
    "landing",
    "read_changes",
    "utc_now",
]

_COMPONENTS = "lake_assets.components"
_DECLARATION = "lake_assets.incremental.declaration"
_MODULES = {
    "ChangesExpired": "lake_assets.errors",
    "Defer": _DECLARATION,
    "IncrementalTable": _COMPONENTS,
    "JobCoordinator": "lake_assets.coordination",
    "Lake": "lake_assets.incremental.from_settings",
    "LakeError": "lake_assets.errors",
    "LakeIOManager": "lake_assets.incremental.dagster.lake_resource",
    "Pipeline": _DECLARATION,
    "RawTable": _DECLARATION,
    "Rule": _DECLARATION,
    "Sequential": _DECLARATION,
    "Served": _DECLARATION,
    "SessionContext": _DECLARATION,
    "Settings": "lake_assets.settings",
    "Source": _DECLARATION,
    "SourceTable": _COMPONENTS,
    "Stateful": _DECLARATION,
    "Stateless": _DECLARATION,
    "Subject": _DECLARATION,
    "Topic": _DECLARATION,
    "__version__": "lake_assets.settings",
    "audits": "lake_assets.incremental.engine.audits",
    "incremental_asset": _DECLARATION,
    "incremental_definitions": "lake_assets.incremental.dagster.assets",
    "lake_resources": "lake_assets.resources",
    "landing": "lake_assets.landing",
    "read_changes": "lake_assets.engagement.notifications",
    "utc_now": "lake_assets.incremental.engine.engine",
}
"""Public name → the module that defines it, or that it is."""

# A type checker reads the imports above. With this function it would accept every misspelt name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_MODULES[name])
        value = module if module.__name__.endswith(f".{name}") else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
