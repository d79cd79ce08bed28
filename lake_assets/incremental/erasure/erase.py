"""Erasing somebody: from the raw tables by deletion, from the targets by rebuild, from the files by letting go of them.

In this order, and each step safe to repeat, so that an erasure that was killed is finished by calling it again:

1. it is recorded as requested; from then on the door drops what was sent before and comes late;
2. the rows go from the raw tables;
3. every target is brought up to date: open sessions are finished, the touched hours planned and rebuilt as for any
   other change; hours beyond a catch-up threshold are rebuilt as a backfill. Watermarks stand at the heads then;
4. quarantine and the samples of audits lose the id;
5. old and staged snapshots expire, and their files are removed; so is what `etl.session` has forgotten with the id;
6. what lies outside of the tables goes, as landed files do;
7. it is recorded as done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, EqualTo, In, NotNull
from pyiceberg.table import Table

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import hour_of
from lake_assets.base.id_matcher import IdMatcher, id_pattern
from lake_assets.errors import ErasureStopped, UsageError
from lake_assets.incremental.declaration import Subject, Target
from lake_assets.incremental.erasure.certificate import search
from lake_assets.incremental.execution.catch_up import catch_up
from lake_assets.incremental.execution.erasure_guard import DROPPED, delete_rows, holders, holds
from lake_assets.incremental.maintenance.cleaning import (
    forget,
    head_has_deletes,
    remove,
    remove_files,
    scrub,
    unreferenced,
)
from lake_assets.incremental.maintenance.snapshot_references import read_references
from lake_assets.incremental.metadata import publish, tables
from lake_assets.incremental.metadata.erasure_registry import Erasure
from lake_assets.incremental.metadata.state_tables import QUARANTINE, SESSION
from lake_assets.incremental.planning.session import NoSession

if TYPE_CHECKING:
    from lake_assets.incremental.execution.engine import Engine

ERASED = "(erased)"
"""What stands in the sample of an audit where a key that holds the id stood."""

GRACE = timedelta(days=1)
"""How old a file that nothing ever referred to, or a draft, must be to go: younger ones may be a write at work."""

ROUNDS = 5
"""How often targets are brought up to date before an erasure gives up, because others keep writing."""

Report = Callable[[str], None]

Elsewhere = Callable[[Sequence[Erasure]], object]
"""Erases what lies outside of the tables. Raises `ErasureStopped` when something has to happen there before."""


@dataclass(frozen=True)
class ErasureReport:
    """What an erasure, or a sweep, did.

    rows: raw table → rows deleted. quarantined: rows taken out of quarantine. samples: rows of `etl.session` rewritten.
    snapshots, files: expired, and removed. unfinished: erasures that were requested and not done, this one aside.
    """

    subject: str
    rows: dict[str, int] = field(default_factory=dict)
    quarantined: int = 0
    samples: int = 0
    snapshots: int = 0
    files: int = 0
    unfinished: int = 0

    @property
    def found(self) -> bool:
        """Whether there was anything of the subject in the tables."""
        return bool(self.rows or self.quarantined or self.samples)


def erase(
    engine: Engine,
    name: str,
    value: str,
    *,
    now: datetime,
    report: Report = lambda _: None,
    elsewhere: Elsewhere = lambda _: None,
) -> ErasureReport:
    """Erase all that was sent of a subject's id by `now`. Called again, it goes on, or finds nothing.

    Raises `UsageError` for an unknown subject or an empty id, `ErasureStopped` when a target cannot follow, or a branch
    or tag, or another program's watermark, holds on to a snapshot that has to go, or a file may be a write at work.
    """
    subject = engine.pipeline.subject(name)
    if not value.strip():
        raise UsageError("The id is empty.", remedy=f"Name the {name} to erase.")
    engine.erasures.record(name, value, "requested", erased_at=now, now=now)
    reach("erasure-requested")
    report("deleting rows")
    rows = _delete_raw(engine, subject, value)
    reach("erasure-rows-deleted")
    report("bringing targets up to date")
    _settle(engine)
    _rebuild_what_is_left(engine, subject, value)
    reach("erasure-rebuilt")
    quarantined, samples = _unquarantine(engine.catalog, value), _redact(engine.catalog, value)
    _check_refs(engine, subject, value)
    report("removing old files")
    held_by = [t for t, _ in holders(engine.pipeline, subject)]
    snapshots, files = _let_go(engine, held_by, now)
    files += _clear_strays(engine.catalog, held_by, subject, value)
    report("erasing outside of the tables")
    elsewhere([Erasure(name, engine.erasures.hash(name, value), now, "requested")])
    # By the clock: what was read for a push since `now`, and before the targets were rebuilt, is not to be served.
    engine.erasures.record(name, value, "done", erased_at=now, now=engine.clock())
    return ErasureReport(name, rows, quarantined, samples, snapshots, files, _unfinished(engine))


def sweep(engine: Engine, *, now: datetime, elsewhere: Elsewhere = lambda _: None) -> ErasureReport:
    """Drop records of those erased that came late, and the files that held them, dropped now or at the door before."""
    done = _sweep_tables(engine, now)
    if among := engine.erasures.rows():
        elsewhere(among)
    return done


def _sweep_tables(engine: Engine, now: datetime) -> ErasureReport:
    rows = engine.erasure_guard.sweep()
    every = {t for s in engine.pipeline.subjects for t, _ in holders(engine.pipeline, s)}
    raw = [tables.load(engine.catalog, r.table) for r in engine.pipeline.raw if r.table in every]
    if not any(_dropped(table) for table in raw):
        return ErasureReport("", unfinished=_unfinished(engine))
    _settle(engine)
    snapshots, files = _let_go(engine, sorted(every), now)
    return ErasureReport("", rows, 0, 0, snapshots, files, _unfinished(engine))


def _delete_raw(engine: Engine, subject: Subject, value: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for raw in engine.pipeline.raw:
        if columns := subject.columns_of(raw.columns):
            if head_has_deletes(tables.load(engine.catalog, raw.table)):
                _flatten(engine, raw.table)
            if rows := delete_rows(engine.catalog, raw.table, holds(columns, value)):
                found[raw.table] = rows
    return found


def _flatten(engine: Engine, table: str) -> None:
    """Write the data files anew without the rows that delete files only hide, and drop those: both may hold the id."""
    assert engine.spark is not None, "an engine without Spark can only decide"
    options = "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
    engine.spark().sql(f"CALL lake.system.rewrite_data_files(table => '{table}', options => {options})").collect()


def _settle(engine: Engine) -> None:
    """Every target is up to date, every watermark at the head of its source, and no head tells of a deleted file."""
    for raw in engine.pipeline.raw:
        scrub(engine.catalog, raw.table)
    for _ in range(ROUNDS):
        moved = [_follow(engine, target) for target in engine.pipeline.in_order()]
        if not any(moved):
            return
    raise ErasureStopped("Others keep writing, so the targets are not up to date.", remedy="Erase again later.")


def _follow(engine: Engine, target: Target) -> bool:
    """Run what is due of a target, then move its watermark to the heads of its sources; whether there was anything."""
    outcomes = catch_up(engine, [target], run_id="erasure")
    if failed := [o.failure for o in outcomes if o.failure]:
        raise ErasureStopped(
            f"{target.table} cannot follow, so it may still hold what was erased: {failed[0]}",
            remedy="Repair it as told there, then erase again: what is done is not done twice.",
        )
    acknowledged = not isinstance(engine.acknowledge(target, run_id="erasure"), NoSession)
    scrubbed = scrub(engine.catalog, target.table)
    return len(outcomes) > 1 or acknowledged or scrubbed


def _rebuild_what_is_left(engine: Engine, subject: Subject, value: str) -> None:
    """Hours that no plan reaches, as those beyond a catch-up threshold, are rebuilt one target after the other."""
    for target in engine.pipeline.in_order():
        columns = subject.columns_of(target.columns)
        if columns and (hours := _hours_with(engine.catalog, target, columns, value)):
            engine.rebuild(target, hours, run_id="erasure")
            _settle(engine)
            if left := _hours_with(engine.catalog, target, columns, value):
                raise ErasureStopped(
                    f"{target.table} still has rows of the {subject.name}, in {len(left)} hours.",
                    remedy=f"Look at `lake sessions {target.name}`, and erase again.",
                )


def _hours_with(catalog: Catalog, target: Target, columns: tuple[str, ...], value: str) -> list[int]:
    found = tables.load(catalog, target.table).scan(holds(columns, value), selected_fields=(target.time_column,))
    return sorted({hour_of(t) for t in found.to_arrow().column(target.time_column).to_pylist()})


def _unquarantine(catalog: Catalog, value: str) -> int:
    """Rows in quarantine that hold the id, in whatever column, are deleted."""
    for attempt in tables.retrying():
        with attempt:
            table = tables.load(catalog, QUARANTINE)
            rows = table.scan(selected_fields=("target", "row_hash", "row")).to_arrow().to_pylist()
            held = {r["row_hash"] for r in rows if value in _values(r["row"])}
            if held:
                table.delete(In("row_hash", held))  # type: ignore[call-arg, arg-type]
            return sum(r["row_hash"] in held for r in rows)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _values(row: str | None) -> set[str]:
    found: dict[str, Any] = json.loads(row or "{}")
    return {v for v in found.values() if isinstance(v, str)}


def _redact(catalog: Catalog, value: str) -> int:
    """Where the sample of an audit names the id, the record says `ERASED` instead: verdict and counts stay."""
    for attempt in tables.retrying():
        with attempt:
            table = tables.load(catalog, SESSION)
            rows = table.scan(NotNull("audits")).to_arrow()  # type: ignore[call-arg, arg-type]
            found = sorted((r for r in rows.to_pylist() if _named(r, value)), key=itemgetter("process_name"))
            with table.transaction() as transaction:
                for process, group in groupby(found, key=itemgetter("process_name")):
                    clean = [{**r, "audits": _without(r["audits"], value)} for r in group]
                    which = And(
                        EqualTo("process_name", process),  # type: ignore[call-arg, arg-type]
                        In("revision", {r["revision"] for r in clean}),  # type: ignore[call-arg, arg-type]
                    )
                    transaction.overwrite(rows.from_pylist(clean, schema=rows.schema), overwrite_filter=which)
            return len(found)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _named(row: dict[str, Any], value: str) -> bool:
    return any(id_pattern(value).search(key) for audit in json.loads(row["audits"] or "[]") for key in audit["sample"])


def _without(audits: str, value: str) -> str:
    found = json.loads(audits)
    for audit in found:
        audit["sample"] = [ERASED if id_pattern(value).search(key) else key for key in audit["sample"]]
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def _check_refs(engine: Engine, subject: Subject, value: str) -> None:
    """Branches and tags are somebody's will: they are told, not dropped."""
    for table_name, columns in holders(engine.pipeline, subject):
        table = tables.load(engine.catalog, table_name)
        for ref, target in table.metadata.refs.items():
            if table.scan(holds(columns, value), snapshot_id=target.snapshot_id).count():
                if ref == "main":
                    raise ErasureStopped(
                        f"Rows of the {subject.name} came to {table_name} while it was erased.",
                        remedy="Erase again: what is done is not done twice.",
                    )
                kind = target.snapshot_ref_type.value
                raise ErasureStopped(
                    f"{table_name} still holds the {subject.name} in the {kind} {ref}.",
                    remedy=f"ALTER TABLE lake.{table_name} DROP {kind.upper()} `{ref}`, and erase again.",
                )


