"""The erasure registry, `etl.erasure`: which ids were erased, and when. And the guard that enforces it.

The registry stores keyed hashes, no ids: HMAC-SHA256 over the subject's name and the id (RFC 2104). Without the key,
nobody can find an id by hashing all possible ones. The hash is computed in this process: no query, plan or log of Spark
contains the key.

The guard deletes rows that were sent before their subject was erased, and landed later. Every plan passes it. It reads
the ids in those files that the plan would read for the first time. If an id was erased, its rows are deleted from the
raw table, and the plan is made again. So no session, no target and no quarantine ever has them. As long as nobody was
erased, this costs one look at the catalog.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from tempfile import NamedTemporaryFile
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    In,
    IsNull,
    LessThanOrEqual,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.manifest import ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import ALWAYS_TRUE, Table
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestamptzType,
)

from lake_assets.base.columns import any_of_filters
from lake_assets.base.id_matcher import id_text
from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.incremental.declaration import Pipeline, RawTable, Subject
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import at_present, subject_columns
from lake_assets.incremental.engine.iceberg import (
    entries,
    files_of,
    has_equality_deletes,
    require_scannable,
    rows_of_files,
)
from lake_assets.incremental.engine.model import Decision, SessionPlan
from lake_assets.settings import Settings, settings

ERASURE = "etl.erasure"
KEY_FILE = "erasure.key"
KEY_BYTES = 32
KEY_ID_DIGITS = 16

Id = TypeVar("Id")
"""A value of a column of ids."""

_COLUMNS = {
    "subject": "string",
    "id_hash": "string",
    "key_id": "string",
    "state": "string",
    "erased_at": "timestamptz",
    "recorded_at": "timestamptz",
}
"""One row for each state of an erasure. key_id: identifies the key of the hash. erased_at: everything sent by then is
erased."""


@dataclass(frozen=True)
class Erasure:
    """One erasure, by its newest row.

    Attributes:
        subject: The subject's name.
        id_hash: The keyed hash of the id.
        erased_at: Everything that was sent by this time is erased.
        state: `requested`, or `done`.
    """

    subject: str
    id_hash: str
    erased_at: datetime
    state: Literal["requested", "done"]


def create_table(catalog: Catalog) -> list[str]:
    """Create `etl.erasure` if it does not exist. Return its name if it was created."""
    created = iceberg.create(catalog, ERASURE, _COLUMNS, {}, {})
    return [ERASURE] if created else []


def last_erasure(catalog: Catalog) -> datetime | None:
    """Return when an erasure was recorded last, requested or done; None if there was none."""
    table = iceberg.find(catalog, ERASURE)
    if table is None:
        return None
    recorded = table.scan(selected_fields=("recorded_at",)).to_arrow()
    return max(recorded["recorded_at"].to_pylist(), default=None)


def erasure_key(found: Settings) -> bytes:
    """Return the erasure key: the setting, else the key in the data directory, which the first call creates."""
    if found.erasure_key is not None:
        return found.erasure_key.get_secret_value().encode()
    file = found.home / KEY_FILE
    if not file.exists():
        # After a crash, or with concurrent calls, the file is complete. Only its owner can read it.
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=file.parent, prefix=f"{file.name}.") as draft:
            draft.write(secrets.token_hex(KEY_BYTES))
            draft.flush()
            with suppress(FileExistsError):  # another process created the key first
                os.link(draft.name, file)
    return file.read_bytes()


@dataclass(frozen=True)
class KeyedHash:
    """Hashes ids with a key.

    Attributes:
        key: Returns the key; called when the first id is hashed. Default: the key of the data directory.
    """

    key: Callable[[], bytes] = lambda: erasure_key(settings())

    def of(self, *words: str) -> str:
        """Return the keyed hash of an id, hexadecimal. words: what kind of id it is, then the id."""
        message = "\0".join(words).encode()
        return hmac.digest(self._key, message, "sha256").hex()

    def check(self, table: str, key_ids: Iterable[str]) -> None:
        """Check that the rows of a table were hashed with this key.

        Args:
            table: The table, for the message.
            key_ids: The key ids of its rows.

        Raises:
            ConfigurationError: They were hashed with another key, so no erased id would be recognized.
        """
        if any(key_id != self.key_id for key_id in key_ids):
            raise ConfigurationError(
                f"{table} was written with another key: no erased id would be recognized.",
                remedy=f"Restore the key: LAKE_ERASURE_KEY, or {KEY_FILE} in the data directory (LAKE_HOME).",
            )

    @cached_property
    def key_id(self) -> str:
        """An identifier of the key."""
        digest = hmac.digest(self._key, b"key id", "sha256")
        return digest.hex()[:KEY_ID_DIGITS]

    @cached_property
    def _key(self) -> bytes:
        return self.key()


class Erasures:
    """Reads and writes `etl.erasure`.

    Args:
        catalog: The catalog.
        key: Returns the key; called when the first id is hashed. Default: the key of the data directory.
    """

    def __init__(self, catalog: Catalog, *, key: Callable[[], bytes] | None = None) -> None:
        self.catalog = catalog
        self._keyed = KeyedHash(key) if key else KeyedHash()

    def rows(self) -> list[Erasure]:
        """Return all erasures, in no order. Without any, this costs one look-up in the catalog.

        Raises:
            ConfigurationError: They were recorded with another key, so no erased id would be recognized.
        """
        table = iceberg.find(self.catalog, ERASURE)
        if table is None or table.current_snapshot() is None:
            return []
        rows = table.scan().to_arrow().to_pylist()
        self._keyed.check(ERASURE, (row["key_id"] for row in rows))
        # By time of erasure; a request of the same time does not undo that it is done.
        rows.sort(key=lambda row: (row["erased_at"], row["state"] == "done", row["recorded_at"]))
        newest: dict[tuple[str, str], Erasure] = {}
        for row in rows:
            key = row["subject"], row["id_hash"]
            newest[key] = Erasure(*key, erased_at=row["erased_at"], state=row["state"])
        return list(newest.values())

    def record(
        self,
        subject: str,
        value: str | Collection[str],
        state: Literal["requested", "done"],
        *,
        erased_at: datetime,
        now: datetime,
    ) -> None:
        """Add the state of the erasure of an id, or of several.

        Args:
            subject: The subject's name.
            value: The id, or the ids.
            state: The state.
            erased_at: Everything that was sent by this time is erased.
            now: When the state is recorded.

        Raises:
            ConfigurationError: Earlier erasures were recorded with another key.
        """
        table = iceberg.load(self.catalog, ERASURE)
        self.rows()  # checks the key
        rows = []
        for each in [value] if isinstance(value, str) else value:
            row = {
                "subject": subject,
                "id_hash": self.hash(subject, each),
                "key_id": self._keyed.key_id,
                "state": state,
                "erased_at": erased_at,
                "recorded_at": now,
            }
            rows.append(row)
        table.append(iceberg.arrow_rows(table, rows))

    def known(self, subject: str, values: Iterable[Id], among: Iterable[Erasure]) -> Mapping[Id, datetime]:
        """Return erased id → time of its erasure, for those of the ids that were erased.

        Args:
            subject: The subject's name.
            values: The ids to look for, as their columns have them.
            among: The erasures to look in.
        """
        times = {erasure.id_hash: erasure.erased_at for erasure in among if erasure.subject == subject}
        if not times:
            return {}  # no id is hashed, and no key is needed
        hashes = {value: self.hash(subject, id_text(value)) for value in values}
        return {value: times[id_hash] for value, id_hash in hashes.items() if id_hash in times}

    def hash(self, subject: str, value: str) -> str:
        """Return the keyed hash of an id, hexadecimal."""
        return self._keyed.of(subject, value)


BATCH = "batch_id"
"""Column of raw tables: the batch that a row came with."""

FED_BATCH = "landing-"
"""Begins the batches of rows that were loaded from a topic; their landing is when their message was sent."""

BATCHES = 50
"""How many batches one commit of a deletion rewrites."""

DROPPED = "lake.erased"
"""Snapshot property: how many rows this snapshot deleted because their subject had been erased."""


class ErasureGuard:
    """Deletes rows of erased subjects from the raw tables of a pipeline.

    Args:
        rewrite: Rewrites the data files of a table without the rows that delete files hide.
    """

    def __init__(
        self, catalog: Catalog, pipeline: Pipeline, erasures: Erasures, rewrite: Callable[[str], object]
    ) -> None:
        self.catalog = catalog
        self.pipeline = pipeline
        self.erasures = erasures
        self.rewrite = rewrite

    def delete_erased_rows(self, decision: Decision) -> bool:
        """Delete the rows of erased subjects that a plan would read.

        Returns:
            Whether a table has another head now. If so, the plan must not run: it names snapshots that have them.
        """
        declared = self.pipeline.subjects or self.pipeline.broken
        if not isinstance(decision, SessionPlan) or not declared:
            return False
        erased = self.erasures.rows()
        if not erased:
            return False
        self.pipeline.refuse_broken("subjects")  # whose rows must be deleted, only that declaration knows
        read = {source.source: source for source in decision.sources}
        is_stale = False
        for raw in self.pipeline.raw:
            source = read.get(raw.table)
            if source is None or source.to_snapshot_id is None or source.from_snapshot_id == source.to_snapshot_id:
                continue
            table = iceberg.load(self.catalog, raw.table)
            # Files up to this sequence number were read before. History may not show it: after a rollback, the
            # watermark's snapshot may be newer than the head, and rows that it had deleted are back.
            after = 0
            for snapshot in publish.ancestors(table, source.to_snapshot_id):
                if snapshot.snapshot_id == source.from_snapshot_id:
                    after = snapshot.sequence_number or 0
            rows, is_rewritten = self._delete(table, raw, erased, source.to_snapshot_id, after)
            is_stale = is_stale or is_rewritten or rows > 0
        return is_stale

    def sweep(self) -> dict[str, int]:
        """Delete the rows of erased subjects from all raw tables, whether a session has read them or not.

        Returns:
            Table → rows deleted, for the tables that had any.
        """
        erased = self.erasures.rows()
        deleted: dict[str, int] = {}
        for raw in self.pipeline.raw if erased else ():
            table = iceberg.load(self.catalog, raw.table)
            rows, _ = self._delete(table, raw, erased, publish.main_id(table), after=0)
            if rows:
                deleted[raw.table] = rows
        return deleted

    def _delete(
        self, table: Table, raw: RawTable, erased: Sequence[Erasure], snapshot_id: int | None, after: int
    ) -> tuple[int, bool]:
        """Delete the rows of those ids that files of a snapshot have which were added, or compacted, after a number.

        Returns:
            How many rows of them the snapshot has, and whether the table was rewritten before, for pyiceberg to read.
        """
        snapshot = table.snapshot_by_id(snapshot_id or 0)
        if snapshot is None:
            return 0, False
        columns_of = {subject.name: subject_columns(self.catalog, raw, subject) for subject in self.pipeline.subjects}
        files = []
        for manifest in snapshot.manifests(table.io) if any(columns_of.values()) else []:
            if manifest.content is ManifestContent.DATA and manifest.sequence_number > after:
                for entry in entries(manifest, table.io):
                    # A compacted file has a new file sequence number, and the data sequence number of its old rows.
                    if max(entry.file_sequence_number or 0, entry.sequence_number or 0) > after:
                        files.append(entry.data_file)
        conditions: list[BooleanExpression] = []
        for subject, columns in columns_of.items():
            ids: set[Any] = set()
            for batch in rows_of_files(table, files, columns) if columns else ():
                ids.update(*(batch.column(column).drop_null().unique().to_pylist() for column in columns))
            by_time: defaultdict[datetime, list[str]] = defaultdict(list)
            for value, erased_at in self.erasures.known(subject, ids, erased).items():
                by_time[erased_at].append(id_text(value))
            for erased_at, values in sorted(by_time.items()):
                conditions.append(And(holds(table.schema(), columns, values), sent_by(table, raw, erased_at)))
        if not conditions:
            return 0, False
        which = any_of_filters(conditions)
        if has_equality_deletes(table, snapshot):
            if not any(rows_of_files(table, files, [raw.time_column], which)):
                return 0, False
            self.rewrite(raw.table)
            return delete_rows(self.catalog, raw.table, which), True
        found = _count_rows(table, which, snapshot_id)
        if found:
            delete_rows(self.catalog, raw.table, which)
        return found, False


def sent_by(table: Table, raw: RawTable, erased_at: datetime) -> BooleanExpression:
    """Return the condition on the rows of a raw table that count as sent by the time of an erasure.

    Of rows that landing has loaded, the time of their message counts, for what is sent after an erasure stays. Of
    others nobody knows when they were sent: they count if they happened or landed by then, or have no time.
    """
    types = {field.name: field.field_type for field in table.schema().fields}
    moment = erased_at.astimezone(UTC)

    def by_then(column: str) -> BooleanExpression:
        has_zone = isinstance(types[column], TimestamptzType)
        text = moment.isoformat() if has_zone else moment.replace(tzinfo=None).isoformat()
        return _not_null(column, LessThanOrEqual(column, text))  # type: ignore[call-arg, arg-type]

    columns = [column for column in (raw.time_column, raw.landed_column) if column in types]
    untimed: BooleanExpression = IsNull(raw.time_column)  # type: ignore[call-arg, arg-type]
    either = any_of_filters([untimed, *map(by_then, columns)])
    if raw.exists_already or BATCH not in types or raw.landed_column not in types:
        return either
    is_fed: BooleanExpression = StartsWith(BATCH, FED_BATCH)  # type: ignore[call-arg, arg-type]
    is_other = Or(IsNull(BATCH), NotStartsWith(BATCH, FED_BATCH))  # type: ignore[call-arg, arg-type]
    return Or(And(is_fed, by_then(str(raw.landed_column))), And(is_other, either))


def holds(schema: Schema, columns: Iterable[str], values: Collection[str]) -> BooleanExpression:
    """Return the condition on rows that have any of the ids in one of the columns."""
    found = []
    for column in columns:
        literals = {as_id(value, schema.find_type(column)) for value in values} - {None}
        found.append(_not_null(column, In(column, literals)))  # type: ignore[call-arg, arg-type]
    return any_of_filters(found)


MOST_FILTERED = 100
"""Up to this many ids are sought by the bounds of files. pyiceberg (0.12) takes for more of them as long as for reading
a file, and that for each file: a third of a second for 5,000 ids."""


def rows_with(
    table: Table,
    columns: Sequence[str],
    values: Collection[str],
    *,
    snapshot_id: int | None = None,
    among: BooleanExpression = ALWAYS_TRUE,
    also: Collection[str] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a snapshot that have any of the ids in one of the columns.

    Rows that equality deletes hide are among them: their files still hold the ids.

    Args:
        columns: The columns of ids; the batches have them.
        snapshot_id: Default: the head of main.
        among: A condition on the rows.
        also: Further columns of the batches.
    """
    present = table if snapshot_id is None else at_present(table, snapshot_id)
    if len(values) <= MOST_FILTERED:
        among = And(among, holds(present.schema(), columns, values))
    files = files_of(present, among, snapshot_id=snapshot_id)
    literals = {}
    for column in columns:
        found = {as_id(value, present.schema().find_type(column)) for value in values} - {None}
        literals[column] = pa.array(sorted(found))  # type: ignore[type-var]
    for batch in rows_of_files(present, files, {*columns, *also}, among):
        held = pa.array([False] * batch.num_rows)
        for column, ids in literals.items():
            stored = batch.column(column)
            held = pc.or_(held, pc.is_in(stored, value_set=ids.cast(stored.type)))
        if pc.any(held).as_py():
            yield batch.filter(held)


