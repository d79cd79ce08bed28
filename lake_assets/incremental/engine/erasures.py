"""The erasure registry, `etl.erasure`: which ids were erased, and when. It stores keyed hashes, no ids.

The hash is HMAC-SHA256 over the subject's name and the id (RFC 2104). Without the key, nobody can find an id by hashing
all possible ones. The hash is computed in this process: no query, plan or log of Spark contains the key.

The erasure guard: rows that were sent before their subject was erased, and landed later, are deleted.

Every plan passes the guard. It reads the ids in those files that the plan would read for the first time. If an id was
erased, its rows are deleted from the raw table, and the plan is made again. So no session, no target and no quarantine
ever has them. As long as nobody was erased, this costs one look at the catalog.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import And, BooleanExpression, In, IsNull, LessThanOrEqual
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry
from pyiceberg.table import ALWAYS_TRUE, FileScanTask, Table
from pyiceberg.types import TimestamptzType

from lake_assets.base.conditions import any_of_filters
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Pipeline, RawTable, Subject
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import at_present, subject_columns
from lake_assets.incremental.engine.iceberg import ArrowScan, entries
from lake_assets.incremental.engine.model import Decision, SessionPlan, SourceRange
from lake_assets.settings import Settings, settings

ERASURE = "etl.erasure"
KEY_FILE = "erasure.key"
KEY_BYTES = 32
KEY_ID_DIGITS = 16
OWNER_ONLY = 0o600

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
        _create_key(file)
    return file.read_bytes()


def _create_key(file: Path) -> None:
    """Create the key file, readable by its owner only; after a crash, or with concurrent calls, it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(secrets.token_hex(KEY_BYTES))
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # another process created the key first
    finally:
        draft.unlink()


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
        newest: dict[tuple[str, str], Erasure] = {}
        for row in sorted(rows, key=_done_first):
            erasure = Erasure(
                subject=row["subject"],
                id_hash=row["id_hash"],
                erased_at=row["erased_at"],
                state=row["state"],
            )
            key = erasure.subject, erasure.id_hash
            before = newest.get(key)
            if before is None or before.erased_at < erasure.erased_at:
                newest[key] = erasure
        return list(newest.values())

    def record(
        self,
        subject: str,
        value: str,
        state: Literal["requested", "done"],
        *,
        erased_at: datetime,
        now: datetime,
    ) -> None:
        """Add the state of an erasure.

        Args:
            subject: The subject's name.
            value: The id.
            state: The state.
            erased_at: Everything that was sent by this time is erased.
            now: When the state is recorded.

        Raises:
            ConfigurationError: Earlier erasures were recorded with another key.
        """
        table = iceberg.load(self.catalog, ERASURE)
        self.rows()  # checks the key
        row = {
            "subject": subject,
            "id_hash": self.hash(subject, value),
            "key_id": self._keyed.key_id,
            "state": state,
            "erased_at": erased_at,
            "recorded_at": now,
        }
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        table.append(pa.Table.from_pylist([row], schema=schema))

    def known(self, subject: str, values: Iterable[str], among: Iterable[Erasure]) -> Mapping[str, datetime]:
        """Return erased id → time of its erasure, for those of the ids that were erased.

        Args:
            subject: The subject's name.
            values: The ids to look for.
            among: The erasures to look in.
        """
        times: dict[str, datetime] = {}
        for erasure in among:
            if erasure.subject == subject:
                times[erasure.id_hash] = erasure.erased_at
        found: dict[str, datetime] = {}
        if not times:
            return found  # no id is hashed, and no key is needed
        for value in values:
            id_hash = self.hash(subject, value)
            if id_hash in times:
                found[value] = times[id_hash]
        return found

    def hash(self, subject: str, value: str) -> str:
        """Return the keyed hash of an id, hexadecimal."""
        return self._keyed.of(subject, value)


