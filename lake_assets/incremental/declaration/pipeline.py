"""A pipeline: raw tables, targets and subjects that belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from lake_assets.base.hours import parse_hour
from lake_assets.errors import ConfigurationError, InvalidHourKey, UsageError
from lake_assets.incremental.declaration.tables import RawTable, Subject
from lake_assets.incremental.declaration.target import Target
from lake_assets.incremental.declaration.validation import check_entity, check_raw_source, check_subject


@dataclass(frozen=True)
class Pipeline:
    """Raw tables and targets that belong together. `start` is the first event hour, a key.

    subjects: whose rows can be erased.
    Raises `ConfigurationError`, naming what does not fit together.
    """

    raw: tuple[RawTable, ...]
    targets: tuple[Target, ...]
    start: str
    subjects: tuple[Subject, ...] = ()

    def __post_init__(self) -> None:
        try:
            parse_hour(self.start)
        except InvalidHourKey:
            raise ConfigurationError(
                f"The pipeline starts at {self.start!r}.", remedy="Name its first event hour, such as 2026-01-01-00:00."
            ) from None
        raw = {r.table: r for r in self.raw}
        for table, times in Counter([*(r.table for r in self.raw), *(t.table for t in self.targets)]).items():
            if times > 1:
                raise ConfigurationError(f"{table} is declared {times} times.", remedy="Declare each table once.")
        for target in self.targets:
            for source in target.sources:
                if source.table in raw:
                    check_raw_source(target, source, raw[source.table])
            check_entity(target, {t.table: t.columns for t in self.targets})
        self.in_order()
        for subject in self.subjects:
            check_subject(subject, self.raw, self.targets)

    @property
    def start_hour(self) -> int:
        return parse_hour(self.start, where="The pipeline's start")

    def target(self, name: str) -> Target:
        """A target by its table or its bare name; `UsageError`, with the names there are, if there is none."""
        for target in self.targets:
            if name.replace("/", ".") in (target.table, target.name):
                return target
        names = ", ".join(t.name for t in self.targets)
        raise UsageError(f"There is no target {name!r}.", remedy=f"Name one of: {names}.")

    def subject(self, name: str) -> Subject:
        """A subject by its name; `UsageError`, with the names there are, if there is none."""
        for subject in self.subjects:
            if subject.name == name:
                return subject
        names = ", ".join(s.name for s in self.subjects)
        remedy = f"Name one of: {names}." if names else "None is declared: add `subjects=` to the Pipeline."
        raise UsageError(f"There is no subject {name!r}.", remedy=remedy)

    def in_order(self) -> list[Target]:
        """The targets, each after all it is built from."""
        by_table = {t.table: t for t in self.targets}
        graph = {t.table: [s.table for s in t.sources if s.table in by_table] for t in self.targets}
        try:
            return [by_table[table] for table in TopologicalSorter(graph).static_order()]
        except CycleError as error:
            raise ConfigurationError(
                f"Targets are built from each other in a circle: {' → '.join(error.args[1])}.",
                remedy="A target that needs its own earlier hours is Sequential, and does not name itself as a source.",
            ) from None

    def upstream_of(self, target: Target) -> list[Target]:
        """The targets that this one is built from, however indirectly, in topological order."""
        wanted, found = {s.table for s in target.sources}, []
        for candidate in reversed(self.in_order()):
            if candidate.table in wanted:
                found.append(candidate)
                wanted |= {s.table for s in candidate.sources}
        return found[::-1]


def merge(pipelines: Iterable[Pipeline]) -> Pipeline:
    """Several pipelines as one; the earliest start counts."""
    pipelines = list(pipelines)
    return Pipeline(
        raw=tuple(r for p in pipelines for r in p.raw),
        targets=tuple(t for p in pipelines for t in p.targets),
        start=min(p.start for p in pipelines),
        subjects=tuple(dict.fromkeys(s for p in pipelines for s in p.subjects)),
    )
