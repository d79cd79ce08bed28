"""From the attributes of YAML to the values that Python declarations make, audits among them. Pure."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call

from lake_assets.base.sql_text import column_line
from lake_assets.errors import ConfigurationError, suggestion
from lake_assets.incremental.declaration import (
    IDENTIFIER,
    Mode,
    RawTable,
    Rule,
    Sequential,
    Source,
    Stateful,
    Stateless,
    Target,
    incremental_asset,
)
from lake_assets.incremental.declaration.decorator import query_code
from lake_assets.incremental.declaration.model import (
    Audit,
    declared_grain,
    declared_served,
    parse_duration,
    require_name,
)
from lake_assets.incremental.engine import audits
from lake_assets.incremental.sql.files import (
    Declaration,
    PinotTable,
    SourceTableAttributes,
    SqlText,
    StoredColumns,
    TableAttributes,
)
from lake_assets.incremental.sql.query import RESERVED, SqlTransform

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

CODE_VERSION_DIGITS = 12


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
    hashed = repr((query, built))
    return hashlib.sha256(hashed.encode()).hexdigest()[:CODE_VERSION_DIGITS]


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
