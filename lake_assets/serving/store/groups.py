"""Push groups: served tables that are pushed in one switch, as `LAKE_SERVING_GROUPS` declares them.

A table is in one group. One that no group names is a group by itself, of its own name; so every push is a group's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.serving.lineage.znrecord import is_table
from lake_assets.serving.store.sources import Source

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True)
class PushGroup:
    """name: of its step and pool in Dagster; its only table's, if there is one alone. sources: at least one."""

    name: str
    sources: tuple[Source, ...]

    def head(self, catalog: Catalog) -> str | None:
        """Another one when a table of it has something else to push; None while one has nothing."""
        heads = [source.head(catalog) for source in self.sources]
        return None if None in heads else ",".join(map(str, heads))


def push_groups(sources: Iterable[Source], declared: Mapping[str, Sequence[str]]) -> list[PushGroup]:
    """The groups of all sources, those that were declared first. declared: group → its tables. `ConfigurationError`."""
    found = {source.name: source for source in sources}
    times = Counter(table for tables in declared.values() for table in tables)
    for name, tables in declared.items():
        _check(name, tables, found, times)
    together = [PushGroup(name, tuple(found[table] for table in tables)) for name, tables in declared.items()]
    return [*together, *(PushGroup(name, (source,)) for name, source in found.items() if name not in times)]


def group_named(name: str, groups: Iterable[PushGroup]) -> PushGroup:
    """The group of that name, or the one table of that name by itself. `UsageError` if there is neither."""
    by_name = {group.name: group for group in groups}
    tables = {source.name: PushGroup(source.name, (source,)) for group in by_name.values() for source in group.sources}
    found = {**tables, **by_name}
    if name not in found:
        raise UsageError(
            f"No table of the lake is served as {name!r}.", remedy=f"Name {', '.join(found)}, or push a --file."
        )
    return found[name]


def _check(name: str, tables: Sequence[str], found: Mapping[str, Source], times: Mapping[str, int]) -> None:
    if not is_table(name) or name in found:
        raise _wrong(name, "cannot be called so", remedy="Use small letters, digits and _, and no served table's name.")
    if not tables:
        raise _wrong(name, "has no table", remedy=f"Name some of {', '.join(found)}.")
    for table in tables:
        if table not in found:
            raise _wrong(name, f"names {table!r}, which is not served", remedy=f"Name some of {', '.join(found)}.")
        if times[table] > 1:
            raise _wrong(name, f"names {table}, which is named twice", remedy="Name each table once, in one group.")


def _wrong(name: str, why: str, *, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"LAKE_SERVING_GROUPS: the group {name!r} {why}.", remedy=remedy)