def _let_go(engine: Engine, of: Iterable[str], now: datetime) -> tuple[int, int]:
    """Expire and remove; how many snapshots and files. First nothing but what no watermark and no session needs."""
    needs = read_references(engine.catalog)
    snapshots = files = 0
    every = [*of, SESSION, QUARANTINE]
    for name in every:
        table = tables.load(engine.catalog, name)
        if behind := {s: who for s, who in needs.standing(name).items() if s != publish.main_id(table)}:
            raise ErasureStopped(
                f"{', '.join(sorted(set(behind.values())))} still needs an old snapshot of {name}.",
                remedy="Let it run until it has nothing to do, then erase again.",
            )
    for name in every:
        if name in (SESSION, QUARANTINE):
            scrub(engine.catalog, name)
        snapshots += forget(engine.catalog, name, needs.standing(name))
    reach("erasure-expired")
    for name in every:
        files += remove_files(engine.catalog, name, orphaned_before=now - GRACE)
    reach("erasure-files-removed")
    return snapshots, files


def _clear_strays(catalog: Catalog, of: Iterable[str], subject: Subject, value: str) -> int:
    """Find files with the id that no version of a table is known to refer to, too young to go by age; how many went.

    `etl.session` leaves such files when it forgets its old snapshots. They go: it has moved on, so none is committed
    any more. Those of other tables may be a write at work, and stop the erasure.
    """
    needle, removed = IdMatcher(value), 0
    for name in (*of, SESSION, QUARANTINE):
        io = tables.load(catalog, name).io
        strays = [file.path for file in unreferenced(catalog, name) if search(io, file, needle)[0]]
        if strays and name != SESSION:
            raise ErasureStopped(
                f"{name} does not refer to {len(strays)} files that hold the {subject.name}, or not yet: "
                "a write at work, or what is left of one that died.",
                remedy="Erase again when no write is at work, and they are a day old: then they are removed.",
            )
        for path in strays:
            remove(io, path)
        removed += len(strays)
    return removed


def _dropped(table: Table) -> bool:
    """Whether a snapshot that is still there dropped rows: those before it, then, have them."""
    return any(s.summary and DROPPED in s.summary.additional_properties for s in table.metadata.snapshots)


def _unfinished(engine: Engine) -> int:
    return sum(e.state == "requested" for e in engine.erasures.rows())
