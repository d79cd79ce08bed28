"""The rows of CSV files as other programs write them, strictly: each cell as text, or `UsageError` with its line.

A cell in quotes may have delimiters and line breaks in it, and blanks around it; a quote in it is doubled, or has an
escape before it. An empty cell is None, and the empty text if it has quotes. The header is read as the rows are.
"""

from __future__ import annotations

import gzip
import re
import shlex
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from lake_assets.base.values import Refused
from lake_assets.errors import UsageError

LONGEST_ROW = 16 << 20
"""Characters of the longest row."""

_BLOCK = 1 << 20
_LINE_ENDS = {"\n": "LF", "\r": "CR", "\r\n": "CR LF"}
_UNDECODED = re.compile("[\udc80-\udcff]")
_DIALECT_REMEDY = "Correct the line, or name how the file is written: --delimiter, --quote and --escape."

Cells = list[str | None]


class _Row(NamedTuple):
    cells: Cells
    next: int
    """Where the next row begins."""
    line_end: str


class _LoneEscape(Refused):
    """An escape stands before what needs none, so nobody knows what is meant."""


@dataclass(frozen=True)
class CsvFile:
    """A CSV file in UTF-8, and how it is written.

    Attributes:
        path: May end in `.gz`.
        delimiter: Between cells.
        quote: Around cells; empty for none.
        escape: Before a quote in a cell in quotes; the quote itself if it is doubled.
    """

    path: Path
    delimiter: str
    quote: str
    escape: str

    def header(self) -> list[str]:
        """Return the names of the columns. Raises `UsageError`."""
        _, cells = next(self._rows(), (0, []))
        if cells in ([], [None]):
            raise UsageError(
                f"{self.path} begins with an empty line." if cells else f"{self.path} is empty.",
                remedy="The first line of a CSV file names its columns.",
            )
        return [name or "" for name in cells]

    def rows(self) -> Iterator[tuple[int, Cells]]:
        """Yield the length and the cells of each row, as many as the header has. Empty lines are left out.

        Raises:
            UsageError: The file is not written so.
        """
        return islice(self._rows(), 1, None)

    def with_escape(self) -> CsvFile:
        """Return the file as RFC 4180 has it; with backslashes before quotes, if it can be read only so."""
        backslashes = replace(self, escape="\\")
        if self._has_escaped_quotes() and not self._can_be_read() and backslashes._can_be_read():
            return backslashes
        return self

    def _has_escaped_quotes(self) -> bool:
        last = ""
        for block in self._blocks():
            if f"\\{self.quote}" in last + block:
                return True
            last = block[-1:]
        return False

    def _can_be_read(self) -> bool:
        try:
            for _ in self.rows():
                pass
        except UsageError as error:
            return isinstance(error.__cause__, _LoneEscape)  # which reading the rows reports
        return True

    def _rows(self) -> Iterator[tuple[int, Cells]]:
        """Yield the length and the cells of the header and of each row."""
        text, start, line, width, line_end = "", 0, 1, 0, "\n"
        try:
            for block in self._blocks():
                line += _lines(text, line_end, start)
                text, start = text[start:] + block, 0
                while start < len(text):
                    row = self._row(text, start, line_end if width else "", is_last=not block)
                    if row is None:
                        break
                    width, line_end = width or len(row.cells), line_end if width else row.line_end
                    if len(row.cells) == width:
                        yield row.next - start, row.cells
                    elif row.cells != [None]:
                        raise Refused(f"{len(row.cells)} cells, but the header has {width}", _DIALECT_REMEDY)
                    start = row.next
        except Refused as refused:
            number = line + _lines(text, line_end, start)
            raise UsageError(f"{self.path}, line {number:,}: {refused.reason}.", remedy=refused.remedy) from refused

    def _row(self, text: str, start: int, line_end: str, *, is_last: bool) -> _Row | None:
        """Return the row that begins at a place of a text; None if the text must go on to tell.

        Args:
            text: A part of the file.
            start: Where the row begins.
            line_end: Of the lines before; empty if there are none.
            is_last: Whether the file ends with the text.

        Raises:
            Refused: It is no row.
        """
        is_last = is_last or len(text) - start > LONGEST_ROW
        stop = text.find(line_end, start) if line_end else -1
        plain = text[start:stop] if stop >= 0 else '"\n'
        if (self.quote and self.quote in plain) or "\n" in plain or "\r" in plain:
            row = self._row_of_cells(text, start, is_last=is_last)
        else:
            row = _Row([cell or None for cell in plain.split(self.delimiter)], stop + len(line_end), line_end)
        if row and row.next - start > LONGEST_ROW:
            raise Refused(f"longer than {LONGEST_ROW >> 20} MB", "Store such values outside of rows.")
        if row and line_end and row.line_end not in (line_end, ""):
            ends = _LINE_ENDS[row.line_end], _LINE_ENDS[line_end]
            raise Refused("ends with {}, but the lines before with {}".format(*ends), "Let all lines end alike.")
        found = _UNDECODED.search(text, start, row.next) if row and not text.isascii() else None
        if found:
            remedy = f"Convert the file, such as by iconv -f latin1 -t utf-8 {shlex.quote(str(self.path))}."
            raise Refused("not UTF-8", remedy)
        return row

    def _row_of_cells(self, text: str, start: int, *, is_last: bool) -> _Row | None:
        cells: Cells = []
        while True:
            found = self._cell.match(text, start)
            if not is_last and (found is None or found.end() == len(text)):
                return None
            if found is None:
                raise Refused(
                    "a quoted cell does not end, or text follows its end",
                    "Correct the line. If no cell of the file is quoted, add --quote ''.",
                )
            quoted, plain, sign = found.groups()
            cells.append((plain or None) if quoted is None else self._unescaped(quoted))
            start = found.end()
            if sign != self.delimiter:
                return _Row(cells, start, sign)

    @cached_property
    def _cell(self) -> re.Pattern[str]:
        """A cell in quotes, or a plain one that begins with none, and what follows it."""
        delimiter, quote, escape = map(re.escape, (self.delimiter, self.quote, self.escape))
        blanks = "" if self.delimiter == " " else " *+"
        pair = quote * 2 if escape == quote else f"{escape}."
        inner = f"[^{quote}{escape}]*+(?:{pair}[^{quote}{escape}]*+)*+"
        quoted = f"{blanks}{quote}({inner}){quote}{blanks}|(?!{blanks}{quote})" if quote else "()(?!)|"
        return re.compile(rf"(?:{quoted}([^{delimiter}\r\n]*+))({delimiter}|\r\n|\n|\r|\Z)", re.DOTALL)

    def _unescaped(self, quoted: str) -> str:
        if self.escape == self.quote:
            return quoted.replace(self.quote * 2, self.quote)
        pairs = re.split(f"{re.escape(self.escape)}(.)", quoted, flags=re.DOTALL)
        for sign in pairs[1::2]:
            if sign not in (self.quote, self.escape, "\r", "\n"):
                raise _LoneEscape(
                    f"{self.escape}{sign} in quotes, in which {self.escape} escapes quotes",
                    f"Write {self.escape * 2} for {self.escape}, and other signs as they are.",
                )
        return "".join(pairs)

    def _blocks(self) -> Iterator[str]:
        """Yield the text of the file, and the empty text at its end."""
        binary = gzip.open if self.path.suffix.lower() == ".gz" else Path.open
        try:
            with TextIOWrapper(binary(self.path, "rb"), "utf-8-sig", "surrogateescape", newline="") as opened:
                while block := opened.read(_BLOCK):
                    yield block
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"{self.path} cannot be read to its end: {error}.", remedy="Write it again.") from error
        yield ""


def _lines(text: str, line_end: str, stop: int) -> int:
    return text.count("\r" if line_end == "\r" else "\n", 0, stop)