def _done_first(row: Mapping[str, Any]) -> tuple[datetime, bool, datetime]:
    """Sort key: by time of erasure, and `done` before a request of the same time, which does not undo it."""
    return row["erased_at"], row["state"] == "requested", row["recorded_at"]


DROPPED = "lake.erased"
"""Snapshot property: how many rows this snapshot deleted because their subject had been erased."""


class ErasureGuard:
    """Deletes rows of erased subjects from the raw tables of a pipeline."""

    def __init__(self, catalog: Catalog, pipeline: Pipeline, erasures: Erasures) -> None:
        self.catalog = catalog
        self.pipeline = pipeline
        self.erasures = erasures

    def delete_erased_rows(self, decision: Decision) -> bool:
        """Delete the rows of erased subjects that a plan would read.

        Returns:
            Whether any were deleted. If so, the plan must not run: it names snapshots that have them.
        """
        if not isinstance(decision, SessionPlan) or not self.pipeline.subjects:
            return False
        erased = self.erasures.rows()
        if not erased:
            return False
        raw_tables = {raw.table: raw for raw in self.pipeline.raw}
        deleted = 0
        for source in decision.sources:
            if source.source in raw_tables:
                deleted += self._delete_from_range(raw_tables[source.source], source, erased)
        return deleted > 0

    def sweep(self) -> dict[str, int]:
        """Delete the rows of erased subjects from all raw tables, whether a session has read them or not.

        Returns:
            Table → rows deleted, for the tables that had any.
        """
        erased = self.erasures.rows()
        if not erased:
            return {}
        deleted: dict[str, int] = {}
        for raw in self.pipeline.raw:
            table = iceberg.load(self.catalog, raw.table)
            condition = self._erased_rows(
                table,
                raw,
                erased,
                snapshot_id=publish.main_id(table),
                after=0,
            )
            if condition is None:
                continue
            rows = delete_rows(self.catalog, raw.table, condition)
            if rows:
                deleted[raw.table] = rows
        return deleted

    def _delete_from_range(self, raw: RawTable, source: SourceRange, erased: Sequence[Erasure]) -> int:
        if source.to_snapshot_id is None or source.from_snapshot_id == source.to_snapshot_id:
            return 0
        table = iceberg.load(self.catalog, raw.table)
        condition = self._erased_rows(
            table,
            raw,
            erased,
            snapshot_id=source.to_snapshot_id,
            after=_sequence_number_read(table, source),
        )
        if condition is None:
            return 0
        rows = _count_rows(table, condition, source.to_snapshot_id)
        if rows:
            delete_rows(self.catalog, raw.table, condition)
        return rows

    def _erased_rows(
        self,
        table: Table,
        raw: RawTable,
        erased: Sequence[Erasure],
        *,
        snapshot_id: int | None,
        after: int,
    ) -> BooleanExpression | None:
        """Return the condition on rows of erased subjects in the files of a snapshot; None if no id was erased.

        after: only files with a higher sequence number are read.
        """
        if snapshot_id is None:
            return None
        conditions: list[BooleanExpression] = []
        for subject in self.pipeline.subjects:
            columns = subject_columns(self.catalog, raw, subject)
            if columns:
                files = _files_added(table, snapshot_id, after)
                ids = _ids_in(table, columns, files)
                erased_ids = self.erasures.known(subject.name, ids, erased)
                conditions += _rows_sent_before(table, raw, columns, erased_ids)
        return any_of_filters(conditions) if conditions else None


def holds(columns: Iterable[str], *values: str) -> BooleanExpression:
    """Return the condition on rows that have any of the ids in one of the columns."""
    return any_of_filters(In(column, set(values)) for column in columns)  # type: ignore[call-arg, arg-type]


def delete_rows(catalog: Catalog, name: str, which: BooleanExpression) -> int:
    """Delete rows by rewriting the files that have them, also if others write to the table meanwhile.

    Returns:
        How many rows were deleted.
    """
    for attempt in iceberg.retrying(ValidationException):
        with attempt:
            table = iceberg.load(catalog, name)
            rows = _count_rows(table, which, publish.main_id(table))
            if rows:
                table.delete(which, snapshot_properties={DROPPED: str(rows)})
            return rows
    raise AssertionError("unreachable: the last attempt returns or raises")


