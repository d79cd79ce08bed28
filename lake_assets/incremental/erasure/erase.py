"""Erasure of a subject: deletion from raw tables, rebuild of targets, removal of the files that held the rows.

The steps run in this order. Each can be repeated, so calling an erasure again finishes one that died:

1. The erasure is recorded as requested. From then on, the erasure guard deletes rows that were sent before the erasure
   and arrive later.
2. The rows are deleted from the raw tables.
3. Every target is brought up to date: the touched hours are planned and rebuilt as
   after any other change. Hours beyond a catch-up threshold are rebuilt as a backfill. Then every watermark is at the
   head of its source.
4. The id is removed from quarantine and from the samples of audits.
5. Old and staged snapshots expire, and their files are removed; so are files with the id that `etl.session` no longer
   refers to.
6. The id is erased outside of the tables, for example from landed files.
7. The erasure is recorded as done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import itemgetter
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, In, NotNull
from pyiceberg.table import ALWAYS_TRUE, Table
from pyiceberg.table.snapshots import Operation

from lake_assets.base.columns import table_in_sql
from lake_assets.base.failpoints import reach
from lake_assets.base.hours import hour_of
from lake_assets.base.id_matcher import IdMatcher, Words
from lake_assets.errors import ErasureStopped, UsageError, named
from lake_assets.incremental.declaration import Subject, Target
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import subject_columns
from lake_assets.incremental.engine.engine import catch_up
from lake_assets.incremental.engine.erasures import (
    DROPPED,
    Erasure,
    delete_rows,
    holders,
    holds,
    rows_with,
    sent_by,
    spellings,
)
from lake_assets.incremental.engine.iceberg import QUARANTINE, live_entries, session_table
from lake_assets.incremental.engine.model import NoSession
from lake_assets.incremental.engine.retention import (
    SnapshotReferences,
    drop_deleted_entries,
    expire,
    files_outside,
    former_tables,
    head_has_delete_files,
    read_references,
    remove_file,
    remove_unreferenced_files,
    unreferenced_files,
)
from lake_assets.incremental.erasure.certificate import search_file
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Engine

WRITER_SECONDS = 60
"""How long an erasure waits for a writer to commit a file with the id, or to remove it."""


def _log_tables(catalog: Catalog) -> tuple[str, str]:
    """Return the tables of the engine that may contain an id."""
    return session_table(catalog), QUARANTINE


@dataclass(frozen=True)
class Removed:
    """How many snapshots were expired, and how many files were removed."""

    snapshots: int
    files: int


def remove_history(catalog: Catalog, names: Sequence[str], *, orphaned_before: datetime) -> Removed:
    """Expire the old snapshots of tables and of the log tables, and remove their files.

    Args:
        catalog: The catalog of the tables.
        names: The tables; the log tables are added.
        orphaned_before: Orphans that were last written before this moment are removed, too.

    Raises:
        ErasureStopped: A watermark or an open session still needs an old snapshot; then nothing was expired.
    """
    references = read_references(catalog)
    all_names = [*names, *_log_tables(catalog)]
    for name in all_names:
        _check_no_old_snapshot_is_needed(catalog, name, references)
    snapshots = 0
    for name in all_names:
        if name in _log_tables(catalog):
            drop_deleted_entries(catalog, name)
        snapshots += expire(catalog, name, partial(_all_but, references.next_reads(name)))[1]
    reach("erasure-expired")
    files = 0
    for name in all_names:
        files += remove_unreferenced_files(catalog, name, orphaned_before=orphaned_before)
    reach("erasure-files-removed")
    return Removed(snapshots, files)


def _all_but(kept: Collection[int], table: Table) -> list[int]:
    return [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]


def _check_no_old_snapshot_is_needed(catalog: Catalog, name: str, references: SnapshotReferences) -> None:
    table = iceberg.load(catalog, name)
    behind = set()
    for snapshot_id, process in references.next_reads(name).items():
        if not _has_only_gained_rows(table, snapshot_id):
            behind.add(process)
    if behind:
        raise ErasureStopped(
            f"An old snapshot of {name} is still needed by {', '.join(sorted(behind))}.",
            remedy="Run these processes until they have nothing to do, then erase again.",
        )


def _has_only_gained_rows(table: Table, snapshot_id: int) -> bool:
    """Return whether main has all rows of a snapshot: others have appended to it since, as a loader does."""
    for snapshot in publish.ancestors(table):
        if snapshot.snapshot_id == snapshot_id:
            return True
        if snapshot.summary is None or snapshot.summary.operation is not Operation.APPEND:
            return False
    return False


def _check_no_former_table(catalog: Catalog, name: str, strays: Sequence[str], subject: str) -> None:
    """Check that no other table has metadata in a table's folder: the files may be rows that it still needs."""
    former = former_tables(iceberg.load(catalog, name))
    if former:
        raise ErasureStopped(
            f"The folder of {name} holds {len(strays)} files with the {subject} that may belong to a former table.",
            remedy=f"If that table is not needed, delete its metadata files ({', '.join(sorted(former.values()))}) and "
            "erase again: then its files are removed. Otherwise register it in the catalog first.",
        )


