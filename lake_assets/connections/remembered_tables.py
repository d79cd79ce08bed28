"""`tables.json` of a data directory: the tables that its catalog has had, and where they are.

It is stored outside the catalog, so it shows that a catalog was lost. A data directory of an earlier version has no
such file: the first process that opens its catalog writes one. A table that is dropped stays in it.

Its format is that of the data directory: a version that changes how state is stored raises it, so that earlier versions
refuse the directory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from lake_assets.base.version import __version__
from lake_assets.connections.own_secrets import make_private
from lake_assets.errors import StoredByNewerVersion

FILE = "tables.json"
FORMAT = 1
"""A version reads all formats up to its own."""


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
    """Return the tables that a data directory remembers; None if the file is missing or damaged.

    Raises:
        StoredByNewerVersion: A later version has written the file.
    """
    try:
        return parse((home / FILE).read_text(), home)
    except (OSError, ValueError):
        return None


def check_version(home: Path) -> None:
    """Refuse a data directory of a later version.

    Raises:
        StoredByNewerVersion: It is one.
    """
    read(home)


def parse(text: str, home: Path) -> RememberedTables:
    """Return the content of the file.

    Args:
        text: The text of the file.
        home: The data directory, for messages.

    Raises:
        StoredByNewerVersion: A later version has written the file.
        ValueError: The file is damaged.
    """
    content: Any = json.loads(text)
    found = content.get("format") if isinstance(content, dict) else None
    if not isinstance(found, int):
        raise ValueError("it names no format")
    if found > FORMAT:
        written_by = content.get("written_by")
        raise StoredByNewerVersion(f"The data directory {home}", found=found, readable=FORMAT, written_by=written_by)
    tables = content.get("tables")
    if not isinstance(tables, dict):
        raise ValueError("it names no tables")
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
    partial.write_text(json.dumps({"format": FORMAT, "written_by": __version__, **ordered}, indent=1))
    partial.replace(file)
