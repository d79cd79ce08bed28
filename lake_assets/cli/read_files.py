"""The rows of files as other programs write them: CSV, JSON lines and Parquet, in batches, each value cast strictly.

Opening a file checks its columns. Reading it holds a few batches in memory, however long the file is, and collects
what no column can hold: each kind of mistake with its first rows. DuckDB reads JSON, and pyarrow Parquet; none of them
decides what a value is: `base.values` does.

A cell of CSV in quotes may have delimiters and line breaks in it, and blanks around it; a quote in it is doubled, or
has an escape before it. An empty cell is None, and the empty text if it has quotes. The header is read as the rows
are.
"""

from __future__ import annotations

import gzip
import re
import shlex
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from io import TextIOWrapper
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lake_assets.base.values import NO_ZONE, Cast, Refused, cast, json_object, shown, time_of, time_text, too_fine
from lake_assets.errors import LakeError, UsageError, first_line

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

LONGEST_ROW = 16 << 20
"""Characters of the longest row."""

_BLOCK = 1 << 20
_LINE_ENDS = {"\n": "LF", "\r": "CR", "\r\n": "CR LF"}
_UNDECODED = re.compile("[\udc80-\udcff]")
_DIALECT_REMEDY = "Correct the line, or name how the file is written: --delimiter, --quote and --escape."

Cells = list[str | None]
OnRefused = Callable[[int, Refused], None]
"""Called with the line of a row that is none."""


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

    def rows(self, on_refused: OnRefused | None = None) -> Iterator[tuple[int, Cells]]:
        """Yield the length and the cells of each row, as many as the header has. Empty lines are left out.

        Args:
            on_refused: Called with a row that has another number of cells, which then counts as a row of nulls.

        Raises:
            UsageError: The file is not written so; without `on_refused`, a row has another number of cells.
        """
        return islice(self._rows(on_refused), 1, None)

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

    def _rows(self, on_refused: OnRefused | None = None) -> Iterator[tuple[int, Cells]]:
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
                        wrong = Refused(f"{len(row.cells)} cells, but the header has {width}", _DIALECT_REMEDY)
                        if on_refused is None:
                            raise wrong
                        on_refused(line + _lines(text, line_end, start), wrong)
                        yield row.next - start, [None] * width
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


_READER_MEMORY = "600MB"
_BATCH_ROWS = 10_000
_BATCH_CHARACTERS = 8 << 20
_FOREIGN = {
    b"PK\x03\x04": "a zip archive or a workbook",
    b"\x1f\x8b": "packed by gzip, which its name does not say",
    b"BZh9": "packed by bzip2",
    b"\x28\xb5\x2f\xfd": "packed by zstd",
    b"\xfd7zX": "packed by xz",
    b"Obj\x01": "Avro",
    b"\xff\xfe": "in UTF-16",
    b"\xfe\xff": "in UTF-16",
}
"""First bytes of files that are neither CSV nor JSON in UTF-8."""

_DELIMITERS = (",", ";", "\t", "|")

Batches = Callable[[], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True)
class Dialect:
    """How files are written, as far as it was named.

    Attributes:
        delimiter: Between the cells of CSV; None to find it by the header.
        quote: Around cells; empty for none.
        escape: Before a quote in a quoted cell; None to find whether it is a quote or a backslash.
        nulls: Texts of CSV that are null. An empty cell without quotes always is.
        ignored: Columns of the files that are left out.
        zone: The zone of times that name none; None to refuse them.
    """

    delimiter: str | None = None
    quote: str = '"'
    escape: str | None = None
    nulls: tuple[str, ...] = ("\\N",)
    ignored: frozenset[str] = frozenset()
    zone: ZoneInfo | None = None

    def __post_init__(self) -> None:
        for option, sign in (("--delimiter", self.delimiter), ("--quote", self.quote), ("--escape", self.escape)):
            if sign is not None and len(sign) != 1 and (sign or option != "--quote"):
                raise UsageError(f"{option} is {sign!r}.", remedy="Name one character.")


def dialect(
    delimiter: str | None,
    quote: str,
    escape: str | None,
    *,
    nulls: Collection[str] | None,
    ignored: Collection[str],
    zone: str | None,
) -> Dialect:
    """Return the dialect that options name. Raises `UsageError`."""
    try:
        found = ZoneInfo(zone) if zone else None
    except (ZoneInfoNotFoundError, ValueError):
        raise UsageError(
            f"--zone is {zone!r}, which is no time zone.", remedy="Name one such as UTC or America/New_York."
        ) from None
    tab = "\t" if delimiter in ("\\t", "tab") else delimiter
    texts = Dialect.nulls if nulls is None else tuple(nulls)
    return Dialect(tab, quote, escape, texts, frozenset(ignored), found)


