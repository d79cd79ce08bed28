"""The tables that YAML files declare, in the order in which they are built, and their pipeline with those of Python.

What cannot be used of it is left out, and listed: the other tables go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from lake_assets.errors import ConfigurationError, suggestion
from lake_assets.incremental.declaration import TABLE, Broken, Pipeline, RawTable, Subject, Target
from lake_assets.incremental.declaration.model import require_name
from lake_assets.incremental.declaration.pipeline import check_own_sql
from lake_assets.incremental.sql.declare import located, raw_tables_of, target_of
from lake_assets.incremental.sql.files import (
    Declaration,
    Schema,
    SqlText,
    StoredColumns,
    TableAttributes,
    columns_file,
    fingerprint,
    read_columns,
    read_declarations,
    read_sql,
    shown,
)
from lake_assets.incremental.sql.query import PREVIOUS, SESSION_HOURS


@dataclass(frozen=True)
class SqlTable:
    """A table that is built by SQL.

    Attributes:
        declaration: Its YAML document.
        attributes: What it declares.
        sql: Its query.
        path: The folder or file, as it was named, that the document was found in.
    """

    declaration: Declaration
    attributes: TableAttributes
    sql: SqlText
    path: Path

    @property
    def table(self) -> str:
        """The table, `namespace.name`."""
        return self.attributes.table

    @property
    def source_tables(self) -> tuple[str, ...]:
        """The tables that it is built from."""
        return tuple(source.table for source in self.attributes.sources)

    def source_schemas(self, schemas: Mapping[str, Schema]) -> dict[str, Schema | None]:
        """Return source table → its columns; None for a table that only the catalog knows.

        Args:
            schemas: Table → columns, of all declared tables.
        """
        return {source.table: schemas.get(source.table) for source in self.attributes.sources}


@dataclass(frozen=True)
class SqlFolder:
    """What the YAML files of some folders declare.

    Attributes:
        declarations: Their documents, by file.
        raw: The raw tables.
        tables: The tables that are built, each after those that it is built from.
        broken: What cannot be used.
    """

    declarations: tuple[Declaration, ...]
    raw: tuple[RawTable, ...]
    tables: tuple[SqlTable, ...]
    broken: tuple[Broken, ...]

    @cached_property
    def declares(self) -> frozenset[str]:
        """The tables that the YAML files declare."""
        return frozenset(table for declaration in self.declarations for table in declaration.declares)

    @property
    def first_table(self) -> str:
        """The table of the first declaration."""
        return self.declarations[0].attributes.table

    def shown_with(self, table: str) -> frozenset[str]:
        """Return the table of a declaration, and the raw tables that its sources declare before any other does."""
        owner: dict[str, str] = {}
        for declaration in self.declarations:
            for raw in raw_tables_of(declaration):
                owner.setdefault(raw.table, declaration.attributes.table)
        shown_tables = {raw for raw, of_table in owner.items() if of_table == table}
        return frozenset({table, *shown_tables})

    @property
    def raw_names(self) -> list[str]:
        """The raw tables, also those of which only the catalog knows the columns."""
        return [raw.table for raw in self.raw]

    def raw_schemas(self) -> dict[str, Schema]:
        """Return raw table → its columns, with those of landing; without those that only the catalog knows."""
        return {raw.table: raw.all_columns for raw in self.raw if not raw.exists_already}

    def subjects(self) -> tuple[Subject, ...]:
        """Return the subjects of the declarations."""
        return tuple(
            Subject(name, tuple(columns))
            for declaration in self.declarations
            for name, columns in declaration.attributes.subjects.items()
        )

    def start(self, default: str) -> str:
        """Return the first event hour: the earliest one that a document names, otherwise the default."""
        return min((each.attributes.start for each in self.declarations if each.attributes.start), default=default)

    def place_of(self, table: str) -> str | None:
        """Return `file, line N` of the declaration of a table; None if it is declared elsewhere."""
        return self._places.get(table)

    @cached_property
    def _places(self) -> dict[str, str]:
        return {each.attributes.table: each.place() for each in self.declarations}


def open_folder(*paths: Path, declared: Iterable[RawTable] = (), broken: Iterable[Broken] = ()) -> SqlFolder:
    """Return what YAML files declare, the files of some folders or single ones.

    Args:
        paths: The folders and files.
        declared: Raw tables that Python declares.
        broken: What cannot be used of Python.

    Raises:
        ConfigurationError: Declarations of Python contradict each other.
    """
    tables: dict[str, SqlTable] = {}
    raw: dict[str, _DeclaredRaw] = {}
    for each in declared:
        _add(raw, _DeclaredRaw(each, "a declaration in Python"))
    usable: list[Declaration] = []
    broken = list(broken)
    twice: set[str] = set()
    for path in paths:
        declarations, wrong = read_declarations(path)
        broken += wrong
        for declaration in declarations:
            usable.append(declaration)
            try:
                for each in raw_tables_of(declaration):
                    is_whole = declaration.attributes.table == each.table
                    _add(raw, _DeclaredRaw(each, declaration.place(), is_whole))
                if isinstance(declaration.attributes, TableAttributes):
                    table = _sql_table(declaration, declaration.attributes, path)
                    if table.table in tables:
                        twice.add(table.table)
                        raise _declared_twice(table, tables[table.table].declaration.place())
                    tables[table.table] = table
            except ConfigurationError as error:
                broken.append(Broken(error, " ".join(declaration.declares)))
    for name in twice:  # nobody knows which one is meant
        del tables[name]
    in_order, in_circles = _in_order(tables)
    return SqlFolder(tuple(usable), tuple(each.raw for each in raw.values()), tuple(in_order), (*broken, *in_circles))


def _sql_table(declaration: Declaration, attributes: TableAttributes, path: Path) -> SqlTable:
    with located(declaration, "table"):
        require_name(TABLE, attributes.table, "The table")
    return SqlTable(declaration, attributes, read_sql(declaration), path)


def _declared_twice(table: SqlTable, other: str) -> ConfigurationError:
    return ConfigurationError(
        f"{table.declaration.place('table')}: {table.table} is also declared at {other}.",
        remedy="Declare each table once.",
    )


@dataclass(frozen=True)
class _DeclaredRaw:
    """A raw table where it is declared. A source of a query may declare less of it than a declaration of its own."""

    raw: RawTable
    place: str
    is_whole: bool = True

    def combined(self, other: _DeclaredRaw) -> _DeclaredRaw:
        """Return what both declare together. Raises `ConfigurationError` if they contradict each other."""
        names = ["columns", "renamed_from", "complete_after", "feed"]
        if self.is_whole and other.is_whole:
            names += ["time_column", "description", "descriptions", "landed_column"]
        is_of_another_program = any(each.is_whole and each.raw.exists_already for each in (self, other))
        for name in names:
            values = getattr(self.raw, name), getattr(other.raw, name)
            is_contradicted = all(map(_is_given, values)) or (name == "columns" and is_of_another_program)
            if values[0] != values[1] and is_contradicted:
                raise ConfigurationError(
                    f"{other.place}: {other.raw.table} has other {name} than at {self.place}.",
                    remedy="Declare the columns once: the other sources need none.",
                )
        first, second = (other, self) if other.is_whole and not self.is_whole else (self, other)
        added = {}
        for name in ("columns", "description", "descriptions", "complete_after", "feed", "renamed_from"):
            if not _is_given(getattr(first.raw, name)):
                added[name] = getattr(second.raw, name)
        return replace(first, raw=replace(first.raw, **added))


def _add(raw: dict[str, _DeclaredRaw], found: _DeclaredRaw) -> None:
    known = raw.get(found.raw.table)
    raw[found.raw.table] = found if known is None else known.combined(found)


def _is_given(value: object) -> bool:
    return value is not None and value not in ("", {})


def targets_of(folder: SqlFolder, schemas: Mapping[str, Schema]) -> tuple[list[Target], list[Broken]]:
    """Return the targets that YAML files declare, and what cannot be used of them. Starts no Spark.

    Args:
        folder: The declarations.
        schemas: Table → columns, of the tables that are declared elsewhere.
    """
    known = {**schemas, **folder.raw_schemas()}
    targets: list[Target] = []
    broken: list[Broken] = []
    for table in folder.tables:
        try:
            check_sources(table, {*known, *folder.raw_names}, (*folder.broken, *broken))
            stored = current_columns(table, known, folder)
            if stored is None:
                raise _columns_unknown(table, known)
            target = target_of(table.declaration, table.sql, stored)
            with located(table.declaration):
                check_own_sql([target])
        except ConfigurationError as error:
            broken.append(Broken(error, table.table))
            continue
        known[target.table] = target.columns
        targets.append(target)
    return targets, broken


def current_columns(table: SqlTable, schemas: Mapping[str, Schema], folder: SqlFolder) -> StoredColumns | None:
    """Return the stored columns of a query; None if there are none, or the query or a source has changed since.

    Versions before took a source that is declared in Python for one that only the catalog knows.
    """
    stored = read_columns(columns_file(table.declaration))
    for known in (schemas, {name: schema for name, schema in schemas.items() if name in folder.declares}):
        now = fingerprint(table.sql, table.attributes, table.source_schemas(known))
        if stored is not None and stored.fingerprint == now:
            return stored
    return None


def whole_pipeline(
    folder: SqlFolder,
    targets: Iterable[Target],
    broken: Iterable[Broken],
    *,
    start: str,
    python: Sequence[Pipeline] = (),
) -> Pipeline:
    """Return one pipeline of YAML files and of Python, without the targets that cannot be used.

    A target that reads a table of a declaration that cannot be used is left out, too: it waits.

    Args:
        folder: The YAML files.
        targets: Their targets.
        broken: What cannot be used of their targets.
        start: The first event hour that YAML files without `start:` begin with.
        python: The pipelines in Python.

    Raises:
        ConfigurationError: Parts fit together in no way, or nothing can be used.
    """
    usable = [target for pipeline in python for target in pipeline.targets]
    found = [*folder.broken, *broken]
    for target in targets:
        place = folder.place_of(target.table)
        if any(target.table == other.table for other in usable):  # nobody knows which one is meant
            usable = [other for other in usable if other.table != target.table]
            problem = f"{place}: {target.table} is also declared in Python."
            found.append(Broken(ConfigurationError(problem, remedy="Declare each table once."), target.table))
        else:
            usable.append(target)
    columns: dict[str, dict[str, None]] = {}
    for subject in (*(each for pipeline in python for each in pipeline.subjects), *folder.subjects()):
        columns.setdefault(subject.name, {}).update(dict.fromkeys(subject.columns))
    subjects = tuple(Subject(name, tuple(ids)) for name, ids in columns.items())
    starts = [pipeline.start for pipeline in python] + ([folder.start(start)] if folder.declarations else [])
    pipeline: Pipeline | None = None
    while pipeline is None:
        known = {*folder.raw_names, *(each.table for each in usable)}
        culprit: Target | None = None
        try:
            for culprit in usable:
                check_sources(culprit, known, found)
                check_own_sql([culprit])
            culprit = None
            pipeline = Pipeline(
                folder.raw, tuple(usable), min(starts, default=start), subjects=subjects, broken=tuple(found)
            )
        except ConfigurationError as error:
            place = folder.place_of(culprit.table) if culprit is not None else None
            if culprit is None:
                culprit, place = _culprit(error, usable, folder)
            usable.remove(culprit)
            problem = f"{place}: {error.problem}" if place else error.problem
            found.append(Broken(ConfigurationError(problem, remedy=error.remedy), culprit.table))
    if not found:
        pipeline.check_subjects()
    elif not folder.raw and not usable:
        raise found[0].error
    return pipeline


def _culprit(error: ConfigurationError, targets: Iterable[Target], folder: SqlFolder) -> tuple[Target, str]:
    """Return the target of a YAML file that an error of the whole is about, and its place. Raises other errors."""
    for target in targets:
        place = folder.place_of(target.table)
        if place is not None and error.problem.startswith((f"{target.table} ", f"{target.table}.")):
            return target, place
    raise error


def check_sources(table: SqlTable | Target, known: Collection[str], broken: Iterable[Broken]) -> None:
    """Check that a table reads none whose declaration cannot be used: until that is corrected, it waits.

    Args:
        table: The table.
        known: The tables that are declared.
        broken: What cannot be used.

    Raises:
        ConfigurationError: It reads one.
    """
    for each in sorted(broken, key=lambda each: each.text is None):
        for source in table.source_tables:
            if source not in known and each.mentions(source):
                raise ConfigurationError(
                    f"{table.table} reads {source}, whose declaration cannot be used: {each.error.problem}",
                    remedy=each.error.remedy,
                )


def _columns_unknown(table: SqlTable, schemas: Mapping[str, Schema]) -> ConfigurationError:
    """Return why the columns of a query are not known: it names one that does not exist, or nobody has asked Spark."""
    from lake_assets.incremental.sql.lineage import unknown_column

    readable: dict[str, Iterable[str]] = {SESSION_HOURS: ["hour"], PREVIOUS: table.attributes.columns}
    readable |= {source.sql_name: schemas.get(source.table, ()) for source in table.attributes.sources}
    column = unknown_column(table.sql.text, readable) if all(map(schemas.get, table.source_tables)) else None
    if column is not None:
        every = sorted({name for columns in readable.values() for name in columns})
        lines = [number for number, line in enumerate(table.sql.text.splitlines(), start=1) if column in line]
        return ConfigurationError(
            f"{table.sql.place(min(lines, default=1))}: {table.table}: the column {column!r} does not exist.",
            remedy=suggestion(column.rpartition(".")[2], every),
        )
    file = columns_file(table.declaration)
    if file.is_file():
        problem = f"The query of {table.table}, or a source, has changed since {shown(file)} was written"
    else:
        problem = f"The column types of {table.table} are not known: there is no {shown(file)}"
    return ConfigurationError(
        f"{table.sql.place()}: {problem}.",
        remedy=f"Run `lake check {shown(table.path)}`, which asks Spark for them and writes the file.",
    )


def _in_order(tables: Mapping[str, SqlTable]) -> tuple[list[SqlTable], list[Broken]]:
    """Return tables, each after those that it is built from, without those that are built from each other."""
    left = dict(tables)
    broken: list[Broken] = []
    while True:
        upstream = {
            name: [source.table for source in table.attributes.sources if source.table in left]
            for name, table in left.items()
        }
        try:
            return [left[name] for name in TopologicalSorter(upstream).static_order()], broken
        except CycleError as error:
            circle: list[str] = error.args[1]
            problem = ConfigurationError(
                f"{left[circle[0]].declaration.place('sources')}: tables are built from each other in a circle:"
                f" {' → '.join(circle)}.",
                remedy="A table that needs its own earlier rows is sequential: it reads `previous`, and is no source.",
            )
            broken.append(Broken(problem, " ".join(circle)))
            for name in set(circle):
                del left[name]
