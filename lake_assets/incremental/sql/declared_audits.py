"""The audits that a YAML declaration names: the functions of `audits`, with their arguments. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.arguments import suggestion
from lake_assets.incremental.declaration.target import Audit
from lake_assets.incremental.engine import audits

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
    name, arguments = _name_and_arguments(written, place)
    factories = audit_factories()
    if name not in factories:
        raise ConfigurationError(f"{place}: there is no audit {name!r}.", remedy=suggestion(name, tuple(factories)))
    positional, named = _arguments(arguments)
    return _called(name, factories[name], positional, named, place)


def _name_and_arguments(written: str | Mapping[str, Any], place: str) -> tuple[str, Any]:
    if isinstance(written, str):
        return written, None
    if len(written) != 1:
        raise ConfigurationError(
            f"{place}: an audit has the names {', '.join(map(str, written))}.",
            remedy="Write one audit in each item of the list: - {not_null: [account_id]}",
        )
    return next(iter(written.items()))


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


def _called(name: str, factory: AuditFactory, positional: list[Any], named: dict[str, Any], place: str) -> Audit:
    try:
        inspect.signature(factory).bind(*positional, **named)
        checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(factory)
        return checked(*positional, **named)
    except TypeError as error:
        problem = str(error)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}"
    raise ConfigurationError(
        f"{place}: the arguments of the audit {name!r} are wrong: {problem}.",
        remedy=f"Its arguments are {_shown_signature(factory)}.",
    )


def _shown_signature(factory: AuditFactory) -> str:
    shown = []
    for parameter in inspect.signature(factory).parameters.values():
        is_optional = parameter.default is not parameter.empty
        shown.append(f"{parameter.name} (default: {parameter.default})" if is_optional else parameter.name)
    return ", ".join(shown) or "none"