MOST_KINDS = 20
FIRST_ROWS = 3
"""Kinds of mistakes that are named, and rows of each."""

MOST_ROWS = 1_000_000
"""After the first mistake so many more rows of a file are looked at."""


@dataclass
class _Kind:
    """Mistakes of one kind. `first` is the first of them, `further` the next ones."""

    first: str
    further: list[str] = field(default_factory=list)
    number: int = 1


@dataclass
class Mistakes:
    """What is wrong with files: each kind of mistake once, with its first rows."""

    _kinds: dict[object, _Kind] = field(default_factory=dict)
    _remedies: dict[str, None] = field(default_factory=dict)
    _nulls: dict[str, None] = field(default_factory=dict)
    _more: int = 0

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def add(self, kind: object, first: str, remedy: str, *, again: str = "") -> None:
        """Add one mistake.

        Args:
            kind: Equal for mistakes of one kind.
            first: What is wrong, as a sentence without its full stop.
            remedy: What to do, as sentences.
            again: The same in short, if it is not the first one of its kind; empty if it then says nothing new.
        """
        known = self._kinds.get(kind)
        if known is not None:
            known.number += bool(again)
            if again and len(known.further) < FIRST_ROWS - 1:
                known.further.append(again)
        elif len(self._kinds) == MOST_KINDS:
            self._more += 1
        else:
            self._kinds[kind] = _Kind(first)
            self._remedies[remedy] = None

    def add_error(self, error: LakeError | None) -> None:
        """Add an error, if there is one."""
        if error is not None:
            self.add(error.problem, error.problem.removesuffix("."), error.remedy)

    def may_stand_for_null(self, text: str) -> None:
        """Remember a text that the file may have for null."""
        if len(self._nulls) < FIRST_ROWS:
            self._nulls[text] = None

    def check(self) -> None:
        """Raise `UsageError` if there is a mistake. It names all kinds."""
        if not self._kinds:
            return
        lines = []
        for kind in self._kinds.values():
            more = kind.number - 1 - len(kind.further)
            further = [*kind.further, *([f"{more:,} more"] if more else [])]
            lines.append(f"{kind.first}{'; also ' if further else ''}{', '.join(further)}.")
        if self._more:
            lines.append(f"There are {self._more:,} more mistakes, of other kinds.")
        remedy = " ".join(self._remedies)
        if self._nulls:
            texts = " or ".join(map(shown, self._nulls))
            options = " ".join(f"--null {shlex.quote(text)}" for text in self._nulls)
            remedy = f"{remedy} If {texts} stands for null, add {options}."
        raise UsageError("\n  ".join(lines), remedy=remedy)


@dataclass(frozen=True)
class Wanted:
    """The rows that files must have.

    Attributes:
        kinds: Column → Iceberg type.
        schema: The same columns with their types in Arrow.
        dialect: How the files are written.
        former: Column → its former name.
        mistakes: What is wrong with the files.
    """

    kinds: Mapping[str, str]
    schema: pa.Schema
    dialect: Dialect = Dialect()
    former: Mapping[str, str] = field(default_factory=dict)
    mistakes: Mistakes = field(default_factory=Mistakes)