def holders(catalog: Catalog, pipeline: Pipeline, subject: Subject) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the tables that have ids of a subject, with those columns: raw tables first, then targets in order."""
    found = {raw.table: subject_columns(catalog, raw, subject) for raw in pipeline.raw}
    found |= {target.table: subject.columns_of(target.columns) for target in pipeline.in_order()}
    for table, columns in found.items():
        if columns:
            yield table, columns


def _rows_sent_before(
    table: Table, raw: RawTable, columns: Sequence[str], erased_ids: Mapping[str, datetime]
) -> list[BooleanExpression]:
    """Return, for the ids of each time of erasure, the condition on their rows that happened or landed by then."""
    types = {field.name: field.field_type for field in table.schema().fields}
    time_columns = [column for column in (raw.time_column, raw.landed_column) if column in types]
    ids_by_time: defaultdict[datetime, list[str]] = defaultdict(list)
    for value, erased_at in erased_ids.items():
        ids_by_time[erased_at].append(value)
    conditions: list[BooleanExpression] = []
    for erased_at, ids in sorted(ids_by_time.items()):
        # A row without a time may have happened by then.
        by_then: list[BooleanExpression] = [IsNull(raw.time_column)]  # type: ignore[call-arg, arg-type]
        for column in time_columns:
            has_zone = isinstance(types[column], TimestamptzType)
            by_then.append(_at_or_before(column, erased_at, has_zone=has_zone))
        conditions.append(And(holds(columns, *ids), any_of_filters(by_then)))
    return conditions


def _at_or_before(column: str, moment: datetime, *, has_zone: bool) -> BooleanExpression:
    in_utc = moment.astimezone(UTC)
    text = in_utc.isoformat() if has_zone else in_utc.replace(tzinfo=None).isoformat()
    return LessThanOrEqual(column, text)  # type: ignore[call-arg, arg-type]


def _sequence_number_read(table: Table, source: SourceRange) -> int:
    """Return the sequence number up to which the files of a range were read before; 0 if history does not show it.

    After a rollback, the watermark's snapshot may be newer than the head, and rows that it had deleted are back.
    """
    for snapshot in publish.ancestors(table, source.to_snapshot_id):
        if snapshot.snapshot_id == source.from_snapshot_id:
            return snapshot.sequence_number or 0
    return 0


def _files_added(table: Table, snapshot_id: int, after: int) -> list[DataFile]:
    """Return the live data files of a snapshot that were added, or compacted, after a sequence number."""
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return []
    found = []
    for manifest in snapshot.manifests(table.io):
        if manifest.content is not ManifestContent.DATA or manifest.sequence_number <= after:
            continue
        for entry in entries(manifest, table.io, discard_deleted=True):
            if _number_added(entry) > after:
                found.append(entry.data_file)
    return found


def _number_added(entry: ManifestEntry) -> int:
    """Return the sequence number at which a file was added, or compacted."""
    # A compacted file has a new file sequence number, and the data sequence number of its old rows.
    return max(entry.file_sequence_number or 0, entry.sequence_number or 0)


def _ids_in(table: Table, columns: tuple[str, ...], files: list[DataFile]) -> set[str]:
    if not files:
        return set()
    schema = table.schema().select(*columns)
    scan = ArrowScan(table.metadata, table.io, schema, ALWAYS_TRUE)
    rows: pa.Table = scan.to_table([FileScanTask(file) for file in files])
    found: set[Any] = set()
    for column in columns:
        found.update(rows.column(column).unique().to_pylist())
    return found - {None}


def _count_rows(table: Table, which: BooleanExpression, snapshot_id: int | None) -> int:
    if snapshot_id is None:
        return 0
    return int(at_present(table, snapshot_id).scan(which, snapshot_id=snapshot_id).count())