def _not_null(column: str, condition: BooleanExpression) -> BooleanExpression:
    """Return a condition on a column that says that it is not null.

    pyiceberg (0.12) keeps each row that has null in a column of a deletion's filter, unless the filter speaks of null
    there: of `a = 1 OR b = 1` it deletes no row with 1 and null.
    """
    return And(NotNull(column), condition)  # type: ignore[call-arg, arg-type]


def as_id(text: str, kind: IcebergType) -> str | int | Decimal | None:
    """Return an id as a column of a type has it; None if no value of the column is this id."""
    try:
        if isinstance(kind, (IntegerType, LongType)):
            number = int(text)
            return number if str(number) == text and kind.min <= number <= kind.max else None
        if isinstance(kind, DecimalType):
            exact = Decimal(text)
            found = exact.quantize(Decimal(1).scaleb(-kind.scale))
            return found if found == exact and len(found.as_tuple().digits) <= kind.precision else None
    except (ValueError, ArithmeticError):
        return None
    return text if isinstance(kind, StringType) else None


def spellings(catalog: Catalog, pipeline: Pipeline, subject: Subject, values: Iterable[str]) -> list[str]:
    """Return the texts of ids, also as the columns of a subject have them: the decimal 70.50 is `70.5`.

    Raises:
        UsageError: No column can hold one of the ids.
    """
    kinds: dict[str, IcebergType] = {}
    for name, columns in holders(catalog, pipeline, subject):
        table = iceberg.find(catalog, name)
        for column in columns if table is not None else ():
            kinds[f"{name}.{column}"] = table.schema().find_type(column)  # type: ignore[union-attr]
    found: dict[str, None] = {}
    for value in values:
        literals = [as_id(value, kind) for kind in kinds.values()]
        texts = [id_text(literal) for literal in literals if literal is not None]
        if kinds and not texts:
            named = ", ".join(f"{column} is {kind}" for column, kind in kinds.items())
            raise UsageError(
                f"No column of the subject {subject.name} can hold such an id: {named}.",
                remedy=f"Name an id as these columns have it, such as {_EXAMPLES[type(next(iter(kinds.values())))]}.",
            )
        found.update(dict.fromkeys([value, *texts]))
    return list(found)


