"""Fills in the templates of a new table. Identifiers are checked first; no catalog is opened."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template

from lake_assets.cli.scaffold.templates import DECLARATION, GRAINS, MODES, TEST
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import IDENTIFIER, LANDING_COLUMNS, TABLE

_LETTERS = "Use lower-case letters, digits and _"
_TAKEN = {*LANDING_COLUMNS, "amount", "events", "hour", "state_hour", "day", "state_day"}
"""Columns that the templates use."""


@dataclass(frozen=True)
class NewTable:
    """A table to declare. Raises `UsageError` for an invalid name.

    Args:
        table: The table as `namespace.name`.
        mode: A key of `MODES`.
        source: The raw table that it is built from.
        time_column: The time column of the source.
        key: The key column of the source.
        grain: The period of one partition, a key of `GRAINS`.
    """

    table: str
    mode: str
    source: str
    time_column: str
    key: str
    grain: str = "hour"

    def __post_init__(self) -> None:
        _require_one_of("The mode", self.mode, MODES)
        _require_one_of("The grain", self.grain, GRAINS)
        _require_table("The table", self.table)
        _require_table("The source", self.source)
        _require_new_module(self.name)
        _require_column("The time column", self.time_column)
        _require_column("The key", self.key)
        if self.key == self.time_column:
            raise UsageError(f"Key and time column are both {self.key!r}.", remedy="Name two different columns.")
        if self.table == self.source:
            raise UsageError(f"Table and source are both {self.table!r}.", remedy="Name two different tables.")

    @property
    def name(self) -> str:
        """The table without its namespace."""
        return self.table.split(".")[1]

    @property
    def pipeline(self) -> str:
        """The value of LAKE_PIPELINES."""
        return f"{self.name}:PIPELINE"


def files(new: NewTable) -> dict[str, str]:
    """Return file name → content: the declaration `<name>.py`, and `test_<name>.py`."""
    rows = new.source.split(".")[1]
    words = {
        "table": new.table,
        "namespace": new.table.split(".")[0],
        "name": new.name,
        "source": new.source,
        "time": new.time_column,
        "key": new.key,
        "rows": "rows" if rows in ("session", new.name, "F") else rows,
        "constant": "SOURCE" if rows.upper() in ("PIPELINE", "F") else rows.upper(),
        **GRAINS[new.grain],
    }
    words |= {name: Template(text).substitute(words) for name, text in MODES[new.mode].items()}
    return {
        f"{new.name}.py": Template(DECLARATION).substitute(words),
        f"test_{new.name}.py": Template(TEST).substitute(words),
    }


def write(new: NewTable, folder: Path) -> list[Path]:
    """Write the files into a folder, which is created if it is missing.

    Returns:
        The paths of the files.

    Raises:
        UsageError: One of the files exists. None is written.
    """
    contents = {folder / name: text for name, text in files(new).items()}
    existing = [str(path) for path in contents if path.exists()]
    if existing:
        raise UsageError(
            f"{' and '.join(existing)} would be overwritten.", remedy="Move the file away, or name another --out."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in contents.items():
        with path.open("x") as file:
            file.write(text)
    return list(contents)


def next_steps(new: NewTable, folder: Path) -> str:
    """Return what to do with the files, as commands."""
    test = folder / f"test_{new.name}.py"
    declaration = folder / f"{new.name}.py"
    return f"""Next:
  1. python -m pytest {test}     # runs the files as they are
  2. Declare the columns of {new.source} in {declaration}, and change the function.
  3. export PYTHONPATH={folder.resolve()} LAKE_PIPELINES={new.pipeline}
  4. lake init                                  # creates {new.source} and {new.table}
  5. Land rows, then set the table property lake.complete-through of {new.source}.
  6. lake plan {new.name}, lake catch-up, or lake up for the UI"""


def _require_one_of(what: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise UsageError(f"{what} is {value!r}.", remedy=f"Use one of: {', '.join(known)}.")


def _require_table(what: str, table: str) -> None:
    if not TABLE.fullmatch(table) or keyword.iskeyword(table.split(".")[1]):
        raise UsageError(
            f"{what} is called {table!r}.", remedy=f"{_LETTERS}, and no keyword of Python; a table is namespace.name."
        )


def _require_new_module(name: str) -> None:
    if name in sys.stdlib_module_names or find_spec(name):
        raise UsageError(f"{name}.py would hide Python's module {name}.", remedy="Give the table another name.")


def _require_column(what: str, column: str) -> None:
    if not IDENTIFIER.fullmatch(column):
        raise UsageError(f"{what} is called {column!r}.", remedy=f"{_LETTERS}.")
    if column in _TAKEN:
        raise UsageError(
            f"{what} is called {column!r}, which is a column of the written files.", remedy="Name another column."
        )