@dataclass(frozen=True)
class OpenFile:
    """A file with the right columns.

    Attributes:
        description: What was found out about it, for people.
        read: Reads it: yields the declared columns, in the order of the schema.
        mistakes: What is wrong with it.
    """

    description: str
    read: Batches
    mistakes: Mistakes

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, until there is a mistake. Then the others are looked at, and `mistakes` has all of them."""
        looked_at = 0
        try:
            for batch in self.read():
                if not self.mistakes:
                    yield batch
                looked_at += len(batch) if self.mistakes else 0
                if looked_at > MOST_ROWS:
                    return
        except LakeError as error:
            self.mistakes.add_error(error)


def open_file(file: Path, wanted: Wanted) -> OpenFile:
    """Open a file, and check its columns.

    Args:
        file: It is read as Parquet or as JSON if it is called so, else as CSV with a header. CSV and JSON may be
            compressed by gzip.
        wanted: The columns that it must have.

    Raises:
        UsageError: The file cannot be read, or has a column twice. That it lacks one, or has one that is neither
            declared nor ignored, is a mistake among others.
    """
    suffixes = [suffix.lower() for suffix in file.suffixes]
    is_packed = suffixes[-1:] == [".gz"]
    last = suffixes[-2:-1] if is_packed else suffixes[-1:]
    first_bytes = _first_bytes(file)
    for sign, what in _FOREIGN.items():
        if first_bytes.startswith(sign) and not is_packed:
            raise UsageError(
                f"{file} is {what}.",
                remedy="Write it as CSV or JSON in UTF-8, which may be packed by gzip and end in .gz, or as Parquet.",
            )
    if first_bytes == b"PAR1" or last == [".parquet"]:
        return _open_parquet(file, wanted)
    is_json = last in ([".json"], [".jsonl"], [".ndjson"])
    for column, kind in wanted.kinds.items():
        if cast(kind, text_only=not is_json) is None:
            able = "Parquet" if cast(kind) is None else "JSON or Parquet"
            raise UsageError(
                f"{column} is declared as {kind}, which only a file in {able} can have.",
                remedy=f"Write the rows as {able}, or declare the column as string.",
            )
    if is_json:
        return OpenFile(f"{file.name}: JSON", partial(_json_batches, file, wanted), wanted.mistakes)
    return _open_csv(file, wanted)


def _first_bytes(file: Path) -> bytes:
    try:
        if file.exists() and not file.is_file():  # a pipe would be empty when it is read the second time
            raise UsageError(
                f"{file} is a {'folder' if file.is_dir() else 'pipe'}, and no file.",
                remedy="Name files, such as by *.csv. Write what a program prints to a file first.",
            )
        with file.open("rb") as opened:
            return opened.read(4)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.", remedy="Correct the name of the file.") from error


def _columns_of(file: Path, found: Sequence[str], wanted: Wanted) -> tuple[dict[str, str], UsageError | None]:
    """Return column → the column of the file that has its values, and what is wrong with the columns.

    The file lacks a wanted column, or has it under its former name, or has one that is neither wanted nor ignored.

    Raises:
        UsageError: It has a column twice, so nobody knows which one is meant.
    """
    columns: dict[str, str] = {}
    for name in found:
        if name in wanted.dialect.ignored:
            continue
        column = name if name in wanted.kinds else _plain(name)
        if column in columns:
            both = name if name == columns[column] else f"{column} ({columns[column]!r} and {name!r})"
            raise UsageError(f"{file} has the column {both} twice.", remedy="Rename or remove one.")
        columns[column] = name
    unknown = {column: name for column, name in columns.items() if column not in wanted.kinds}
    missing = [name for name in wanted.kinds if name not in columns]
    renamed = [name for name in missing if _plain(wanted.former.get(name, name)) in unknown]
    former = {name: unknown.pop(_plain(wanted.former[name])) for name in renamed}
    missing = [name for name in missing if name not in former]
    problems, remedies = [], []
    if former:
        under = [f"{new} under its former name {_name(old)}" for new, old in former.items()]
        problems.append(f"has {' and '.join(under)}")
        steps = [f"{_name(old)} to {new}" for new, old in former.items()]
        remedies.append(f"Rename {' and '.join(steps)} in the file.")
    if missing:
        problems.append(f"has no column {', '.join(missing)}")
        remedies.append("Correct its name in the file, or add it with its values.")
    if unknown:
        names = ", ".join(map(_name, unknown.values()))
        problems.append(f"has {'' if problems else 'the column '}{names}, which the table lacks")
        if not missing:
            ignore = " ".join(f"--ignore {shlex.quote(name)}" for name in unknown.values())
            remedies.append(f"Declare it, and run lake init. To leave it out, add {ignore}.")
    wrong = UsageError(f"{file} {'; it '.join(problems)}.", remedy=" ".join(remedies)) if problems else None
    return {**columns, **former}, wrong


def _plain(name: str) -> str:
    """Return the name that a column can be declared by: `adj_close` for `Adj Close`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or name


def _name(column: str) -> str:
    return column if re.fullmatch(r"\w+", column) else repr(column)


# CSV