_EXAMPLES: dict[type[IcebergType], str] = {
    StringType: "a17",
    IntegerType: "17",
    LongType: "17",
    DecimalType: "17",
}


def delete_rows(catalog: Catalog, name: str, which: BooleanExpression, *, counted_as: str = DROPPED) -> int:
    """Delete rows by rewriting the files that have them, also if others write to the table meanwhile.

    Some batches are rewritten in one commit, and only these are named in its condition: rows of other batches that are
    added meanwhile are no conflict, and what a conflict stops is tried again without the batches that are done.

    Args:
        counted_as: Snapshot property that says how many.

    Returns:
        How many rows were deleted.

    Raises:
        SourceError: Rows of the table are deleted by their values.
    """
    parts = [which]
    table = iceberg.load(catalog, name)
    require_scannable(table, name)
    if BATCH in table.schema().column_names and publish.main_id(table) is not None:
        found = table.scan(which, selected_fields=(BATCH,)).to_arrow()[BATCH].unique().to_pylist()
        batches = sorted(batch for batch in found if batch is not None)
        some = [set(batches[first : first + BATCHES]) for first in range(0, len(batches), BATCHES)]
        parts = [In(BATCH, each) for each in some]  # type: ignore[call-arg, arg-type]
        parts += [IsNull(BATCH)] if None in found else []  # type: ignore[call-arg, arg-type]
        parts = [And(which, part) for part in parts]
    return sum(_delete_part(catalog, name, part, counted_as) for part in parts)


@iceberg.retrying().wraps
def _delete_part(catalog: Catalog, name: str, which: BooleanExpression, counted_as: str) -> int:
    table = iceberg.load(catalog, name)
    rows = _count_rows(table, which, publish.main_id(table))
    if rows:
        with iceberg.committing(catalog, table):
            table.delete(which, snapshot_properties={counted_as: str(rows)})
    return rows


def holders(catalog: Catalog, pipeline: Pipeline, subject: Subject) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the tables that have ids of a subject, with those columns: raw tables first, then targets in order."""
    found = {raw.table: subject_columns(catalog, raw, subject) for raw in pipeline.raw}
    found |= {target.table: subject.columns_of(target.columns) for target in pipeline.in_order()}
    for table, columns in found.items():
        if columns:
            yield table, columns


def _count_rows(table: Table, which: BooleanExpression, snapshot_id: int | None) -> int:
    if snapshot_id is None:
        return 0
    return int(at_present(table, snapshot_id).scan(which, snapshot_id=snapshot_id).count())
