"""The checks of `lake doctor`: the catalog of a home, its tables, its session log and its targets.

A check only reads. A repair loses nothing that is not lost already: it registers tables again from their newest
metadata files, sets properties, expires staged snapshots, and forgets what a damaged file of the session log held.
Sessions may always be forgotten, because the state of a target is in the target itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.expressions import AlwaysTrue, EqualTo
from pyiceberg.io import load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table

from lake_assets.base.findings import Check, Finding, Level, Repair, run_checks
from lake_assets.base.hours import hour_key
from lake_assets.connections.catalog import (
    METADATA_SUFFIX,
    connect,
    forget_tables,
    has_snapshots,
    is_blank,
    local_tables,
    log_tables,
    pyiceberg_properties,
    read_remembered,
    remember_tables,
    safe_address,
    sqlite_file,
    table_names,
)
from lake_assets.connections.sql_catalog import one_look
from lake_assets.errors import (
    InvalidHourKey,
    ServiceError,
    SourceError,
    TableDamaged,
    catalog_lost,
    source_replaced,
    write_audit_publish_disabled,
)
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import declared_columns, differences, load_raw, remedy_of
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import QUARANTINE, damaged_file
from lake_assets.incremental.engine.readable import check_files
from lake_assets.incremental.engine.retention import (
    SnapshotReferences,
    expire,
    former_tables,
    list_files,
    read_references,
)
from lake_assets.incremental.engine.session_log import LOG_PROPERTIES, create_tables
from lake_assets.incremental.engine.state import State, number_of
from lake_assets.incremental.operations.health import problems
from lake_assets.incremental.operations.maintain import engine_tables
from lake_assets.settings import Settings

CATALOG, TABLES, LOG = "catalog", "tables", "session log"
WATERMARKS, TARGETS, OPEN_SESSIONS, LEFTOVERS = "watermarks", "targets", "open sessions", "leftovers"

SAMPLE = 3
"""Number of manifests of each table that are read."""

STARTED_AGAIN = "lake.started-again"
"""Property of a log table that was created again on purpose: the former one in its folder is damaged."""

_RESTORE = "Restore the catalog from a backup, or correct LAKE_CATALOG_URI."


def diagnose_lake(settings: Settings, pipeline: Pipeline | None, *, clock: Callable[[], datetime]) -> list[Finding]:
    """Check a home. Changes nothing, and raises nothing.

    Args:
        settings: The settings of the home.
        pipeline: Its pipeline; None if it cannot be loaded, so that no table counts as declared.
        clock: Returns the present moment.
    """
    home = _Home(settings, pipeline, clock)
    found = run_checks([Check(CATALOG, home.check_catalog)])
    try:
        has_tables = bool(home.present)
    except Exception:  # of SQLAlchemy, requests or the REST client, depending on the address; its check has reported it
        has_tables = False
    if not has_tables:
        return found
    checks = [(TABLES, home.check_tables), (LOG, home.check_log)]
    if home.references is not None:
        checks += [(WATERMARKS, home.check_watermarks), (TARGETS, home.check_targets)]
        checks += [(OPEN_SESSIONS, home.check_open_sessions), (LEFTOVERS, home.check_leftovers)]
    with one_look(home.catalog):
        return found + run_checks(Check(name, check) for name, check in checks)


# Tables that no catalog knows any more


@dataclass(frozen=True)
class MetadataFile:
    """A metadata file in the folder of a table.

    Attributes:
        name: Its name without the folder.
        uuid: The table's uuid; None if the file cannot be read.
        updated_ms: When it was written, by its own content, in milliseconds since 1970-01-01 UTC.
        has_snapshots: Whether the table has a snapshot in it.
        predecessors: Names of the files of its metadata log.
    """

    name: str
    uuid: str | None
    updated_ms: int = 0
    has_snapshots: bool = False
    predecessors: frozenset[str] = frozenset()

    @property
    def version(self) -> int:
        """The number that its name begins with: `00012-….metadata.json`, `v12.metadata.json`; -1 without one."""
        found = re.match(r"v?(\d+)", self.name)
        return int(found[1]) if found else -1


Choice = tuple[str, str, str]
"""The name of the newest metadata file; or an empty one, the problem, and what to do about it."""


def newest_metadata(files: Collection[MetadataFile]) -> Choice:
    """Return the newest metadata file of a folder, or why none can be chosen.

    Every commit writes a metadata file, also one that the catalog then refuses. The files of commits that were made are
    chained: each names its predecessors in its metadata log. If the folder held several tables one after the other, the
    newest one with a snapshot is meant, or the newest one if none has a snapshot.
    """
    if not files:
        return "", "Its folder has no metadata file.", "Restore the folder from a backup."
    readable = [file for file in files if file.uuid is not None]
    if not readable:
        names = ", ".join(sorted(file.name for file in files))
        return "", f"None of its metadata files can be read: {names}.", "Restore one of them from a backup."
    meant = max(readable, key=lambda file: (file.has_snapshots, file.updated_ms))
    of_table = [file for file in readable if file.uuid == meant.uuid]
    predecessors = frozenset[str]().union(*(file.predecessors for file in of_table))
    heads = [file for file in of_table if file.name not in predecessors] or of_table
    version = max(file.version for file in heads)
    damaged = [file for file in files if file.uuid is None and file.version >= version]
    if damaged:
        name = max(damaged, key=lambda file: file.version).name
        remedy = f"Restore {name} from a backup, or move it away to use the version before it."
        return "", f"Its newest metadata file {name} is damaged.", remedy
    newest = sorted(file.name for file in heads if file.version == version)
    if len(newest) > 1:
        names = " and ".join(newest)
        problem = f"Its metadata files {names} have the same version, and one of them was never committed."
        return "", problem, "Move the wrong one away. The right one has the rows of the last commit."
    return newest[0], "", ""


class LostTable(NamedTuple):
    """A table that the catalog does not have.

    Attributes:
        name: The table.
        location: The metadata file to register it from; empty if there is a problem.
        problem: Why there is none, as a sentence.
        remedy: What to do about the problem.
        has_files: Whether its folder has metadata files.
    """

    name: str
    location: str
    problem: str
    remedy: str
    has_files: bool


def find_lost(name: str, location: str, properties: Mapping[str, str]) -> LostTable:
    """Return how a table can be registered again.

    Args:
        name: The table.
        location: Its folder.
        properties: Properties of the catalog, for access to the files.
    """
    io = load_file_io(dict(properties), location)
    folder = f"{location}/metadata"
    files = []
    for listed in list_files(io, folder):
        file = listed.path.rpartition("/")[2]
        if not file.endswith(METADATA_SUFFIX):
            continue
        try:
            metadata = FromInputFile.table_metadata(io.new_input(f"{folder}/{file}"))
        except (OSError, EOFError, ValueError, ValidationError):
            files.append(MetadataFile(file, None))
            continue
        log = frozenset(entry.metadata_file.rpartition("/")[2] for entry in metadata.metadata_log)
        uuid, updated_ms, has_snapshots = str(metadata.table_uuid), metadata.last_updated_ms, bool(metadata.snapshots)
        files.append(MetadataFile(file, uuid, updated_ms, has_snapshots, log))
    chosen, problem, remedy = newest_metadata(files)
    return LostTable(name, chosen and f"{folder}/{chosen}", problem, remedy, bool(files))


# The checks


class _Home:
    """A home to be checked. Each check yields what it finds."""

    def __init__(self, settings: Settings, pipeline: Pipeline | None, clock: Callable[[], datetime]) -> None:
        self.settings = settings
        self.pipeline = pipeline
        self.clock = clock
        self.logs = settings.session_table, settings.high_watermark_table
        self.targets = frozenset(target.table for target in pipeline.targets) if pipeline else frozenset[str]()
        self.columns = declared_columns(pipeline) if pipeline else {}

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, whether or not it has the tables of the home."""
        return connect(self.settings)

    @cached_property
    def present(self) -> frozenset[str]:
        """The tables of the catalog. A blank one is not connected to, because that would write it."""
        return frozenset() if is_blank(self.settings) else table_names(self.catalog)

    @cached_property
    def references(self) -> SnapshotReferences | None:
        """The newest rows of the session log; None if it is missing or cannot be read, which its check reports."""
        try:
            return read_references(self.catalog) if self.present.issuperset(self.logs) else None
        except Exception:  # whatever a damaged file makes its reader raise
            return None

    def loaded_targets(self) -> Iterator[tuple[str, Table]]:
        """Yield the targets that can be loaded; the check of tables reports the others."""
        for name in sorted(self.targets & self.present):
            with suppress(TableDamaged):
                yield name, iceberg.load(self.catalog, name)

    # The catalog: it opens, and has every table that the home had

    def check_catalog(self) -> Iterator[Finding]:
        address = self.settings.catalog_address
        remembered = read_remembered(self.settings.home)
        had: dict[str, str] = {}
        for name, folder in local_tables(self.settings.warehouse_address).items():
            if has_snapshots(folder):
                had[name] = f"file://{folder}"
        had |= remembered.tables if remembered else {}
        own = pyiceberg_properties(self.settings, chooses_io=False)
        try:
            present = self.present
        except ServiceError as error:
            # A lock or missing permissions are no damage. The files of a catalog elsewhere may be as far away as it is.
            is_damaged = "not a database" in error.problem or "malformed" in error.problem
            lost = []
            if is_damaged and address.startswith("sqlite"):
                lost = [find_lost(name, location, own) for name, location in sorted(had.items())]
            finding = self._registrable(error.problem, lost, damaged=sqlite_file(address)) if lost else None
            unrepairable = Finding(CATALOG, "error", error.problem, error.remedy)
            yield finding if finding and finding.repair else unrepairable
            return
        properties = own if is_blank(self.settings) else self.catalog.properties
        lost = [find_lost(name, location, properties) for name, location in sorted(had.items()) if name not in present]
        raw = {raw.table for raw in self.pipeline.raw} if self.pipeline else ()
        declared = self.targets.union(engine_tables(log_tables(self.settings)), raw)
        if not present and not lost:
            text = f"{self.settings.home} was never initialised: its catalog has no tables."
            remedy = "Run `lake init`, or set LAKE_HOME to the directory that is meant."
            yield Finding(CATALOG, "error", text, remedy)
            return
        found = [table.name for table in lost if table.location]
        if found:
            text = f"The catalog does not have {', '.join(found)}, which the home had."
            if not present:
                former = remembered.catalog if remembered else None
                text = catalog_lost(safe_address(address), home=self.settings.home, tables=found, former=former).problem
            yield self._registrable(text, lost)
        for table in lost:
            if table.location:
                continue
            text = f"The catalog does not have {table.name}. {table.problem}"
            if table.has_files or table.name in declared:
                yield Finding(CATALOG, "error", text, table.remedy)
                continue
            remedy, repair = table.remedy, None
            if remembered and table.name in remembered.tables:
                what = f"forgets {table.name}, which has no files and no pipeline declares"
                repair = Repair(what, partial(forget_tables, self.settings.home, [table.name]))
                remedy += f" If it was dropped, `lake doctor --repair` {what}."
            yield Finding(CATALOG, "warning", text, remedy, repair)
        new = sorted(declared - present - had.keys())
        if new:
            yield Finding(
                CATALOG, "warning", f"Declared tables do not exist yet: {', '.join(new)}.", "Run `lake init`."
            )
        if not lost:
            yield Finding(CATALOG, "ok", f"{safe_address(address)} has {len(present)} tables.")

    def _registrable(self, text: str, lost: Sequence[LostTable], *, damaged: Path | None = None) -> Finding:
        """Return the finding of lost tables, with a repair if all that have files can be registered again."""
        found = [table for table in lost if table.location]
        steps = tuple(f"{table.name} from {table.location}" for table in found)
        if not found or any(table.has_files and not table.location for table in lost):
            remedy = f"{_RESTORE} Or repair the other lost tables first: all are registered again, or none."
            return Finding(CATALOG, "error", text, remedy, details=steps)
        what = f"registers {found[0].name if len(found) == 1 else f'{len(found)} tables'} again"
        if damaged is not None:
            what = f"moves {damaged.name} away and {what}"
        repair = Repair(what, partial(self._register, found, damaged))
        return Finding(
            CATALOG, "error", text, f"{_RESTORE} Or run `lake doctor --repair`, which {what}.", repair, steps
        )

    def _register(self, lost: Sequence[LostTable], damaged: Path | None = None) -> None:
        """Register tables, each from its chosen metadata file; before it, move a damaged file of the catalog away."""
        if damaged is not None:
            number = 1
            while (aside := damaged.with_name(f"{damaged.name}.damaged-{number}")).exists():
                number += 1
            for journal in damaged.parent.glob(f"{damaged.name}-*"):  # SQLite would apply it to the new file
                journal.replace(aside.with_name(f"{aside.name}{journal.name.removeprefix(damaged.name)}"))
            damaged.replace(aside)
        catalog = connect(self.settings)
        for table in lost:
            catalog.create_namespace_if_not_exists(table.name.rpartition(".")[0])
            catalog.register_table(table.name, table.location)
        remember_tables(catalog, [table.name for table in lost], self.settings)

    # Tables: files that can be read, properties that sessions need, and folders that hold no other table

    def check_tables(self) -> Iterator[Finding]:
        sound = 0
        for name in sorted(self.present):
            found = list(self._check_table(name))
            yield from found
            sound += not found
        if sound:
            yield Finding(TABLES, "ok", f"{sound} tables are sound: metadata, up to {SAMPLE} manifests, properties.")

    def _check_table(self, name: str) -> Iterator[Finding]:
        damaged = damaged_file(self.catalog, name, manifests=SAMPLE, data=False)
        if damaged is not None:
            if name not in self.logs:  # their own check reports these, and can repair them
                yield Finding(TABLES, "error", damaged.problem, damaged.remedy)
            return
        table = iceberg.load(self.catalog, name)

        required: Mapping[str, str] = {}
        if name in self.targets:
            required = {iceberg.WAP_ENABLED: "true"}
        elif name in (*self.logs, QUARANTINE):
            required = LOG_PROPERTIES
        properties = table.metadata.properties
        wrong = {key: value for key, value in required.items() if properties.get(key, "").lower() != value}
        if wrong:
            as_text = ", ".join(f"{key}={value}" for key, value in wrong.items())
            text = f"{name} lacks the properties {as_text}."
            if iceberg.WAP_ENABLED in wrong:
                text = write_audit_publish_disabled(name).problem
            repair = Repair(f"sets {as_text} of {name}", partial(iceberg.set_properties, self.catalog, name, wrong))
            yield Finding(TABLES, "error", text, f"Run `lake doctor --repair`, which {repair.what}.", repair)

        try:
            iceberg.complete_through(table, name)
        except InvalidHourKey as invalid:
            offered = None
            if self.references is not None:
                hour = self.references.complete_through(name)
                what = f"removes complete-through of {name}, which no session has recorded"
                if hour is not None:
                    what = f"sets complete-through of {name} to {hour_key(hour)}, as sessions have recorded"
                recorded = iceberg.complete_through_property(hour)
                offered = Repair(what, partial(iceberg.set_properties, self.catalog, name, recorded))
            yield Finding(TABLES, "error", invalid.problem, invalid.remedy, offered)

        raw = self.pipeline.raw_table(name) if self.pipeline else None
        if raw is not None and raw.exists_already:
            try:
                existing = load_raw(self.catalog, raw)
                check_files(existing, name, publish.main_id(existing))
            except SourceError as unreadable:
                yield Finding(TABLES, "error", unreadable.problem, unreadable.remedy)

        declared = self.columns.get(name)
        if declared is not None:
            for each in differences(declared, table.schema()):
                if declared.stops(each):
                    yield Finding(TABLES, "error", each.text, remedy_of(each))

        former = former_tables(table)
        if not former:
            return
        lost = find_lost(name, table.location(), self.catalog.properties)
        if not table.metadata.snapshots and lost.location and self._log_was_started_again():
            text = (
                f"{name} is empty, but its folder holds a former table with rows, and the session log is empty, too: "
            )
            text += "the catalog was lost, and tables were created anew."
            repair = Repair(f"registers the former {name} in place of the empty one", partial(self._restore, lost))
            remedy = f"Run `lake doctor --repair`, which {repair.what}."
            yield Finding(TABLES, "error", text, remedy, repair, (f"{name} from {lost.location}",))
        else:
            text = f"The folder of {name} also holds a former table, so maintenance removes no orphans from it."
            files = ", ".join(sorted(former.values()))
            yield Finding(TABLES, "warning", text, f"If that table is not needed, delete its metadata: {files}.")

    def _log_was_started_again(self) -> bool:
        """Whether the session log is empty over a former one: somebody who drops a table does not drop the log too."""
        name, _ = self.logs
        if name not in self.present:
            return False
        log = iceberg.load(self.catalog, name)
        is_empty = not log.metadata.snapshots and STARTED_AGAIN not in log.metadata.properties
        return is_empty and bool(former_tables(log))

    def _restore(self, lost: LostTable) -> None:
        if not iceberg.load(self.catalog, lost.name).metadata.snapshots:  # nobody has written to it meanwhile
            self.catalog.drop_table(lost.name)
            self._register([lost])

    # The session log

    def check_log(self) -> Iterator[Finding]:
        """Yield the damaged files of the log. All files are read, because each may be the newest of a process."""
        sound = True
        for name in self.logs:
            damaged = damaged_file(self.catalog, name) if name in self.present else None
            if damaged is None:
                continue
            sound = False
            what = f"starts {name} again and forgets all logged sessions: targets keep their state in their tables"
            if damaged.partition is not None:
                what = f"forgets the logged sessions of {damaged.partition}: the target keeps its state in its table"
            error = TableDamaged(name, damaged.file, damaged.cause, repair=what)
            yield Finding(LOG, "error", error.problem, error.remedy, Repair(what, partial(self._forget, name, damaged)))
        if sound:
            yield Finding(LOG, "ok", f"{' and '.join(self.logs)} can be read.")

    def _forget(self, name: str, damaged: TableDamaged) -> None:
        """Forget the process of a damaged data file, or all processes if another file of the log table is damaged.

        Whole files go, by metadata alone, and stay in the folder, so that they can be restored. The damaged table comes
        last: if a repair dies before it, the log still cannot be read, and the repair is made again.
        """
        process = damaged.partition
        rows = AlwaysTrue() if process is None else EqualTo("process_name", process)  # type: ignore[call-arg, arg-type]
        for log in sorted(self.logs, key=lambda each: each == name):
            if process is None and damaged_file(self.catalog, log, data=False) is not None:
                self.catalog.drop_table(log)
                create_tables(self.catalog)
                iceberg.set_properties(self.catalog, log, {STARTED_AGAIN: "true"})
                continue
            for attempt in iceberg.retrying():
                with attempt:
                    iceberg.load(self.catalog, log).delete(rows)

    def check_watermarks(self) -> Iterator[Finding]:
        """Yield the watermarks whose source or target is missing or was replaced."""
        assert self.references is not None
        found: dict[Finding, None] = {}
        for watermark in self.references.watermarks:
            process, source = watermark["process_name"], watermark["source"]
            level: Level = "error" if process in self.targets else "warning"
            if process not in self.present | self.targets:
                text = f"{self.logs[1]} has watermarks of {process}, but the catalog has no such table."
                remedy = f"Restore {process}. If it was removed on purpose, nothing is to be done."
                found[Finding(WATERMARKS, level, text, remedy)] = None
            if source not in self.present:
                text = f"{process} reads {source}, but the catalog has no such table."
                remedy = f"Restore {source}, or correct the declaration of {process}."
                found[Finding(WATERMARKS, level, text, remedy)] = None
            elif damaged_file(self.catalog, source, manifests=0, data=False) is None:
                uuid = str(iceberg.load(self.catalog, source).metadata.table_uuid)
                if uuid != watermark["table_uuid"]:
                    error = source_replaced(source, expected=watermark["table_uuid"], found=uuid)
                    found[Finding(WATERMARKS, "warning", f"{process}: {error.problem}", error.remedy)] = None
        yield from found
        if not found:
            yield Finding(WATERMARKS, "ok", f"{len(self.references.watermarks)} watermarks fit their tables.")

    # Targets

    def check_targets(self) -> Iterator[Finding]:
        """Yield what is wrong with targets."""
        if self.pipeline is None:
            return
        found = problems(Engine(self.catalog, self.pipeline, clock=self.clock))
        for problem in found:
            yield Finding(TARGETS, problem.level, problem.what, problem.remedy)
        well = len(self.targets - {problem.target for problem in found})
        if well:
            yield Finding(TARGETS, "ok", f"{well} of {len(self.targets)} targets are well.")

    def check_open_sessions(self) -> Iterator[Finding]:
        """Yield the sessions that other programs write. They block nobody, so none has to be ended."""
        opened = {name: State(name, table=table).opened for name, table in self.loaded_targets()}
        for name, session in opened.items():
            if session is not None:
                since = f"{datetime.fromisoformat(session['at']):%Y-%m-%d %H:%M} UTC"
                text = f"Session {session['plan']['session_id']} of {name} waits for an external job since {since}."
                yield Finding(OPEN_SESSIONS, "ok", text)
        if not any(opened.values()):
            yield Finding(OPEN_SESSIONS, "ok", "No session is open.")

    def check_leftovers(self) -> Iterator[Finding]:
        """Yield the targets with staged snapshots that can never be published."""
        left = {name: ids for name, table in self.loaded_targets() if (ids := _leftovers(table))}
        for name, ids in left.items():
            run = partial(expire, self.catalog, name, _leftovers)
            repair = Repair(f"expires {len(ids)} staged snapshots of {name}", run)
            text = f"{name} has {len(ids)} staged snapshots of ended sessions: {', '.join(map(str, ids))}."
            remedy = f"Maintenance expires them later; `lake doctor --repair` {repair.what}."
            yield Finding(LEFTOVERS, "warning", text, remedy, repair)
        if not left:
            yield Finding(LEFTOVERS, "ok", "No target has staged snapshots that no session needs.")


def _leftovers(table: Table) -> list[int]:
    """Return the staged snapshots of a target that can never be published: a session of a later number has ended.

    A snapshot of the next number may belong to a session that runs now, or to one that an audit has stopped, which
    people may inspect.
    """
    kept = {snapshot.snapshot_id for snapshot in publish.ancestors(table)}
    kept.update(ref.snapshot_id for ref in table.metadata.refs.values())
    ended = max((number_of(each) for each in table.metadata.snapshots if each.snapshot_id in kept), default=0)
    opened = State("", table=table).opened
    written_for = opened["plan"]["session_id"] if opened else None
    found = []
    for snapshot in table.metadata.snapshots:
        wap_id = publish.summary_of(snapshot).get(publish.WAP_ID)
        if wap_id is not None and snapshot.snapshot_id not in kept and wap_id.rpartition(".")[0] != written_for:
            found += [snapshot.snapshot_id] if number_of(snapshot) <= ended else []
    return found
