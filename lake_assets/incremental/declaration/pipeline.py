"""A pipeline: raw tables, targets and subjects that belong together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from lake_assets.base.hours import parse_hour
from lake_assets.errors import ConfigurationError, InvalidHourKey, UsageError
from lake_assets.incremental.declaration.modes import check_whole_hours
from lake_assets.incremental.declaration.names import suggestion
from lake_assets.incremental.declaration.tables import RawTable, Subject, Topic
from lake_assets.incremental.declaration.target import Target
from lake_assets.incremental.declaration.validation import (
    check_entity,
    check_feed,
    check_held,
    check_id_columns,
    check_items,
    check_raw_source,
    check_source_columns,
)


@dataclass(frozen=True)
class Broken:
    """A declaration that cannot be used: a file or a module that cannot be read, or a table that it declares wrongly.

    Attributes:
        error: What is wrong, and where.
        text: What names the tables that it declares: the text of a file, or a table; None if nothing is known of them.
    """

    error: ConfigurationError
    text: str | None

    def mentions(self, name: str) -> bool:
        """Return whether it may declare a table, by its full name or by its name without namespace."""
        return self.text is None or re.search(rf"\b{re.escape(name)}\b", self.text) is not None


@dataclass(frozen=True)
class Pipeline:
    """Raw tables and targets that belong together.

    Attributes:
        raw: The raw tables.
        targets: The targets, in any order.
        start: The first event hour, a key such as `2026-01-01-00:00`.
        subjects: The subjects whose rows can be erased.
        broken: What was left out when files and modules were read, because it cannot be used.

    Raises:
        ConfigurationError: Parts of the declaration do not fit together.
    """

    raw: tuple[RawTable, ...]
    targets: tuple[Target, ...]
    start: str
    subjects: tuple[Subject, ...] = ()
    broken: tuple[Broken, ...] = ()

    def __post_init__(self) -> None:
        check_items("raw= of the pipeline", self.raw, RawTable, example="raw=(EVENTS,), with the comma")
        check_items("targets= of the pipeline", self.targets, Target, example="targets=(event_fact,), with the comma")
        check_items("subjects= of the pipeline", self.subjects, Subject, example="subjects=(PERSON,), with the comma")
        object.__setattr__(self, "targets", tuple(map(self._with_landing, self.targets)))
        try:
            parse_hour(self.start)
        except InvalidHourKey:
            raise ConfigurationError(
                f"The pipeline starts at {self.start!r}.", remedy="Name its first event hour, such as 2026-01-01-00:00."
            ) from None
        self._check_declared_once()
        self._check_sources()
        self.in_order()
        for target in self.targets:
            check_whole_hours(target.table, target.grain, self.start_hour)
        for subject in self.subjects:
            check_id_columns(subject, self.raw, self.targets)
        for raw in self.raw:
            check_feed(raw, self.subjects)

    @property
    def start_hour(self) -> int:
        """The first event hour, as a number."""
        return parse_hour(self.start, where="The pipeline's start")

    def target(self, name: str) -> Target:
        """Return a target by its table, or by its name without the namespace.

        Raises:
            ConfigurationError: Its declaration cannot be used.
            UsageError: There is no such target.
        """
        found = self.find_target(name)
        if found is not None:
            return found
        self.refuse_broken(name)
        names = ", ".join(t.name for t in self.targets)
        raise UsageError(f"There is no target {name!r}.", remedy=f"Name one of: {names}.")

    def find_target(self, name: str) -> Target | None:
        """Return a target by its table, or by its name without the namespace; None if there is no such target."""
        for target in self.targets:
            if name.replace("/", ".") in (target.table, target.name):
                return target
        return None

    def refuse_broken(self, name: str = "") -> None:
        """Raise the error of a declaration that cannot be used, if one may declare a table.

        Args:
            name: The table, or its name without namespace. Empty: any table at all.

        Raises:
            ConfigurationError: What is wrong with the declaration.
        """
        for broken in sorted(self.broken, key=lambda each: each.text is None):
            if not name or broken.mentions(name.replace("/", ".")):
                raise broken.error

    def check_subjects(self) -> None:
        """Check that a raw table contains each subject. Parts of a pipeline may declare them apart.

        Raises:
            ConfigurationError: No raw table contains the ids of a subject.
        """
        for subject in self.subjects:
            check_held(subject, self.raw)

    def raw_table(self, table: str) -> RawTable | None:
        """Return the declaration of a raw table; None if the pipeline declares none of this name."""
        for raw in self.raw:
            if raw.table == table:
                return raw
        return None

    def subject(self, name: str) -> Subject:
        """Return a subject by its name.

        Raises:
            UsageError: There is no such subject.
        """
        for subject in self.subjects:
            if subject.name == name:
                return subject
        names = ", ".join(s.name for s in self.subjects)
        remedy = f"Name one of: {names}." if names else "None is declared: add `subjects=` to the Pipeline."
        raise UsageError(f"There is no subject {name!r}.", remedy=remedy)

    def in_order(self) -> list[Target]:
        """Return the targets in topological order: each after those that it is built from."""
        return list(self._ordered)

    @cached_property
    def _ordered(self) -> tuple[Target, ...]:
        """The targets in topological order. It is asked for again for each target, of which there may be hundreds."""
        by_table = {target.table: target for target in self.targets}
        upstream: dict[str, list[str]] = {}
        for target in self.targets:
            upstream[target.table] = [table for table in target.source_tables if table in by_table]
        try:
            ordered = list(TopologicalSorter(upstream).static_order())
        except CycleError as error:
            raise ConfigurationError(
                f"Targets are built from each other in a circle: {' → '.join(error.args[1])}.",
                remedy="A target that needs its own earlier hours is Sequential, and does not name itself as a source.",
            ) from None
        return tuple(by_table[table] for table in ordered)

    @cached_property
    def targets_behind(self) -> Mapping[str, int]:
        """Target → the number of targets in the longest chain that begins with those that are built from it."""
        longest: dict[str, int] = {}
        for target in reversed(self._ordered):
            behind = longest.setdefault(target.table, 0)
            for table in target.source_tables:
                longest[table] = max(longest.get(table, 0), behind + 1)
        return {target.table: longest[target.table] for target in self.targets}

    def upstream_of(self, target: Target) -> list[Target]:
        """Return the targets that a target is built from, directly or indirectly, in topological order."""
        wanted = set(target.source_tables)
        found: list[Target] = []
        for candidate in reversed(self.in_order()):
            if candidate.table in wanted:
                found.append(candidate)
                wanted.update(candidate.source_tables)
        found.reverse()
        return found

    def check_undeclared_sources(self, exists: Callable[[str], bool]) -> None:
        """Check that every source that the pipeline does not declare is a table that another program has created.

        Args:
            exists: Whether the catalog has a table.

        Raises:
            ConfigurationError: A source is neither declared nor in the catalog.
        """
        declared = [raw.table for raw in self.raw] + [target.table for target in self.targets]
        for target in self.targets:
            for table in target.source_tables:
                if table not in declared and not exists(table):
                    raise ConfigurationError(
                        f"{target.table} reads {table}, which is neither declared nor in the catalog.",
                        remedy=f"{suggestion(table, declared)} A new raw table is declared in raw= of the pipeline.",
                    )

    def _with_landing(self, target: Target) -> Target:
        """Return a target whose sources name the column of the landing that their raw tables declare."""
        sources = []
        for source in target.sources:
            raw = self.raw_table(source.table)
            if source.landed_column is None and raw is not None:
                source = replace(source, landed_column=raw.landed_column)
            sources.append(source)
        return target if tuple(sources) == target.sources else replace(target, sources=tuple(sources))

    def _check_declared_once(self) -> None:
        declared = Counter(raw.table for raw in self.raw)
        declared.update(target.table for target in self.targets)
        for table, times in declared.items():
            if times > 1:
                raise ConfigurationError(f"{table} is declared {times} times.", remedy="Declare each table once.")
        fed: dict[str, str] = {}
        for raw in self.raw:
            if isinstance(raw.feed, Topic):
                topic = raw.feed.name or raw.table
                other = fed.setdefault(topic, raw.table)
                if other != raw.table:
                    raise ConfigurationError(
                        f"{other} and {raw.table} are both landed from the topic {topic!r}.",
                        remedy="Land it into one raw table, and build both targets from that.",
                    )
        named: dict[str, str] = {}
        for target in self.targets:
            other = named.setdefault(target.name, target.table)
            if other != target.table:
                raise ConfigurationError(
                    f"{other} and {target.table} have the same name {target.name!r} in two namespaces.",
                    remedy="Rename the function of one of them: commands and sensors call a target by its name alone.",
                )

    def _check_sources(self) -> None:
        targets = {target.table: target for target in self.targets}
        raw_tables = {raw.table: raw for raw in self.raw}
        # Only the catalog knows the columns of a table that exists.
        columns: dict[str, Collection[str]] = {target.table: target.columns for target in self.targets}
        columns |= {raw.table: raw.all_columns for raw in self.raw if not raw.exists_already}
        for target in self.targets:
            for source in target.sources:
                raw = raw_tables.get(source.table)
                if raw is not None:
                    check_raw_source(target, source, raw)
                elif source.table in targets:
                    check_source_columns(target, source, targets[source.table].columns)
            check_entity(target, columns)


def column_sources(pipeline: Pipeline, target: Target) -> dict[str, tuple[str, ...]]:
    """Return column of a target → the source columns that it comes from, each `namespace.name.column`.

    A column without declared lineage comes from the columns of the same name in the sources. A column that comes from
    no source, or of which that is not known, is left out.
    """
    columns: dict[str, Mapping[str, str]] = {raw.table: raw.all_columns for raw in pipeline.raw}
    columns.update({each.table: each.columns for each in pipeline.targets})
    found = {}
    for column in target.columns:
        names = list(target.lineage.get(column, ()))
        if column not in target.lineage:
            names = [f"{source}.{column}" for source in target.source_tables if column in columns.get(source, {})]
        if names:
            found[column] = tuple(names)
    return found