def _check_no_file_outside(catalog: Catalog, names: Sequence[str], subject: str, matcher: IdMatcher) -> None:
    """Check that the id is in no file that is outside of a table's folder, and that only former versions refer to."""
    for name in names:
        table = iceberg.load(catalog, name)
        held = []
        for location, is_of_head in sorted(files_outside(table).items()):
            with suppress(FileNotFoundError):
                if not is_of_head and search_file(table.io, location, matcher).occurrences:
                    held.append(location)
        if held:
            raise ErasureStopped(
                f"The rows of the {subject} are no longer in {name}, but in files outside of its folder: "
                f"{named(held)}.",
                remedy="They were added to the table from there. Delete them, or the rows in them, and erase again.",
            )


def remove_strays(catalog: Catalog, names: Sequence[str], subject: str, matcher: IdMatcher) -> tuple[int, bool]:
    """Remove files with the id that no version of a table refers to and that are too young to be orphans.

    `etl.session` leaves such files when it expires its own snapshots. They are removed, because its present version is
    later than they are. Such a file of another table may belong to a writer that has not committed yet: it is waited
    for until it is committed or gone. What is written meanwhile is not waited for, because its rows came later.

    Args:
        catalog: The catalog of the tables.
        names: The tables; the log tables are added.
        subject: What the id identifies, for the error.
        matcher: The ids.

    Returns:
        How many files were removed, and whether a writer may have committed rows with the id meanwhile.

    Raises:
        ErasureStopped: Another table than `etl.session` still has such files after `WRITER_SECONDS`, or they may belong
            to a former table.
    """
    removed = 0
    came = False
    for name in (*names, *_log_tables(catalog)):
        io = iceberg.load(catalog, name).io
        strays = []
        for file in unreferenced_files(catalog, name):
            if search_file(io, file.location, matcher).occurrences:
                strays.append(file.location)
        if strays:
            _check_no_former_table(catalog, name, strays, subject)
        if strays and name != session_table(catalog):
            left = _wait_for_writers(catalog, name, strays)
            if left:
                raise ErasureStopped(
                    f"{name} does not refer to {len(left)} files that hold the {subject}: "
                    "a writer has not committed them yet, or died before it did.",
                    remedy="Erase again when no writer is active and the files are a day old: then they are removed.",
                )
            strays, came = [], True
        for path in strays:
            remove_file(io, path)
        removed += len(strays)
    return removed, came


def _wait_for_writers(catalog: Catalog, name: str, files: Collection[str]) -> set[str]:
    """Wait until a table refers to files, or they are gone; return those that are left after `WRITER_SECONDS`."""
    until = monotonic() + WRITER_SECONDS
    left = set(files)
    while left and monotonic() < until:
        sleep(1)
        left &= {file.location for file in unreferenced_files(catalog, name)}
    return left


ERASED = "(erased)"
"""Replaces a key with the id in the sample of an audit."""


def delete_quarantined_rows(catalog: Catalog, matcher: IdMatcher) -> int:
    """Delete the rows in quarantine that have one of the ids in any column; a number, in a column of ids.

    Returns:
        How many rows were deleted.
    """
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(catalog, QUARANTINE)
            rows = table.scan(selected_fields=("row_hash", "row")).to_arrow()
            hashes = [row["row_hash"] for row in rows.to_pylist() if _has_id(row["row"], matcher)]
            if hashes:
                with iceberg.committing(catalog, table):
                    table.delete(In("row_hash", set(hashes)))  # type: ignore[call-arg, arg-type]
            return len(hashes)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _has_id(row: str | None, matcher: IdMatcher) -> bool:
    columns: dict[str, Any] = json.loads(row or "{}")
    if any(matcher.is_id(columns.get(name)) for name in matcher.columns):
        return True
    return any(isinstance(value, str) and value in matcher.words for value in columns.values())


