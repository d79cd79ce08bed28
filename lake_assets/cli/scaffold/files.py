"""`lake new`: the files that a table of one's own starts from, a declaration and a test, which run as they are.

Pure text: identifiers are checked, then put into templates. Nothing of the platform is opened.
"""

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


@dataclass(frozen=True)
class NewTable:
    """A table to be declared. table: `namespace.name`. source: a raw table. grain: what one partition holds.

    `UsageError` for what cannot be a name.
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
        _require_own_module(self.name)
        _require_column("The time column", self.time_column)
        _require_column("The key", self.key)
        if self.key == self.time_column:
            raise UsageError(f"Key and time column are both {self.key!r}.", remedy="Name two columns.")
        if self.table == self.source:
            raise UsageError(f"Table and source are both {self.table!r}.", remedy="Name two tables.")

    @property
    def name(self) -> str:
        return self.table.split(".")[1]

    @property
    def pipeline(self) -> str:
        """What to name in LAKE_PIPELINES."""
        return f"{self.name}:PIPELINE"


_LETTERS = "Use lower-case letters, digits and _, and no word of Python's own"
_TAKEN = {*LANDING_COLUMNS, "amount", "events", "hour", "state_hour", "day", "state_day"}
"""Columns that the written files have by themselves."""


def _require_one_of(what: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise UsageError(f"{what} is {value!r}.", remedy=f"Use one of: {', '.join(known)}.")


def _require_table(what: str, table: str) -> None:
    if not TABLE.fullmatch(table) or keyword.iskeyword(table.split(".")[1]):
        raise UsageError(f"{what} is called {table!r}.", remedy=f"{_LETTERS}; a table is namespace.name.")


def _require_own_module(name: str) -> None:
    if name in sys.stdlib_module_names or find_spec(name):
        raise UsageError(
            f"{name}.py would stand in the way of Python's module {name}.", remedy="Give the table another name."
        )


def _require_column(what: str, column: str) -> None:
    if not IDENTIFIER.fullmatch(column):
        raise UsageError(f"{what} is called {column!r}.", remedy="Use lower-case letters, digits and _.")
    if column in _TAKEN:
        raise UsageError(f"{what} is called {column!r}, as one that is written anyway.", remedy="Name another.")


def files(new: NewTable) -> dict[str, str]:
    """File name → its content: the declaration `<name>.py`, and `test_<name>.py`."""
    mode = MODES[new.mode]
    rows = new.source.split(".")[1]
    words = {
        "table": new.table,
        "namespace": new.table.split(".")[0],
        "name": new.name,
        "source": new.source,
        "time": new.time_column,
        "key": new.key,
        "rows": rows if rows not in ("session", new.name, "F") else "rows",
        "constant": rows.upper() if rows.upper() not in ("PIPELINE", "F") else "SOURCE",
        **GRAINS[new.grain],
    }
    filled = {name: Template(text).substitute(words) for name, text in mode.items()}
    words |= filled
    return {
        f"{new.name}.py": Template(DECLARATION).substitute(words),
        f"test_{new.name}.py": Template(TEST).substitute(words),
    }


def write(new: NewTable, folder: Path) -> list[Path]:
    """Write the files into a folder, which is made when missing; their paths. `UsageError` if one is there already."""
    contents = {folder / name: text for name, text in files(new).items()}
    if there := [str(path) for path in contents if path.exists()]:
        raise UsageError(f"{' and '.join(there)} would be overwritten.", remedy="Move it away, or name another --out.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in contents.items():
        with path.open("x") as file:
            file.write(text)
    return list(contents)


def next_steps(new: NewTable, folder: Path) -> str:
    """What to do with the files, as commands."""
    where = folder.resolve()
    return f"""Next:
  1. python -m pytest {folder / f"test_{new.name}.py"}     # as they are, on a lake of its own
  2. Give {new.source} its columns in {folder / f"{new.name}.py"}, and change the function.
  3. export PYTHONPATH={where} LAKE_PIPELINES={new.pipeline}
  4. lake init                                  # creates {new.source} and {new.table}
  5. Land rows, then set the table property lake.complete-through of {new.source}.
  6. lake plan {new.name}, lake catch-up, or lake up for the UI"""
