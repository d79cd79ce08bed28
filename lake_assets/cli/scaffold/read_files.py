"""The rows of files as other programs write them: CSV, JSON lines and Parquet, in batches, each value cast strictly.

Opening a file checks its columns. Reading it holds a few batches in memory, however long the file is, and raises
`UsageError` with the file, the row and the value at the first value that its column cannot hold. DuckDB reads CSV and
JSON, pyarrow reads Parquet; neither decides what a value is: `base.values` does.
"""

from __future__ import annotations

import csv
import gzip
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lake_assets.base.values import NO_ZONE, Cast, Refused, cast, json_object, shown, time_of, time_text
from lake_assets.errors import UsageError
from lake_assets.errors.texts import first_line

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

LONGEST_ROW = 16 << 20
"""Bytes of the longest row of CSV or JSON. The memory that DuckDB needs is about twenty times as much."""

_READER_MEMORY = "600MB"
_BATCH_ROWS = 10_000
_DELIMITERS = (",", ";", "\t", "|")
_DIALECT_REMEDY = "Correct the line, or name how the file is written: --delimiter, --quote and --escape."

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


@dataclass(frozen=True)
class OpenFile:
    """A file with the right columns.

    Attributes:
        description: What was found out about it, for people.
        batches: Reads it: yields the declared columns, in the order of the schema.
    """

    description: str
    batches: Batches


def open_file(file: Path, kinds: Mapping[str, str], schema: pa.Schema, dialect: Dialect) -> OpenFile:
    """Open a file, and check its columns.

    Args:
        file: It is read as Parquet or as JSON if it is called so, else as CSV with a header. CSV and JSON may be
            compressed by gzip.
        kinds: Column → Iceberg type, of the columns that the file must have.
        schema: The same columns with their types in Arrow.
        dialect: How the file is written.

    Raises:
        UsageError: The file cannot be read, has a column twice, lacks one, or has one that is neither declared nor
            ignored.
    """
    suffixes = [suffix.lower() for suffix in file.suffixes]
    last = suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]
    try:
        with file.open("rb") as opened:
            is_parquet = opened.read(4) == b"PAR1"
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.", remedy="Correct the name of the file.") from error
    if is_parquet or last == [".parquet"]:
        return _open_parquet(file, kinds, schema, dialect)
    for column, kind in kinds.items():
        if cast(kind) is None:
            raise UsageError(
                f"{column} is declared as {kind}, which only a Parquet file can have.",
                remedy="Write the rows as Parquet, or declare the column as string.",
            )
    if last and last[0] in (".json", ".jsonl", ".ndjson"):
        return OpenFile(f"{file.name}: JSON", partial(_json_batches, file, kinds, schema, dialect))
    return _open_csv(file, kinds, schema, dialect)


def _check_columns(
    file: Path, found: Sequence[str], wanted: Collection[str], ignored: Collection[str]
) -> Mapping[str, str]:
    """Return declared column → the column of the file that has its values.

    Raises:
        UsageError: The file lacks a wanted column, or has one twice, or one that is neither wanted nor ignored.
    """
    columns: dict[str, str] = {}
    for name in found:
        if name in ignored:
            continue
        column = name if name in wanted else _plain(name)
        if column in columns:
            both = name if name == columns[column] else f"{column} ({columns[column]!r} and {name!r})"
            raise UsageError(f"{file} has the column {both} twice.", remedy="Rename or remove one.")
        columns[column] = name
    missing = [name for name in wanted if name not in columns]
    unknown = [name for column, name in columns.items() if column not in wanted]
    also = f"; it has {', '.join(map(_name, unknown))}, which the table lacks" if unknown else ""
    if missing:
        raise UsageError(
            f"{file} has no column {', '.join(missing)}{also}.",
            remedy="Correct its name in the file, or add it with its values.",
        )
    if unknown:
        ignore = " ".join(f"--ignore {shlex.quote(name)}" for name in unknown)
        raise UsageError(
            f"{file} has the column {', '.join(map(_name, unknown))}, which the table lacks.",
            remedy=f"Declare it, and run lake init. To leave it out, add {ignore}.",
        )
    return columns