def redact_audit_samples(catalog: Catalog, ids: Collection[str]) -> int:
    """Replace the keys that mention one of the ids in samples of audits by `ERASED`; results and counts are kept.

    Returns:
        How many rows of `etl.session` mentioned it.
    """
    by_process, words = itemgetter("process_name"), Words(*ids)
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(catalog, session_table(catalog))
            rows = table.scan(NotNull("audits")).to_arrow()  # type: ignore[call-arg, arg-type]
            stored = rows.to_pylist()
            mentioning = [row for row in stored if _mentions(row["audits"], words)]
            moves = {_move(row) for row in mentioning}
            # A session that an audit stopped has the number of the next one.
            rewritten = [row for row in stored if _move(row) in moves]
            with table.transaction() as transaction:
                for process, group in groupby(sorted(rewritten, key=by_process), key=by_process):
                    redacted = [_redacted(row, words) for row in group]
                    revisions = {row["revision"] for row in redacted}
                    same_rows = And(
                        EqualTo("process_name", process),  # type: ignore[call-arg, arg-type]
                        In("revision", revisions),  # type: ignore[call-arg, arg-type]
                    )
                    replacement = rows.from_pylist(redacted, schema=rows.schema)
                    transaction.overwrite(replacement, overwrite_filter=same_rows)
            return len(mentioning)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _move(row: dict[str, Any]) -> tuple[str, int]:
    return row["process_name"], row["revision"]


def _mentions(audits: str | None, words: Words) -> bool:
    keys = [key for audit in json.loads(audits or "[]") for key in audit["sample"]]
    return any(words.count(key) for key in keys)


def _redacted(row: dict[str, Any], words: Words) -> dict[str, Any]:
    audits = json.loads(row["audits"])
    for audit in audits:
        audit["sample"] = [ERASED if words.count(key) else key for key in audit["sample"]]
    return row | {"audits": json.dumps(audits, ensure_ascii=False, separators=(",", ":"))}


GRACE = timedelta(days=1)
"""Age from which on a draft, or a file that nothing ever referred to, is removed: a writer may own a younger one."""

MAX_ROUNDS = 5
"""How often targets are brought up to date before an erasure gives up, because other writers keep committing."""

RUN_ID = "erasure"
"""Stands for the run in the sessions of an erasure."""

Report = Callable[[str], None]
"""Gets the name of each step before it starts."""

Elsewhere = Callable[[Sequence[Erasure]], object]
"""Erases outside of the tables. Raises `ErasureStopped` if something has to happen there first."""


@dataclass(frozen=True)
class ErasureReport:
    """What an erasure or a sweep did.

    Attributes:
        subject: What the ids identify; empty for a sweep.
        ids: Number of ids.
        rows: Raw table → number of deleted rows.
        quarantined: Number of rows deleted from quarantine.
        samples: Number of rows of `etl.session` whose samples were redacted.
        snapshots: Number of expired snapshots.
        files: Number of removed files.
        unfinished: Number of other erasures that were requested and are not done.
    """

    subject: str
    ids: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: int = 0
    samples: int = 0
    snapshots: int = 0
    files: int = 0
    unfinished: int = 0

    @property
    def found(self) -> bool:
        """Whether the tables had anything of the subject."""
        return bool(self.rows or self.quarantined or self.samples)


