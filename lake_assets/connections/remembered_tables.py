"""`tables.json` of a data directory: the tables that its catalog has had, and where they are.

It is stored outside the catalog, so it shows that a catalog was lost. A data directory of an earlier version has no
such file: the first process that opens its catalog writes one. A table that is dropped stays in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from lake_assets.connections.own_secrets import make_private

FILE = "tables.json"
FORMAT = 1


@dataclass(frozen=True)
class RememberedTables:
    """The content of the file.

    Attributes:
        catalog: Address of the catalog that had the tables, without a password.
        tables: Table → location.
    """

    catalog: str
    tables: Mapping[str, str]


def read(home: Path) -> RememberedTables | None:
    """Return the tables that a data directory remembers; None without a file that this version can read."""
    try:
        return parse((home / FILE).read_text())
    except (OSError, ValueError):
        return None


def parse(text: str) -> RememberedTables:
    """Return the content of the file.

    Raises:
        ValueError: The text is not in the format of this version.
    """
    content: Any = json.loads(text)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"is not in format {FORMAT}")
    tables = content.get("tables")
    if not isinstance(tables, dict):
        raise ValueError("names no tables")
    return RememberedTables(str(content.get("catalog")), tables)


def remember(home: Path, catalog: str, locations: Mapping[str, str]) -> None:
    """Add tables to the file, or replace their locations.

    If two processes write at once, one of them is lost, and the next process that opens the catalog adds it again.

    Args:
        home: The data directory.
        catalog: Address of the catalog, without a password.
        locations: Table → location.
    """
    before = read(home)
    known = before.tables if before else {}
    with suppress(OSError):  # a directory that cannot be written to can still be read
        write(home, RememberedTables(catalog, {**known, **locations}))


def forget(home: Path, names: Iterable[str]) -> None:
    """Remove tables from the file."""
    before = read(home)
    if before is None:
        return
    dropped = set(names)
    kept = {name: location for name, location in before.tables.items() if name not in dropped}
    write(home, RememberedTables(before.catalog, kept))


def write(home: Path, content: RememberedTables) -> None:
    """Replace the file in one step."""
    file = home / FILE
    make_private(home)  # with catalog and warehouse elsewhere, nothing else may have made it
    partial = file.with_suffix(f".{uuid4().hex}")
    ordered = {**asdict(content), "tables": dict(sorted(content.tables.items()))}
    partial.write_text(json.dumps({"format": FORMAT, **ordered}, indent=1))
    partial.replace(file)