def _plain(name: str) -> str:
    """Return the name that a column can be declared by: `adj_close` for `Adj Close`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or name


def _name(column: str) -> str:
    return column if re.fullmatch(r"\w+", column) else repr(column)


# CSV


@dataclass(frozen=True)
class _CsvFile:
    path: Path
    names: Sequence[str]
    delimiter: str
    quote: str
    escape: str

    @property
    def relation(self) -> str:
        """All cells as text: an empty one is null, an empty one in quotes is not."""
        columns = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(self.names)))
        options = f"delim={_sql(self.delimiter)}, quote={_sql(self.quote)}, escape={_sql(self.escape)}"
        return (
            f"read_csv({_sql_path(self.path)}, columns={{{columns}}}, {options}, "
            "auto_detect=false, header=true, skip=0, strict_mode=true, null_padding=false, "
            f"nullstr='', allow_quoted_nulls=false, max_line_size={LONGEST_ROW}, buffer_size={LONGEST_ROW})"
        )


def _open_csv(file: Path, kinds: Mapping[str, str], schema: pa.Schema, dialect: Dialect) -> OpenFile:
    candidates = (dialect.delimiter,) if dialect.delimiter else _DELIMITERS
    headers = {sign: _header(file, sign, dialect.quote) for sign in candidates}
    delimiter = max(headers, key=lambda sign: (len(kinds.keys() & set(map(_plain, headers[sign]))), len(headers[sign])))
    names = headers[delimiter]
    columns = _check_columns(file, names, kinds, dialect.ignored)
    found = _CsvFile(file, names, delimiter, dialect.quote, dialect.escape or dialect.quote)
    if dialect.escape is None and dialect.quote:
        found = _with_escape(found)
    escape = "" if found.escape == found.quote else f", escape {found.escape!r}"
    description = f"{file.name}: delimiter {delimiter!r}, quote {dialect.quote!r}{escape}, {len(names)} columns"
    return OpenFile(description, partial(_csv_batches, found, columns, kinds, schema, dialect))


def _header(file: Path, delimiter: str, quote: str) -> list[str]:
    quoting: Mapping[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    try:
        with _text(file) as opened:
            names = next(csv.reader(opened, delimiter=delimiter, **quoting), [])
    except UnicodeDecodeError:
        raise _not_utf8(file) from None
    except (OSError, EOFError, csv.Error) as error:
        raise UsageError(f"{file} has no header that can be read: {error}.", remedy=_DIALECT_REMEDY) from error
    if not names:
        raise UsageError(
            f"{file} begins with an empty line." if file.stat().st_size else f"{file} is empty.",
            remedy="The first line of a CSV file names its columns.",
        )
    return names


def _text(file: Path) -> TextIO:
    if file.suffix.lower() == ".gz":
        return gzip.open(file, "rt", encoding="utf-8-sig", newline="")
    return file.open(encoding="utf-8-sig", newline="")


def _with_escape(found: _CsvFile) -> _CsvFile:
    """Return the file as RFC 4180 has it; with backslashes before quotes, if it can be read only so."""
    import duckdb

    backslash = _CsvFile(found.path, found.names, found.delimiter, found.quote, "\\")
    for candidate in (found, backslash):
        try:
            with _connect() as database:
                database.execute(f"SELECT count(*) FROM {candidate.relation}").fetchall()
        except duckdb.Error:
            continue
        return candidate
    return found


def _csv_batches(
    found: _CsvFile, names: Mapping[str, str], kinds: Mapping[str, str], schema: pa.Schema, dialect: Dialect
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    casts = {name: cast(kind, text_only=True, zone=dialect.zone) for name, kind in kinds.items()}
    cells = ", ".join(f"c{found.names.index(names[column])}" for column in schema.names)
    nulls = pa.array(dialect.nulls, pa.string())
    row = 0
    for batch in _query(found, f"SELECT {cells} FROM {found.relation}"):
        columns = []
        for field, texts in zip(schema, batch.columns, strict=True):
            given = pc.if_else(pc.is_in(texts, value_set=nulls), pa.scalar(None, texts.type), texts)
            where = _Where(found.path, row, field.name)
            columns.append(_cast_array(given, kinds[field.name], casts[field.name], field.type, where))
        yield pa.record_batch(columns, schema=schema)
        row += batch.num_rows


def _query(found: _CsvFile, query: str) -> Iterator[pa.RecordBatch]:
    import duckdb
    import pyarrow as pa

    with _connect() as database:
        try:
            yield from database.sql(query).to_arrow_reader(_BATCH_ROWS)
        except (duckdb.Error, pa.ArrowException, OSError) as error:  # pyarrow's, with DuckDB's words
            raise _csv_error(found, str(error)) from error


def _csv_error(found: _CsvFile, text: str) -> UsageError:
    """Return the error of a file that is no CSV of its dialect, in our words."""
    line = re.search(r"Line: (\d+)", text)
    where = f"{found.path}, line {int(line[1]):,}:" if line else f"{found.path}:"
    cells = re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", text)
    if "unicode" in text or "utf-8" in text.lower():
        return _not_utf8(found.path, where)
    if cells:
        return UsageError(f"{where} {cells[2]} cells, but the header has {cells[1]}.", remedy=_DIALECT_REMEDY)
    if "unterminated quote" in text:
        return UsageError(
            f"{where} a quoted cell does not end, or text follows its end.",
            remedy="Correct the line. If no cell of the file is quoted, add --quote ''.",
        )
    if "ine size" in text or "buffer" in text.lower():
        return UsageError(f"{where} longer than {LONGEST_ROW >> 20} MB.", remedy="Store such values outside of rows.")
    sign = f"delimiter {found.delimiter!r}, quote {found.quote!r} and escape {found.escape!r}"
    return UsageError(
        f"{where} no CSV with {sign}, whose lines all end alike.",
        remedy="Let all lines end with a line feed, such as by dos2unix. Or name --delimiter, --quote and --escape.",
    )


def _not_utf8(file: Path, where: str = "") -> UsageError:
    return UsageError(
        f"{where or f'{file}:'} not UTF-8.",
        remedy=f"Convert the file, such as by iconv -f latin1 -t utf-8 {shlex.quote(str(file))}.",
    )


# JSON


def _json_batches(
    file: Path, kinds: Mapping[str, str], schema: pa.Schema, dialect: Dialect
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    casts = {name: _required(cast(kind, zone=dialect.zone)) for name, kind in kinds.items()}
    row, seen, names = 0, dict[str, None](), dict.fromkeys(kinds, "")
    for texts in _json_texts(file):
        columns: dict[str, list[Any]] = {name: [] for name in schema.names}
        for text in texts:
            row += 1
            try:
                fields = json_object(text)
            except Refused as refused:
                raise UsageError(f"{file}, row {row:,}: {refused.reason}.", remedy=refused.remedy) from None
            if not fields.keys() <= seen.keys():
                seen.update(dict.fromkeys(fields))
                names = _json_names(file, [*seen], kinds, dialect)
            for name, read in casts.items():
                given = fields.get(names[name])
                try:
                    columns[name].append(None if given is None else read(given))
                except Refused as refused:
                    raise _refused(_Where(file, row - 1, name), 0, given, refused) from None
        yield pa.record_batch([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
    if row:
        _check_columns(file, [*seen], kinds, dialect.ignored)


def _json_names(file: Path, seen: Sequence[str], kinds: Mapping[str, str], dialect: Dialect) -> dict[str, str]:
    """Return column → its key in the objects, by the keys that were seen so far. A key that is missing is null."""
    known = {name if name in kinds else _plain(name) for name in seen if name not in dialect.ignored}
    later = [column for column in kinds if column not in known]
    return dict(_check_columns(file, [*seen, *later], kinds, dialect.ignored))


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


def _open_parquet(file: Path, kinds: Mapping[str, str], schema: pa.Schema, dialect: Dialect) -> OpenFile:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            found = opened.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise _no_parquet(file) from error
    columns = _check_columns(file, found.names, kinds, dialect.ignored)
    description = f"{file.name}: Parquet, {len(found.names)} columns"
    return OpenFile(description, partial(_parquet_batches, file, columns, kinds, schema, dialect))


def _no_parquet(file: Path) -> UsageError:
    return UsageError(f"{file} is no Parquet file, or is damaged.", remedy="Write it again, or name another file.")


def _parquet_batches(
    file: Path, names: Mapping[str, str], kinds: Mapping[str, str], schema: pa.Schema, dialect: Dialect
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import parquet

    row = 0
    with parquet.ParquetFile(file, buffer_size=1 << 20) as opened:
        batches = opened.iter_batches(_BATCH_ROWS, columns=[names[column] for column in schema.names])
        while True:
            try:
                batch = next(batches, None)
            except (pa.ArrowException, OSError) as error:
                raise _no_parquet(file) from error
            if batch is None:
                return
            columns = []
            for field in schema:
                kind = kinds[field.name]
                read = cast(kind, zone=dialect.zone)
                where = _Where(file, row, field.name)
                columns.append(_cast_array(batch.column(names[field.name]), kind, read, field.type, where))
            yield pa.record_batch(columns, schema=schema)
            row += batch.num_rows


# Values


@dataclass(frozen=True)
class _Where:
    file: Path
    first_row: int
    column: str


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
        return given.cast(wanted)
    if kind == "double" and pa.types.is_floating(found) and pc.all(pc.is_finite(given)).as_py():
        return given.cast(wanted)
    if read is None:
        return _same_type(given, kind, wanted, where)
    if pa.types.is_timestamp(found):
        unit, zone = found.unit, found.tz
        given = given.cast(pa.int64())
        times = partial(time_of, unit=unit, zone=zone)
        return _cast_values(
            given, lambda number: read(times(number)), wanted, where, show=partial(time_text, unit=unit)
        )
    if pa.types.is_nested(found) or pa.types.is_time(found) or pa.types.is_duration(found):
        raise _refused(where, _first(given), found, Refused("is no value of the column", f"Write it as {kind}."))
    return _cast_values(given, read, wanted, where)


def _same_type(given: pa.Array, kind: str, wanted: pa.DataType, where: _Where) -> pa.Array:
    import pyarrow as pa

    try:
        found = given.cast(wanted)
        if found.cast(given.type).equals(given):
            return found
    except pa.ArrowException:
        pass
    reason = Refused(f"is no {kind}", f"Write the column as {wanted}.")
    raise _refused(where, _first(given), given.type, reason)


def _cast_values(
    given: pa.Array, read: Cast, wanted: pa.DataType, where: _Where, *, show: Callable[[Any], object] | None = None
) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(given.type):  # a dictionary would take -0.0 for 0.0
        distinct, indices = given, None
    else:
        encoded = given.dictionary_encode()
        distinct, indices = encoded.dictionary, encoded.indices
    values = []
    for number, value in enumerate(distinct.to_pylist()):
        try:
            values.append(None if value is None else read(value))
        except Refused as refused:
            row = number if indices is None else pc.index(indices, number).as_py()
            raise _refused(where, row, show(value) if show else value, refused) from None
    cast_values = pa.array(values, wanted)
    return cast_values if indices is None else cast_values.take(indices)


def _first(given: pa.Array) -> int:
    import pyarrow.compute as pc

    found: int = pc.index(given.is_valid(), True).as_py()
    return found


def _refused(where: _Where, row: int, value: object, refused: Refused) -> UsageError:
    remedy = refused.remedy
    if isinstance(value, str) and where.file.suffix != ".parquet" and not re.search(r"\d", value):
        remedy = f"{remedy} If {shown(value)} stands for null, add --null {shlex.quote(value)}."
    if refused.reason == NO_ZONE:
        remedy = f"{remedy} If such times are all in one zone, name it: --zone UTC."
    return UsageError(
        f"{where.file}, row {where.first_row + row + 1:,}: {where.column} is {shown(value)}, which {refused.reason}.",
        remedy=remedy,
    )


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
