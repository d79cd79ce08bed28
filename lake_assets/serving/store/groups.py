"""Push groups: served tables that are pushed in one switch, as `LAKE_SERVING_GROUPS` declares them.

Each table is in one group. A table that no declared group names is a group of its own, with its name, so every push is
the push of a group.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.incremental.declaration.served import SECONDS
from lake_assets.serving.lineage.znrecord import is_table
from lake_assets.serving.store.sources import Source

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@dataclass(frozen=True)
class PushGroup:
    """Tables that are pushed together.

    Attributes:
        name: Of its step and its pool in Dagster; the table's name if the group was not declared.
        sources: At least one.
    """

    name: str
    sources: tuple[Source, ...]

    @property
    def seconds(self) -> int:
        """Between two automatic pushes, at least: of the table that is pushed least often."""
        return max(SECONDS.get(source.frequency or "", 0) for source in self.sources)

    @property
    def step(self) -> str:
        """The name of its step in Dagster, which has letters, digits and _ alone."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", self.name)
        return plain if plain == self.name else f"{plain}_{zlib.crc32(self.name.encode()):08x}"

    @property
    def quotas(self) -> dict[str, int | None]:
        """Table → the most bytes that its segments may take; None: as the settings say."""
        return {source.name: source.quota_bytes for source in self.sources}

    def head(self, catalog: Catalog) -> str | None:
        """Return an identifier that changes with the rows of any source; None while a source has no rows."""
        heads = [source.head(catalog) for source in self.sources]
        known = [head for head in heads if head is not None]
        if len(known) < len(heads):
            return None
        return ",".join(known)


def push_groups(sources: Iterable[Source], declared: Mapping[str, Sequence[str]]) -> list[PushGroup]:
    """Return the groups of all sources, the declared ones first.

    Args:
        sources: All served tables.
        declared: Group → its tables.

    Raises:
        ConfigurationError: A declared group is not valid.
    """
    by_name = _by_name(sources)
    times_named = Counter(table for tables in declared.values() for table in tables)
    groups = []
    for name, tables in declared.items():
        _check(name, tables, by_name, times_named)
        groups.append(PushGroup(name, tuple(by_name[table] for table in tables)))
    for name, source in by_name.items():
        if name not in times_named:
            groups.append(PushGroup(name, (source,)))
    return groups


def group_named(name: str, groups: Iterable[PushGroup]) -> PushGroup:
    """Return the group with a name, or a group of the one table with that name.

    Raises:
        UsageError: There is neither.
    """
    found = {}
    declared = list(groups)
    for group in declared:
        for source in group.sources:
            found[source.name] = PushGroup(source.name, (source,))
    for group in declared:
        found[group.name] = group
    if name not in found:
        raise UsageError(
            f"No table of the lake is served as {name!r}.", remedy=f"Name {', '.join(found)}, or push a --file."
        )
    return found[name]


def _by_name(sources: Iterable[Source]) -> dict[str, Source]:
    found: dict[str, Source] = {}
    without_case: dict[str, Source] = {}
    for source in sources:
        other = without_case.setdefault(source.name.lower(), source)
        if other != source:
            also = "" if other.name == source.name else f" (and {other.name!r}: SQL ignores case)"
            raise ConfigurationError(
                f"{other.table} and {source.table} are both served as {source.name!r}{also}.",
                remedy='Give one of them another name: served=Served(name="...").',
            )
        found[source.name] = source
    return found


def _check(name: str, tables: Sequence[str], found: Mapping[str, Source], times_named: Mapping[str, int]) -> None:
    name_some = f"Name some of {', '.join(found)}."
    if not is_table(name) or name in found:
        raise _wrong(
            name,
            "does not have a valid name",
            remedy="Use letters, digits, _ and -, and no served table's name.",
        )
    if not tables:
        raise _wrong(name, "has no table", remedy=name_some)
    for table in tables:
        if table not in found:
            raise _wrong(name, f"names {table!r}, which is not served", remedy=name_some)
        if times_named[table] > 1:
            raise _wrong(name, f"names {table}, which is named twice", remedy="Name each table once, in one group.")


def _wrong(name: str, why: str, *, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"LAKE_SERVING_GROUPS: the group {name!r} {why}.", remedy=remedy)
