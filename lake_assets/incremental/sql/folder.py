"""The tables that YAML files declare, in the order in which they are built, and their pipeline with those of Python.

What cannot be used of it is left out, and listed: the other tables go on.

First, the values that Python declarations make, audits among them, from the attributes of a document. That is pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call

from lake_assets.base.sql_text import column_line
from lake_assets.errors import ConfigurationError, suggestion
from lake_assets.incremental.declaration import (
    IDENTIFIER,
    TABLE,
    Broken,
    Mode,
    Pipeline,
    RawTable,
    Rule,
    Sequential,
    Source,
    Stateful,
    Stateless,
    Subject,
    Target,
    incremental_asset,
)
from lake_assets.incremental.declaration.decorator import query_code, version_of
from lake_assets.incremental.declaration.model import (
    Audit,
    declared_grain,
    declared_served,
    parse_duration,
    require_name,
)
from lake_assets.incremental.declaration.pipeline import check_own_sql
from lake_assets.incremental.engine import audits
from lake_assets.incremental.sql.files import (
    Declaration,
    PinotTable,
    Schema,
    SourceTableAttributes,
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
from lake_assets.incremental.sql.query import PREVIOUS, RESERVED, SESSION_HOURS, SqlTransform

AS_WRITTEN = (
    "key",
    "time_column",
    "quarantine_limit",
    "owners",
    "grain",
    "timezone",
    "descriptions",
    "late",
    "renamed_from",
)
"""Attributes of a table that `incremental_asset` takes as they are written."""

RAW = {each.name for each in fields(RawTable)}

MODES: Mapping[str, Callable[..., Mode]] = {"stateless": Stateless, "stateful": Stateful, "sequential": Sequential}


def target_of(declaration: Declaration, sql: SqlText, stored: StoredColumns) -> Target:
    """Return the target that a YAML document declares.

    Args:
        declaration: Of a `lake_assets.IncrementalTable`.
        sql: Its query.
        stored: The columns of the query.

    Raises:
        ConfigurationError: Something in the declaration cannot work; the message names the file and the line.
    """
    attributes = declaration.attributes
    assert isinstance(attributes, TableAttributes)
    mode = mode_of(declaration)
    audits = audits_of(declaration)
    _check_columns(declaration, sql, tuple(stored.columns))
    _check_time_column(attributes, sql, stored.columns[attributes.time_column])
    _check_audit_columns(declaration, audits, tuple(stored.columns))
    delay = max_delay_of(declaration)
    with located(declaration, "served"):
        found = attributes.served
        pinot = found.model_dump() if isinstance(found, PinotTable) else found
        served = declared_served(attributes.table, pinot, declaration.file.parent) or False
    with located(declaration, "timezone"):
        declared_grain(attributes.table, attributes.grain, attributes.timezone)
    with located(declaration):
        declare = incremental_asset(
            mode=mode,
            sources=sources_of(declaration),
            columns=stored.columns,
            audits=audits,
            namespace=attributes.table.rpartition(".")[0],
            code_version=attributes.code_version or _code_version(attributes, query_code(sql.text)),
            lineage={**stored.lineage, **attributes.lineage},
            max_delay=delay,
            served=served,
            **{name: getattr(attributes, name) for name in AS_WRITTEN},
        )
        target = declare(SqlTransform(attributes, sql, tuple(stored.columns)))
    before = attributes.code_version or _code_version(attributes, sql.text)
    unknown = tuple(column for column in stored.unknown_lineage if column not in attributes.lineage)
    return replace(target, unknown_lineage=unknown, code_version_before=before)


def raw_tables_of(declaration: Declaration) -> list[RawTable]:
    """Return the raw tables that a YAML document declares: itself, or sources that say more than how they are read.

    Raises:
        ConfigurationError: A column or its type is wrong.
    """
    attributes = declaration.attributes
    if isinstance(attributes, SourceTableAttributes):
        with located(declaration):
            return [RawTable(**{name: getattr(attributes, name) for name in RAW})]
    found = []
    for number, source in enumerate(attributes.sources):
        if source.model_fields_set & (RAW - {"table", "time_column", "landed_column"}):
            with located(declaration, "sources", number):  # its landed_column says how the target reads it
                found.append(RawTable(**{name: getattr(source, name) for name in RAW - {"landed_column"}}))
    return found


def mode_of(declaration: Declaration) -> Mode:
    """Return the mode of a table, with its options.

    Raises:
        ConfigurationError: There is no such mode or option, or an option has a wrong value.
    """
    attributes = declaration.attributes
    assert isinstance(attributes, TableAttributes)
    written = attributes.mode
    name = attributes.mode_name
    if name not in MODES or len([written] if isinstance(written, str) else written) != 1:
        raise ConfigurationError(
            f"{declaration.place('mode')}: {attributes.table} has the mode {written!r}.",
            remedy=suggestion(name, tuple(MODES)),
        )
    options: dict[str, Any] = {} if isinstance(written, str) else written[name] or {}
    _check_options(declaration, name, options)
    with located(declaration, "mode"):
        try:
            return MODES[name](**options)
        except TypeError:
            raise ConfigurationError(
                f"The options of the mode {name} are {options!r}.",
                remedy="Numbers of hours are whole numbers; `load` and `entity` are texts.",
            ) from None


def max_delay_of(declaration: Declaration) -> timedelta | None:
    """Return after which delay a table is late; None if it never is.

    Raises:
        ConfigurationError: It is no duration, or declared twice.
    """
    attributes = declaration.attributes
    assert isinstance(attributes, TableAttributes)
    minutes, text = attributes.max_delay_minutes, attributes.max_delay
    with located(declaration, "max_delay"):
        if text is not None and minutes is not None:
            raise ConfigurationError(
                f"{attributes.table} has max_delay and max_delay_minutes.", remedy="Leave one of them out."
            )
        if text is not None:
            return parse_duration(text, where=f"max_delay of {attributes.table}")
    return None if minutes is None else timedelta(minutes=minutes)


def _check_options(declaration: Declaration, mode: str, options: Mapping[str, Any]) -> None:
    """Check that a mode has the options that are written."""
    fields: Mapping[str, object] = getattr(MODES[mode], "__dataclass_fields__", {})
    known = tuple(option for option in fields if option != "pattern_id")
    for option in options:
        if option not in known:
            remedy = suggestion(option, known) if known else f"Write `mode: {mode}`, which takes no options."
            raise ConfigurationError(
                f"{declaration.place('mode')}: the mode {mode} has no option {option!r}.", remedy=remedy
            )


def audits_of(declaration: Declaration) -> list[Audit]:
    """Return the audits of a table.

    Raises:
        ConfigurationError: There is no such audit, or its arguments are wrong.
    """
    attributes = declaration.attributes
    assert isinstance(attributes, TableAttributes)
    found = []
    for number, written in enumerate(attributes.audits):
        found.append(declared_audit(written, declaration.place("audits", number)))
    return found


def sources_of(declaration: Declaration) -> list[Source]:
    """Return the sources of a table.

    Raises:
        ConfigurationError: Two have the same name in the SQL, or one has a name that is taken.
    """
    attributes = declaration.attributes
    assert isinstance(attributes, TableAttributes)
    names: set[str] = set()
    found = []
    for number, source in enumerate(attributes.sources):
        name = source.sql_name
        if name in names or name in RESERVED:
            taken = "another source" if name in names else "a table that every query has"
            raise ConfigurationError(
                f"{declaration.place('sources', number)}: {source.table} is called {name!r} in the SQL, as is {taken}.",
                remedy="Give it another name there: add `name:` to the source.",
            )
        names.add(name)
        with located(declaration, "sources", number):
            if source.name is not None:
                require_name(IDENTIFIER, name, f"The name of {source.table} in the SQL")
            written = {each.name: getattr(source, each.name) for each in fields(Source)}
            written["rules"] = tuple(Rule(reason, where) for reason, where in source.rules.items())
            if isinstance(source.order_by, list):
                written["order_by"] = tuple(source.order_by)
            found.append(Source(**written))
    return found


@contextmanager
def located(declaration: Declaration, *location: int | str) -> Iterator[None]:
    """Add the file and line of a value to the error of a declaration."""
    try:
        yield
    except ConfigurationError as error:
        place = declaration.place(*location)
        if error.problem.startswith(place.partition(", line")[0]):
            raise
        raise ConfigurationError(f"{place}: {error.problem}", remedy=error.remedy) from None


def _check_columns(declaration: Declaration, sql: SqlText, columns: Sequence[str]) -> None:
    """Check that the query selects the columns that the declaration names."""
    attributes = declaration.attributes
    assert isinstance(attributes, TableAttributes)
    keys = [attributes.key] if isinstance(attributes.key, str) else attributes.key
    named = [("key", f"the key {key!r}", key) for key in keys]
    named.append(("time_column", f"the time column {attributes.time_column!r}", attributes.time_column))
    for attribute, what, column in named:
        if column not in columns:
            raise ConfigurationError(
                f"{declaration.place(attribute)}: {attributes.table} has {what}, which the query at {sql.place()} does"
                " not select.",
                remedy=f"Select it, or name another column. {suggestion(column, columns)}",
            )


def _check_time_column(attributes: TableAttributes, sql: SqlText, found: str) -> None:
    """Check that the time column is a timestamp with a time zone."""
    name = attributes.time_column
    if found != "timestamptz":
        raise ConfigurationError(
            f"{sql.place(column_line(sql.text, name))}: the time column {name!r} of {attributes.table} is {found}.",
            remedy=f"Make it a timestamp with a time zone: CAST(... AS timestamp) AS {name}.",
        )


def _check_audit_columns(declaration: Declaration, audits: Sequence[Audit], columns: Sequence[str]) -> None:
    """Check that the query selects the columns that the audits name."""
    for number, audit in enumerate(audits):
        for column in audit.columns:
            if column not in columns:
                raise ConfigurationError(
                    f"{declaration.place('audits', number)}: the audit {audit.name} names the column {column!r}, which"
                    f" the query of {declaration.attributes.table} does not select.",
                    remedy=suggestion(column, columns),
                )


def _code_version(attributes: TableAttributes, query: str | Sequence[str]) -> str:
    """Return a hash of everything that decides which rows are built and published. The version before hashed text."""
    built: dict[str, Any] = {"mode": attributes.mode, "sources": []}
    for source in attributes.sources:
        # The hash stays what it was before a source had some of these: in this order, without those that are not used.
        names = ["table", "time_column", "key", "landed_column", "rules", "name", "keep", "order_by", "deleted"]
        unused = {"landed_column"} if source.landed_column is None else set()
        unused |= {"keep", "order_by", "deleted"} if source.keep == "first" else set()
        names = [name for name in (*names, "columns", "description") if name not in unused]
        built["sources"].append({name: getattr(source, name) for name in names})
    built |= {name: getattr(attributes, name) for name in ("audits", "columns", "quarantine_limit")}
    return version_of(query, built)


AuditFactory = Callable[..., Audit]


def audit_factories() -> dict[str, AuditFactory]:
    """Return name → function, for each function that returns an audit."""
    found: dict[str, AuditFactory] = {}
    for name, function in inspect.getmembers(audits, inspect.isfunction):
        if not name.startswith("_") and function.__annotations__.get("return") == "Audit":
            found[name] = function
    return found


def declared_audit(written: str | Mapping[str, Any], place: str) -> Audit:
    """Return an audit as it is written: `unique_key`, `{not_null: [account_id]}` or `{sql: {name: ..., query: ...}}`.

    Args:
        written: The name, or a mapping of the name to a list of columns or a mapping of arguments.
        place: Where it is written, for messages.

    Raises:
        ConfigurationError: There is no such audit, or its arguments are wrong.
    """
    named = {written: None} if isinstance(written, str) else written
    if len(named) != 1:
        raise ConfigurationError(
            f"{place}: an audit has the names {', '.join(map(str, named))}.",
            remedy="Write one audit in each item of the list: - {not_null: [account_id]}",
        )
    name, arguments = next(iter(named.items()))
    factories = audit_factories()
    if name not in factories:
        raise ConfigurationError(f"{place}: there is no audit {name!r}.", remedy=suggestion(name, tuple(factories)))
    factory = factories[name]
    positional, keywords = _arguments(arguments)
    try:
        inspect.signature(factory).bind(*positional, **keywords)
        checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(factory)
        return checked(*positional, **keywords)
    except TypeError as error:
        problem = str(error)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}"
    raise ConfigurationError(
        f"{place}: the arguments of the audit {name!r} are wrong: {problem}.",
        remedy=f"Its arguments are {_shown_signature(factory)}.",
    )


def _arguments(written: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and named arguments. `columns` of a mapping are the columns of an audit that takes any."""
    if written is None:
        return [], {}
    if isinstance(written, list):
        return written, {}
    if isinstance(written, Mapping):
        named = dict(written)
        columns = named.pop("columns", [])
        return (columns if isinstance(columns, list) else [columns]), named
    return [written], {}


def _shown_signature(factory: AuditFactory) -> str:
    shown = []
    for parameter in inspect.signature(factory).parameters.values():
        is_optional = parameter.default is not parameter.empty
        shown.append(f"{parameter.name} (default: {parameter.default})" if is_optional else parameter.name)
    return ", ".join(shown) or "none"


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