def _open_csv(file: Path, wanted: Wanted) -> OpenFile:
    dialect = wanted.dialect
    escape = dialect.escape or dialect.quote
    candidates = [CsvFile(file, sign, dialect.quote, escape) for sign in dialect.delimiter or _DELIMITERS]
    names, found = _best_header(candidates, wanted.kinds)
    columns, wrong = _columns_of(file, names, wanted)
    wanted.mistakes.add_error(wrong)
    if dialect.escape is None and dialect.quote:
        found = found.with_escape()
    escape = "" if found.escape == found.quote else f", escape {found.escape!r}"
    description = f"{file.name}: delimiter {found.delimiter!r}, quote {found.quote!r}{escape}, {len(names)} columns"
    places = {column: names.index(columns[column]) for column in wanted.schema.names if column in columns}
    return OpenFile(description, partial(_csv_batches, found, places, wanted), wanted.mistakes)


def _best_header(candidates: Sequence[CsvFile], kinds: Mapping[str, str]) -> tuple[list[str], CsvFile]:
    """Return the header that has most of the declared columns, and of these the longest, with its file."""
    headers, errors = [], []
    for each in candidates:
        try:
            names = each.header()
        except UsageError as error:
            errors.append(error)
            continue
        known = len(kinds.keys() & {*names, *map(_plain, names)})
        headers.append((known, len(names), names, each))
    if not headers:
        raise errors[0]
    *_, names, found = max(headers, key=lambda header: header[:2])
    return names, found


