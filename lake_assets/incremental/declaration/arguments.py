"""Checks of the arguments of a declaration: each is of its type. They need no table, and run before a value is made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.modes import Sequential, Stateful, Stateless
from lake_assets.incremental.declaration.tables import RawTable, Source, Subject
from lake_assets.incremental.declaration.target import Audit, Target

MODES = (Stateless, Stateful, Sequential)
EMAIL = re.compile(r"[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z|]{2,7}")
TEAM = re.compile(r"team:.+", re.DOTALL)
"""The owners that Dagster accepts: email addresses and teams."""


def check_arguments(
    table: str,
    *,
    mode: object,
    sources: object,
    key: object,
    columns: object,
    audits: object,
    owners: object,
) -> None:
    """Check the types of what `incremental_asset` receives.

    Raises:
        ConfigurationError: An argument is of another type.
    """
    _check_mode(table, mode)
    check_items(f"sources= of {table}", sources, Source, example='sources=[Source("raw.events", ...)]')
    check_items(f"audits= of {table}", audits, Audit, example="audits=[unique_key()]")
    _check_key(table, key)
    if not isinstance(columns, Mapping):
        raise ConfigurationError(
            f"columns= of {table} is {_shown(columns)}.",
            remedy='Write a dict of column and Iceberg type: columns={"amount": "long", ...}.',
        )
    _check_owners(table, owners)


def check_items(what: str, found: object, kind: type, *, example: str) -> None:
    """Check that an argument is a list or tuple of values of one class.

    Args:
        what: The argument, for the message.
        found: Its value.
        kind: The class.
        example: The argument as it should be written.

    Raises:
        ConfigurationError: It is not.
    """
    if isinstance(found, kind):
        raise ConfigurationError(
            f"{what} is one {kind.__name__} ({_shown(found)}), not a list or tuple.", remedy=f"Write {example}."
        )
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise ConfigurationError(f"{what} is {_shown(found)}, not a list or tuple.", remedy=f"Write {example}.")
    for item in found:
        if not isinstance(item, kind):
            raise ConfigurationError(
                f"{what} contains {_shown(item)}, which is no {kind.__name__}.", remedy=_item_remedy(item, example)
            )


def closest(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that a name is probably meant to be; None if none is similar."""
    found = get_close_matches(name, known, n=1)
    return found[0] if found else None


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return a remedy for an unknown name: the closest known one, or all of them."""
    near = closest(name, known)
    if near:
        return f"Did you mean {near!r}? Otherwise name one of: {', '.join(known)}."
    return f"Name one of: {', '.join(known)}."


def _check_mode(table: str, mode: object) -> None:
    if isinstance(mode, MODES):
        return
    if isinstance(mode, type) and issubclass(mode, MODES):
        raise ConfigurationError(
            f"{table} has mode={mode.__name__}, the class and not a value of it.",
            remedy=f"Add parentheses: mode={mode.__name__}().",
        )
    names = {kind.__name__.lower(): kind.__name__ for kind in MODES}
    wanted = names.get(str(mode).lower(), "Stateless")
    raise ConfigurationError(
        f"{table} has mode={_shown(mode)}, which is no mode.",
        remedy=f"Write mode={wanted}(). The modes are Stateless(), Stateful() and Sequential().",
    )


def _check_key(table: str, key: object) -> None:
    names = [key] if isinstance(key, str) else key
    if isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
        return
    raise ConfigurationError(
        f"{table} has key={_shown(key)}.",
        remedy='Name the column, or the columns, that with the time identify a row: key="payment_id".',
    )


def _check_owners(table: str, owners: object) -> None:
    if isinstance(owners, str) or not isinstance(owners, Sequence):
        raise ConfigurationError(
            f"owners= of {table} is {_shown(owners)}, not a list.", remedy='Write owners=["team:weather"].'
        )
    for owner in owners:
        text = str(owner)
        if not EMAIL.fullmatch(text) and not TEAM.fullmatch(text):
            raise ConfigurationError(
                f"{table} has the owner {owner!r}, which is neither an email address nor a team.",
                remedy=f"Write the team as 'team:{text}', or use an email address.",
            )


def _item_remedy(item: object, example: str) -> str:
    name = getattr(item, "__name__", None)
    if not callable(item) or name is None:
        return f"Write {example}."
    if example.startswith("targets="):
        return f"Decorate the function {name} with @incremental_asset(...)."
    return f"If {name} returns the value, call it: {name}(...)."


def _shown(value: Any) -> str:
    """Return a value as a message shows it: tables by name, functions and classes by kind and name, others in full."""
    if isinstance(value, RawTable | Source | Target):
        return value.table
    if isinstance(value, Subject | Audit):
        return value.name
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and hasattr(value, "__name__"):
        return f"the function {value.__name__}"
    return repr(value)
