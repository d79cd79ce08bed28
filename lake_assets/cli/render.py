"""The renderer of all commands: a value as JSON for programs, or as lines and tables for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from lake_assets.base.hours import hour_key, to_the_second

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Item, Progress

Value = TypeVar("Value")
Row = TypeVar("Row")
Part = str | Text | Table
"""Something to print: a plain line, a styled line, or a table."""

View = Callable[[Value], Iterable[Part]]
"""Returns what a person sees of a value."""

TERMINAL_COLUMNS = 120
"""The least width of a table in a terminal; a narrower terminal wraps it."""

UNLIMITED_COLUMNS = 10_000
"""The width of a table in a pipe or a file: no cell is folded."""

HOUR_FIELDS = {
    "built",
    "changed_through",
    "compared",
    "complete_through",
    "differing",
    "event_hour",
    "held",
    "hour",
    "hours_built",
    "hours_unchanged",
    "landed_hour",
    "last_built",
    "pending",
    "planned",
    "released",
    "skipped",
    "unchanged",
}
"""Fields that hold hours as numbers. JSON shows them as hour keys."""

_console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column of a table.

    Args:
        name: The heading.
        cell: Returns the cell of a row. None becomes an empty cell, and a time is shown to the second.
        right: Whether cells are aligned to the right, as whole numbers always are.
        whole: Whether cells are never folded, because people copy them.
    """

    name: str
    cell: Callable[[Row], object]
    right: bool = False
    whole: bool = False

    @classmethod
    def named(cls, heading: str, number: int) -> Column[Row]:
        """Return a column of one field of each row: that of its name, or of its number if rows are tuples.

        Args:
            heading: Also the field, with _ for blanks; or `heading=field`.
            number: Of the column.
        """
        name, _, field = heading.partition("=")
        field = field or name.replace(" ", "_")

        def cell(row: Any) -> object:
            if isinstance(row, tuple):
                return row[number]
            return row[field] if isinstance(row, Mapping) else getattr(row, field)

        return cls(name, cell)


@dataclass(frozen=True)
class TableView(Generic[Row]):
    """A view of several values of one type: a row for each value.

    Args:
        columns: The columns, from left to right; a text names a field of the rows, as `Column.named` takes it.
        empty: The line to print instead if there is no value.
        heading: Whether the headings are printed.
    """

    columns: Sequence[Column[Row] | str]
    empty: str = ""
    heading: bool = True

    def __call__(self, rows: Iterable[Row]) -> Iterator[Part]:
        found = list(rows)
        if self.empty and not found:
            yield self.empty
        else:
            yield self._table(found)

    def _table(self, rows: Iterable[Row]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim", show_header=self.heading)
        columns: list[Column[Row]] = []
        for number, each in enumerate(self.columns):
            columns.append(Column.named(each, number) if isinstance(each, str) else each)
        lines = [[column.cell(row) for column in columns] for row in rows]
        for number, column in enumerate(columns):
            right = column.right or any(type(line[number]) is int for line in lines)
            table.add_column(
                Text(column.name), justify="right" if right else "left", overflow="fold", no_wrap=column.whole
            )
        for line in lines:
            table.add_row(*map(_cell, line))
        return table


def render(value: Value, view: View[Value], *, as_json: bool, document: object = None) -> None:
    """Print a value on standard output.

    Args:
        value: What a command found or did.
        view: What a person sees of it.
        as_json: Whether to print JSON instead of the view.
        document: What JSON shows instead of the value itself.
    """
    if as_json:
        print_json(value if document is None else document)
    else:
        show(view(value))


def show(parts: Iterable[Part]) -> None:
    """Print lines and tables."""
    for part in parts:
        if isinstance(part, Table):
            _table_console().print(part)
        else:
            _console.print(part)


def print_json(value: object) -> None:
    """Print a value as JSON."""
    _console.out(to_json(value), highlight=False)


def print_rows(head: Mapping[str, object], rows: Iterable[object]) -> None:
    """Print a JSON object whose last field, `rows`, may be too large for memory: one row in a line."""
    _console.out(to_json(head).removesuffix("\n}") + ',\n "rows": [', highlight=False)
    before = " "
    for row in rows:
        _console.out(f"{before} {json.dumps(_plain(row), default=str)}", highlight=False)
        before = ","
    _console.out(" ]\n}", highlight=False)


def to_json(value: object) -> str:
    """Return a dataclass, or a collection of them, as JSON. Hours become their keys, times their text."""
    return json.dumps(_plain(value), indent=1, default=str)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed: `1 segment`, `2 segments`."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {noun}{plural}"


def megabytes(size: int) -> str:
    """Return bytes as megabytes of 1,000,000 bytes, without the unit."""
    return f"{size / 1_000_000:,.1f}"


def succeeded(text: str) -> Text:
    """Return a line that reports a success."""
    return Text.assemble(("✓", "green"), f" {text}")


def failed(text: str) -> Text:
    """Return a line that reports a failure."""
    return Text.assemble(("✗", "red"), f" {text}")


def warning(text: str) -> Text:
    """Return a line that a person should read."""
    return Text(text, style="yellow")


def faint(text: str) -> Text:
    """Return a line of detail."""
    return Text(text, style="dim")


def _table_console() -> Console:
    width = max(_console.width, TERMINAL_COLUMNS) if _console.is_terminal else UNLIMITED_COLUMNS
    return Console(highlight=False, width=width)


def _cell(value: object) -> Text:
    if isinstance(value, datetime):
        value = to_the_second(value)
    elif type(value) is int:
        value = f"{value:,}"
    return Text("" if value is None else str(value))


def _plain(value: Any, field: str = "") -> Any:
    if hasattr(value, "document"):
        value = value.document()
    elif is_dataclass(value):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(inner, name) for name, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner, field) for inner in value]
    return _plain_scalar(value, field)


def _plain_scalar(value: Any, field: str) -> Any:
    if field in HOUR_FIELDS and isinstance(value, int):
        return hour_key(value)
    return value


@contextmanager
def progress_bar(doing: str, *, shown: bool = True) -> Iterator[Callable[..., None]]:
    """Show a bar on standard error until the block ends, if that is a terminal.

    Yields:
        A function of how much is done, and of how much, if that is known.
    """
    console = Console(stderr=True)
    columns = (TextColumn(doing), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    with RichProgress(*columns, console=console, transient=True, disable=not shown or not console.is_terminal) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, of=None: bar.update(task, completed=done, total=of)


def progress(doing: str) -> Progress:
    """Return how to go through many tables: with a bar on standard error, if that is a terminal."""

    def with_bar(items: Sequence[Item]) -> Iterable[Item]:
        with progress_bar(f"{doing} {len(items):,} tables") as update:
            for number, item in enumerate(items, 1):
                yield item
                update(number, len(items))

    return with_bar