def _csv_batches(found: CsvFile, places: Mapping[str, int], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    def refuse(line: int, refused: Refused) -> None:
        place = f"line {line:,}"
        wanted.mistakes.add(
            (found.path, refused.reason), f"{found.path}, {place}: {refused.reason}", refused.remedy, again=place
        )

    casts = {name: cast(kind, text_only=True, zone=wanted.dialect.zone) for name, kind in wanted.kinds.items()}
    nulls = pa.array(wanted.dialect.nulls, pa.string())
    row = 0
    for rows in _parts(found.rows(refuse)):
        columns = []
        for name, place in places.items():
            texts = pa.array([cells[place] for cells in rows], pa.large_string())
            given = pc.if_else(pc.is_in(texts, value_set=nulls), pa.scalar(None, texts.type), texts)
            where = _Where(found.path, row, name, wanted.mistakes)
            kind = wanted.schema.field(name).type
            columns.append(_cast_array(given, wanted.kinds[name], casts[name], kind, where))
        yield pa.record_batch(columns, schema=pa.schema(map(wanted.schema.field, places)))
        row += len(rows)


def _parts(rows: Iterable[tuple[int, Cells]]) -> Iterator[list[Cells]]:
    """Yield rows together, so many that a batch holds a few MB."""
    part: list[Cells] = []
    length = 0
    for size, cells in rows:
        part.append(cells)
        length += size
        if len(part) == _BATCH_ROWS or length > _BATCH_CHARACTERS:
            yield part
            part, length = [], 0
    if part:
        yield part


# JSON


def _json_batches(file: Path, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    casts = {name: _required(cast(kind, zone=wanted.dialect.zone, whole=True)) for name, kind in wanted.kinds.items()}
    row, seen, names = 0, dict[str, None](), dict.fromkeys(wanted.kinds, "")
    for texts in _json_texts(file):
        columns: dict[str, list[Any]] = {name: [] for name in wanted.kinds}
        for text in texts:
            row += 1
            try:
                fields = json_object(text)
            except Refused as refused:
                place = f"row {row:,}"
                first = f"{file}, {place}: {refused.reason}"
                wanted.mistakes.add((file, refused.reason), first, refused.remedy, again=place)
                fields = {}
            if not fields.keys() <= seen.keys():
                seen.update(dict.fromkeys(fields))
                names = _json_names(file, [*seen], wanted)
            for name, read in casts.items():
                given = fields.get(names[name])
                try:
                    columns[name].append(None if given is None else read(given))
                except Refused as refused:
                    _refuse(_Where(file, row - 1, name, wanted.mistakes), 0, given, refused)
                    columns[name].append(None)
        schema = wanted.schema
        yield pa.record_batch([pa.array(columns[each.name], each.type) for each in schema], schema=schema)
    if seen or (row and not wanted.mistakes):
        wanted.mistakes.add_error(_columns_of(file, [*seen], wanted)[1])


def _json_names(file: Path, seen: Sequence[str], wanted: Wanted) -> dict[str, str]:
    """Return column → its key in the objects, by the keys that were seen so far. A key that is missing is null."""
    known = {name if name in wanted.kinds else _plain(name) for name in seen if name not in wanted.dialect.ignored}
    former = {column for column, name in wanted.former.items() if name in known or _plain(name) in known}
    later = [column for column in wanted.kinds if column not in known | former]
    columns, wrong = _columns_of(file, [*seen, *later], wanted)
    if wrong is not None:
        raise wrong
    return columns


def _json_texts(file: Path) -> Iterator[list[str]]:
    """Yield the objects of a file as they are written: one on each line, or the elements of one array."""
    import duckdb
    import pyarrow as pa

    source = f"read_json_objects({_sql_path(file)}, format='auto', maximum_object_size={LONGEST_ROW})"
    with _connect() as database:
        try:
            for batch in database.sql(f"SELECT json::VARCHAR FROM {source}").to_arrow_reader(_BATCH_ROWS):
                yield batch.column(0).to_pylist()
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # pyarrow's, with DuckDB's words
            text = first_line(str(error)).partition(": ")[2].partition(". Try")[0]
            raise UsageError(
                f"{file} is no JSON: {text}.",
                remedy=f"Write one object of at most {LONGEST_ROW >> 20} MB on each line, or one array of objects.",
            ) from error


# Parquet


def _open_parquet(file: Path, wanted: Wanted) -> OpenFile:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            found = opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise _no_parquet(file) from error
    columns, wrong = _columns_of(file, found.names, wanted)
    wanted.mistakes.add_error(wrong)
    columns = {column: columns[column] for column in wanted.schema.names if column in columns}
    description = f"{file.name}: Parquet, {len(found.names)} columns"
    return OpenFile(description, partial(_parquet_batches, file, columns, wanted), wanted.mistakes)


def _no_parquet(file: Path) -> UsageError:
    return UsageError(f"{file} is no Parquet file, or is damaged.", remedy="Write it again, or name another file.")


def _parquet_batches(file: Path, names: Mapping[str, str], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import parquet

    read = [*names.values()]
    with parquet.ParquetFile(file) as opened:
        leaves = map(opened.schema.column, range(len(opened.schema)))
        int96 = [leaf.path for leaf in leaves if leaf.physical_type == "INT96" and leaf.path in read]
    finer = _parquet_rows(file, int96, "ns") if int96 else repeat(None)
    row = 0
    for batch, nanoseconds in zip(_parquet_rows(file, read, "us"), finer, strict=False):
        columns = []
        for column, name in names.items():
            kind, field_type = wanted.kinds[column], wanted.schema.field(column).type
            where = _Where(file, row, column, wanted.mistakes)
            if nanoseconds and name in int96:
                _require_microseconds(batch.column(name), nanoseconds.column(name), where)
            read_value = cast(kind, zone=wanted.dialect.zone, whole=True)
            columns.append(_cast_array(batch.column(name), kind, read_value, field_type, where))
        yield pa.record_batch(columns, schema=pa.schema(map(wanted.schema.field, names)))
        row += batch.num_rows


def _parquet_rows(file: Path, names: Sequence[str], int96_unit: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file, buffer_size=1 << 20, coerce_int96_timestamp_unit=int96_unit) as opened:
            yield from opened.iter_batches(_BATCH_ROWS, columns=names)
    except (pa.ArrowException, OSError) as error:
        raise _no_parquet(file) from error


def _require_microseconds(times: pa.Array, nanoseconds: pa.Array, where: _Where) -> None:
    """Refuse times of the type INT96 that are finer. Read as nanoseconds, times after 2262 overflow, as the product."""
    import pyarrow as pa
    import pyarrow.compute as pc

    exact = pc.equal(pc.multiply(times.cast(pa.int64()), 1000), nanoseconds.cast(pa.int64()))
    for row in pc.indices_nonzero(pc.invert(exact)).to_pylist():
        _refuse(where, row, times[row].as_py(), too_fine())


# Values


@dataclass(frozen=True)
class _Where:
    file: Path
    first_row: int
    column: str
    mistakes: Mistakes


def _cast_array(given: pa.Array, kind: str, read: Cast | None, wanted: pa.DataType, where: _Where) -> pa.Array:
    """Return a column of a file as the type of its table. Each distinct value is cast once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = given.type
    if pa.types.is_dictionary(found):
        given, found = given.dictionary_decode(), found.value_type
    if given.null_count == len(given):
        return pa.nulls(len(given), wanted)
    is_text = pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)
    if kind == "string" and is_text:
        return _utf8(given, where).cast(wanted)
    if kind == "double" and pa.types.is_floating(found) and pc.all(pc.is_finite(given)).as_py():
        return given.cast(wanted)
    if read is None:
        return _same_type(given, kind, wanted, where)
    if pa.types.is_timestamp(found):
        times = partial(time_of, unit=found.unit, zone=found.tz)
        show = partial(time_text, unit=found.unit)
        return _cast_values(given.cast(pa.int64()), lambda number: read(times(number)), wanted, where, show=show)
    if pa.types.is_date(found):
        days = given.cast(pa.date32()).cast(pa.int32())
        show = partial(time_text, unit="days")
        return _cast_values(days, lambda number: read(time_of(number, "days", None).date()), wanted, where, show=show)
    if pa.types.is_nested(found) and pa.types.is_nested(wanted):
        return _cast_values(given, read, wanted, where)
    if pa.types.is_nested(found) or pa.types.is_time(found) or pa.types.is_duration(found):
        _refuse_all(where, given, Refused("is no value of the column", f"Write it as {kind}."))
        return pa.nulls(len(given), wanted)
    return _cast_values(given, read, wanted, where)


def _utf8(given: pa.Array, where: _Where) -> pa.Array:
    import pyarrow as pa

    try:
        given.validate(full=True)
    except pa.ArrowInvalid:
        raise UsageError(
            f"{where.file}, after row {where.first_row:,}: {where.column} has text that is not UTF-8.",
            remedy="Write the column as binary, or correct the text.",
        ) from None
    return given


def _same_type(given: pa.Array, kind: str, wanted: pa.DataType, where: _Where) -> pa.Array:
    import pyarrow as pa

    try:
        found = given.cast(wanted)
        if found.cast(given.type).equals(given):
            return found
    except pa.ArrowException:
        pass
    _refuse_all(where, given, Refused(f"is no {kind}", f"Write the column as {wanted}."))
    return pa.nulls(len(given), wanted)


def _cast_values(
    given: pa.Array, read: Cast, wanted: pa.DataType, where: _Where, *, show: Callable[[Any], object] | None = None
) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_floating(given.type) or pa.types.is_nested(given.type):  # a dictionary would take -0.0 for 0.0
        distinct, indices = given, None
    else:
        encoded = given.dictionary_encode()
        distinct, indices = encoded.dictionary, encoded.indices
    values = []
    wrong: dict[int | None, tuple[object, Refused]] = {}
    for number, value in enumerate(distinct.to_pylist()):
        try:
            values.append(None if value is None else read(value))
        except Refused as refused:
            values.append(None)
            wrong[number] = (show(value) if show else value, refused)
    if wrong:
        for row, each in enumerate(range(len(given)) if indices is None else indices.to_pylist()):
            if each in wrong:
                _refuse(where, row, *wrong[each])
    cast_values = pa.array(values, wanted)
    return cast_values if indices is None else cast_values.take(indices)


def _refuse_all(where: _Where, given: pa.Array, refused: Refused) -> None:
    """Add that a column of a file has a type that cannot be what is wanted, at its first value."""
    import pyarrow.compute as pc

    row = where.first_row + pc.index(given.is_valid(), True).as_py() + 1
    first = f"{where.file}, row {row:,}: {where.column} is {given.type}, which {refused.reason}"
    where.mistakes.add((where.file, where.column), first, refused.remedy)


def _refuse(where: _Where, row: int, value: object, refused: Refused) -> None:
    """Add a value that its column cannot hold."""
    place = f"row {where.first_row + row + 1:,}"
    remedy = refused.remedy
    if refused.reason == NO_ZONE:
        remedy = f"{remedy} If such times are all in one zone, name it: --zone UTC."
    if isinstance(value, str) and where.file.suffix != ".parquet" and not re.search(r"\d", value):
        where.mistakes.may_stand_for_null(value)
    kind = where.file, where.column, refused.reason
    first = f"{where.file}, {place}: {where.column} is {shown(value)}, which {refused.reason}"
    where.mistakes.add(kind, first, remedy, again=f"{place}: {shown(value)}")


def _required(read: Cast | None) -> Cast:
    assert read is not None
    return read


def _connect() -> duckdb.DuckDBPyConnection:
    """Return a database in memory that downloads nothing."""
    import duckdb

    return duckdb.connect(
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": _READER_MEMORY,
            "threads": "2",
        }
    )


def _sql(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _sql_path(file: Path) -> str:
    """Return the file itself: DuckDB takes `*`, `?` and `[` for a pattern."""
    return _sql(re.sub(r"([*?\[])", r"[\1]", str(file.absolute())))