def erase(
    engine: Engine,
    name: str,
    *values: str,
    now: datetime,
    report: Report = lambda _: None,
    elsewhere: Elsewhere = lambda _: None,
) -> ErasureReport:
    """Erase all rows of a subject's ids that were sent until now. A repeated call continues, or finds nothing.

    Args:
        engine: The engine of the pipeline.
        name: The subject, as the pipeline declares it.
        values: The ids; one that is named again counts once.
        now: Rows sent until this moment are erased.
        report: Called before each step.
        elsewhere: Erases outside of the tables.

    Raises:
        ErasureStopped: A target cannot be brought up to date; a branch, a tag or another program's watermark needs a
            snapshot that has to expire; a file may belong to an active writer; or one outside of a table's folder still
            holds an id.
        ConfigurationError: A declaration cannot be used.
        UsageError: The pipeline does not declare the subject, or an id is empty, is nobody's, or cannot be one.
    """
    engine.pipeline.refuse_broken()  # the tables that it declares may have rows of the id
    subject = engine.pipeline.subject(name)
    for value in values:
        check_id(name, value)
    if not values:
        raise UsageError("No id is named.", remedy=f"Name the {name} to erase.")
    ids = spellings(engine.catalog, engine.pipeline, subject, values)
    matcher = IdMatcher(*ids, columns=subject.columns)
    engine.erasures.record(name, ids, "requested", erased_at=now, now=now)
    reach("erasure-requested")
    report("deleting rows")
    rows = _delete_raw_rows(engine, subject, ids)
    reach("erasure-rows-deleted")
    quarantined = samples = snapshots = files = 0
    for _ in range(MAX_ROUNDS):
        report("bringing targets up to date")
        _bring_targets_up_to_date(engine, report)
        _rebuild_remaining_hours(engine, subject, ids, matcher, report)
        if _delete_rows_that_came(engine, subject, ids, now):
            continue
        reach("erasure-rebuilt")
        quarantined += delete_quarantined_rows(engine.catalog, matcher)
        samples += redact_audit_samples(engine.catalog, ids)
        if not _is_gone_from_refs(engine, subject, ids, now):
            continue
        report("removing old files")
        names = [table for table, _ in holders(engine.catalog, engine.pipeline, subject)]
        _check_no_file_outside(engine.catalog, names, subject.name, matcher)
        removed = remove_history(engine.catalog, names, orphaned_before=now - GRACE)
        strays, came = remove_strays(engine.catalog, names, subject.name, matcher)
        snapshots, files = snapshots + removed.snapshots, files + removed.files + strays
        if not came:
            break
    else:
        raise ErasureStopped(
            f"Rows of the {subject.name} came while it was erased, {MAX_ROUNDS} times.",
            remedy="Stop the writers that do not know the erasure, and erase again: finished steps are not repeated.",
        )
    report("erasing outside of the tables")
    elsewhere([Erasure(name, engine.erasures.hash(name, each), now, "requested") for each in ids])
    # The clock's time, not `now`: data that a push read in between, before targets were rebuilt, must not be served.
    engine.erasures.record(name, ids, "done", erased_at=now, now=engine.clock())
    return ErasureReport(
        subject=name,
        ids=len(set(values)),
        rows=rows,
        quarantined=quarantined,
        samples=samples,
        snapshots=snapshots,
        files=files,
        unfinished=_count_unfinished(engine),
    )


def check_id(name: str, value: str) -> None:
    """Check that a text is the id of somebody.

    Raises:
        UsageError: It is empty, begins or ends with a blank, or is one of `LAKE_NO_IDS`, sent for nobody.
    """
    found = settings()
    if not value.strip():
        raise UsageError("The id is empty.", remedy=f"Name the {name} to erase.")
    if value.strip().casefold() in found.ids_of_nobody:
        raise UsageError(
            f"{value.strip()!r} is nobody's id: rows of many people have it.",
            remedy=f"Name the {name} that is meant. If it is an id here, take it out of LAKE_NO_IDS.",
        )
    if value != value.strip() and not found.blank_ids:
        raise UsageError(
            "The id begins or ends with a blank, and the same id without it is another one.",
            remedy="Leave the blank out, or set LAKE_BLANK_IDS=true if ids have them.",
        )


def sweep(engine: Engine, *, now: datetime, elsewhere: Elsewhere = lambda _: None) -> ErasureReport:
    """Delete rows that arrived after their subject was erased, and the files that held them.

    This includes the files of rows that the erasure guard deleted before.

    Args:
        engine: The engine of the pipeline.
        now: Files that nothing refers to are removed if they are older than `GRACE` at this moment.
        elsewhere: Erases outside of the tables.
    """
    report = _sweep_tables(engine, now)
    erasures = engine.erasures.rows()
    if erasures:
        elsewhere(erasures)
    return report


def _sweep_tables(engine: Engine, now: datetime) -> ErasureReport:
    rows = engine.erasure_guard.sweep()
    names: set[str] = set()
    for subject in engine.pipeline.subjects:
        names.update(table for table, _ in holders(engine.catalog, engine.pipeline, subject))
    raw_names = [raw.table for raw in engine.pipeline.raw if raw.table in names]
    if not any(_has_erased_rows_in_history(engine.catalog, name) for name in raw_names):
        return ErasureReport("", unfinished=_count_unfinished(engine))
    _bring_targets_up_to_date(engine)
    removed = remove_history(engine.catalog, sorted(names), orphaned_before=now - GRACE)
    return ErasureReport(
        subject="",
        rows=rows,
        snapshots=removed.snapshots,
        files=removed.files,
        unfinished=_count_unfinished(engine),
    )


def _delete_raw_rows(engine: Engine, subject: Subject, ids: Collection[str]) -> dict[str, int]:
    deleted: dict[str, int] = {}
    for raw in engine.pipeline.raw:
        columns = subject_columns(engine.catalog, raw, subject)
        if not columns:
            continue
        table = _without_delete_files(engine, raw.table, iceberg.load(engine.catalog, raw.table))
        rows = delete_rows(engine.catalog, raw.table, holds(table.schema(), columns, ids))
        if rows:
            deleted[raw.table] = rows
    return deleted


def _delete_rows_that_came(engine: Engine, subject: Subject, ids: Collection[str], now: datetime) -> bool:
    """Delete rows that were sent before the erasure, and that another writer had prepared before it was recorded.

    Returns:
        Whether a table has another head now.
    """
    is_changed = False
    for raw in engine.pipeline.raw:
        columns = subject_columns(engine.catalog, raw, subject)
        if columns:
            before = iceberg.load(engine.catalog, raw.table)
            table = _without_delete_files(engine, raw.table, before)
            which = And(holds(table.schema(), columns, ids), sent_by(table, raw, now))
            rows = delete_rows(engine.catalog, raw.table, which)
            is_changed = is_changed or rows > 0 or publish.main_id(table) != publish.main_id(before)
    return is_changed


def _without_delete_files(engine: Engine, name: str, table: Table) -> Table:
    """Return a table, rewritten if delete files hide rows of it, which are still in its data files."""
    if not head_has_delete_files(table):
        return table
    engine.rewrite_without_delete_files(name)
    return iceberg.load(engine.catalog, name)


def _bring_targets_up_to_date(engine: Engine, report: Report = lambda _: None) -> None:
    """Move every watermark to the head of its source, and remove the entries of deleted files from every head.

    The first round, which does most of the work, is reported.
    """
    targets = engine.pipeline.in_order()
    for round_ in range(MAX_ROUNDS):
        # Again in each round: the erasure guard of a session deletes rows, too.
        changed = [drop_deleted_entries(engine.catalog, raw.table) for raw in engine.pipeline.raw]
        for number, target in enumerate(targets, 1):
            if not round_:
                report(f"{target.table}, target {number} of {len(targets)}")
            changed.append(_bring_up_to_date(engine, target))
        if not any(changed):
            return
    # Other writers keep committing. Each round has read what was deleted before; what is left is looked for later.


def _bring_up_to_date(engine: Engine, target: Target) -> bool:
    """Run a target's sessions and move its watermark to the heads of its sources; return whether anything changed."""
    outcomes = catch_up(engine, [target], run_id=RUN_ID)
    failed = [outcome.failure for outcome in outcomes if outcome.failure]
    if failed:
        raise ErasureStopped(
            f"{target.table} may still hold erased rows, because it cannot be brought up to date: {failed[0]}",
            remedy="Resolve this problem, then erase again: finished steps are not repeated.",
        )
    acknowledged = not isinstance(engine.acknowledge(target, run_id=RUN_ID), NoSession)
    rewritten = drop_deleted_entries(engine.catalog, target.table)
    if rewritten or publish.lags_behind(
        iceberg.load(engine.catalog, target.table)
    ):  # the tag of the last session would keep the former manifests
        engine.carry(target, why="erasure", run_id=RUN_ID)
    return len(outcomes) > 1 or acknowledged or rewritten


def _rebuild_remaining_hours(
    engine: Engine, subject: Subject, ids: Collection[str], matcher: IdMatcher, report: Report
) -> None:
    """Rebuild the hours that no plan reached, such as those beyond a catch-up threshold, target after target."""
    for target in engine.pipeline.in_order():
        columns = subject.columns_of(target.columns)
        hours = _hours_with(engine.catalog, target, columns, ids) if columns else []
        if not hours:
            continue
        report(f"rebuilding {len(hours):,} hours of {target.table}")
        engine.rebuild(target, hours, run_id=RUN_ID)
        _bring_targets_up_to_date(engine)
        remaining = _hours_with(engine.catalog, target, columns, ids)
        if remaining and not _has_sent_since(engine, subject, ids):
            unnamed = _unnamed_columns(engine, matcher)
            remedy = f"Look at `lake sessions {target.name}`, and erase again."
            if unnamed:
                remedy = (
                    f"The subject does not name {named(unnamed)}, which holds it. Add the column to the subject, or "
                    "delete or change these rows; then erase again. Of a column with parts, change the rows."
                )
            rows = f"rows of the {subject.name}, in {len(remaining)} hours"
            raise ErasureStopped(f"{target.table} still has {rows}.", remedy=remedy)


def _unnamed_columns(engine: Engine, matcher: IdMatcher) -> list[str]:
    """Return the columns of raw tables, as `table.column`, that hold the ids and are none of the subject's."""
    found = set[str]()
    for raw in engine.pipeline.raw:
        table = iceberg.load(engine.catalog, raw.table)
        for entry in live_entries(table, table.current_snapshot()):
            column = search_file(table.io, entry.data_file.file_path, matcher).column
            if column and column not in matcher.columns:
                found.add(f"{raw.table}.{column}")
    return sorted(found)


def _hours_with(catalog: Catalog, target: Target, columns: tuple[str, ...], ids: Collection[str]) -> list[int]:
    table = iceberg.load(catalog, target.table)
    hours: set[int] = set()
    for batch in rows_with(table, columns, ids, also=[target.time_column]):
        hours.update(hour_of(time) for time in batch.column(target.time_column).drop_null().unique().to_pylist())
    return sorted(hours)


def _has_sent_since(engine: Engine, subject: Subject, ids: Collection[str]) -> bool:
    """Return whether a raw table has rows of the subject: those that were sent by the time of the erasure are gone."""
    for raw in engine.pipeline.raw:
        columns = subject_columns(engine.catalog, raw, subject)
        table = iceberg.load(engine.catalog, raw.table)
        if columns and any(rows_with(table, columns, ids)):
            return True
    return False


def _is_gone_from_refs(engine: Engine, subject: Subject, ids: Collection[str], now: datetime) -> bool:
    """Return whether no main branch has rows of the subject; those of another writer may have come meanwhile.

    Rows that were sent after the erasure stay, in raw tables and in what sessions make of them.

    Raises:
        ErasureStopped: Another branch or a tag has such rows; only people drop these.
    """
    raws = {raw.table: raw for raw in engine.pipeline.raw}
    for name, columns in holders(engine.catalog, engine.pipeline, subject):
        table = iceberg.load(engine.catalog, name)
        for ref_name, ref in table.metadata.refs.items():
            sent = sent_by(table, raws[name], now) if name in raws and ref_name == "main" else ALWAYS_TRUE
            if not any(rows_with(table, columns, ids, snapshot_id=ref.snapshot_id, among=sent)):
                continue
            if name not in raws and _has_sent_since(engine, subject, ids):
                continue
            if ref_name == "main":
                return False
            kind = ref.snapshot_ref_type.value
            raise ErasureStopped(
                f"{name} still holds the {subject.name} in the {kind} {ref_name}.",
                remedy=f"ALTER TABLE {table_in_sql(name)} DROP {kind.upper()} `{ref_name}`, and erase again.",
            )
    return True


def _has_erased_rows_in_history(catalog: Catalog, name: str) -> bool:
    """Return whether a snapshot that still exists deleted erased rows: the snapshots before it still have them."""
    table = iceberg.load(catalog, name)
    summaries = [snapshot.summary for snapshot in table.metadata.snapshots if snapshot.summary]
    return any(DROPPED in summary.additional_properties for summary in summaries)


def _count_unfinished(engine: Engine) -> int:
    return sum(erasure.state == "requested" for erasure in engine.erasures.rows())
