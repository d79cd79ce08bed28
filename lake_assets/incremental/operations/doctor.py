"""Which metadata file is the newest of a table that no catalog knows any more. Pure.

Every commit writes a metadata file, also one that the catalog then refuses. The files of commits that were made are
chained: each names its predecessors in its metadata log.

Tables that a home had and its catalog has not: which metadata file each can be registered from, and doing so.

Forgetting what a damaged file of the session log may have held.

Sessions may always be forgotten: the state of a target is in the target itself. Of a target that no session of this
version has built, the log has the state; forgotten, all its hours are rebuilt, and nothing is appended a second time.

What the checks of a home share: its settings, its pipeline and a clock.

The check of the catalog: it opens, and has every table that the home had.

The check for staged snapshots of targets that no session needs any more.

The check of tables: files that can be read, properties that sessions need, and folders that hold no other table.

The checks of the session log: its files, the tables that watermarks name, and open sessions.

All checks of catalog, tables and session log, in the order in which one needs the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.expressions import AlwaysTrue, EqualTo
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table

from lake_assets.base.findings import Check, Finding, Level, Repair, run_checks
from lake_assets.base.hours import hour_key
from lake_assets.connections import remembered_tables, table_folders
from lake_assets.connections.catalog import connect, is_blank, log_tables, remember_tables, sqlite_file, table_names
from lake_assets.connections.clients.catalog_properties import pyiceberg_properties
from lake_assets.connections.clients.postgresql import safe_address
from lake_assets.connections.clients.sql_catalog import one_look
from lake_assets.errors import (
    CatalogLost,
    InvalidCompleteThrough,
    ServiceError,
    SourceError,
    SourceReplaced,
    TableDamaged,
    WriteAuditPublishDisabled,
)
from lake_assets.incremental.declaration import Pipeline
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.columns import Declared, declared_columns, differences, load_existing, remedy_of
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.iceberg import (
    QUARANTINE,
    DamagedFile,
    damaged_file,
    high_watermark_table,
    session_table,
)
from lake_assets.incremental.engine.readable import check_head
from lake_assets.incremental.engine.session_log import LOG_PROPERTIES, create_tables
from lake_assets.incremental.engine.state import State, number_of
from lake_assets.incremental.operations.freshness import target_problems
from lake_assets.incremental.operations.maintain import (
    SnapshotReferences,
    engine_tables,
    former_tables,
    list_files,
    read_references,
)
from lake_assets.settings import Settings

_VERSION = re.compile(r"^v?(\d+)")


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
        found = _VERSION.match(self.name)
        return int(found[1]) if found else -1


@dataclass(frozen=True)
class Choice:
    """The newest file, or why none can be chosen.

    Attributes:
        file: Name of the newest metadata file; None if there is a problem.
        problem: Why there is none, as a sentence.
        remedy: What to do about the problem, as a sentence.
    """

    file: str | None = None
    problem: str = ""
    remedy: str = ""


def newest_metadata(files: Collection[MetadataFile]) -> Choice:
    """Return the newest metadata file of a folder.

    If the folder held several tables one after the other, the newest one with a snapshot is meant, or the newest one
    if none has a snapshot.
    """
    readable = [file for file in files if file.uuid is not None]
    if not readable:
        return _no_readable_file(files)
    newest = _newest_heads(_of_meant_table(readable))
    damaged = _damaged_since(files, newest[0].version)
    if damaged is not None:
        return Choice(
            problem=f"Its newest metadata file {damaged.name} is damaged.",
            remedy=f"Restore {damaged.name} from a backup, or move it away to use the version before it.",
        )
    return Choice(newest[0].name) if len(newest) == 1 else _ambiguous(newest)


def _of_meant_table(files: Sequence[MetadataFile]) -> list[MetadataFile]:
    meant = max(files, key=lambda file: (file.has_snapshots, file.updated_ms))
    return [file for file in files if file.uuid == meant.uuid]


def _damaged_since(files: Collection[MetadataFile], version: int) -> MetadataFile | None:
    """Return the damaged file with the highest version, from a version on; None if there is none."""
    damaged = [file for file in files if file.uuid is None and file.version >= version]
    return max(damaged, key=lambda file: file.version, default=None)


def _newest_heads(files: Sequence[MetadataFile]) -> list[MetadataFile]:
    """Return the files of the highest version that no other file names as its predecessor; at least one."""
    named: set[str] = set()
    for file in files:
        named |= file.predecessors
    heads = [file for file in files if file.name not in named] or list(files)
    highest = max(file.version for file in heads)
    return [file for file in heads if file.version == highest]


def _ambiguous(newest: Sequence[MetadataFile]) -> Choice:
    names = " and ".join(sorted(file.name for file in newest))
    return Choice(
        problem=f"Its metadata files {names} have the same version, and one of them was never committed.",
        remedy="Move the wrong one away. The right one has the rows of the last commit.",
    )


def _no_readable_file(files: Collection[MetadataFile]) -> Choice:
    if not files:
        return Choice(problem="Its folder has no metadata file.", remedy="Restore the folder from a backup.")
    names = ", ".join(sorted(file.name for file in files))
    return Choice(
        problem=f"None of its metadata files can be read: {names}.", remedy="Restore one of them from a backup."
    )


METADATA_SUFFIX = table_folders.METADATA_SUFFIX


@dataclass(frozen=True)
class LostTable:
    """A table that the catalog does not have.

    Attributes:
        name: The table.
        location: Its folder; None if nothing says where it was.
        choice: The metadata file to register it from, or why there is none.
        has_files: Whether its folder has metadata files.
    """

    name: str
    location: str | None
    choice: Choice
    has_files: bool

    @property
    def metadata_location(self) -> str:
        return f"{self.location}/metadata/{self.choice.file}"


@dataclass(frozen=True)
class LostTables:
    """All tables that the catalog does not have: they are registered again together, or none is."""

    tables: Sequence[LostTable]

    @property
    def found(self) -> list[LostTable]:
        """Those whose newest metadata file is found."""
        return [table for table in self.tables if table.choice.file]

    @property
    def not_found(self) -> list[LostTable]:
        """Those that cannot be registered."""
        return [table for table in self.tables if not table.choice.file]

    @property
    def can_be_registered(self) -> bool:
        """Whether a newest metadata file is found for every table that has files."""
        return bool(self.found) and not any(table.has_files for table in self.not_found)

    @property
    def named(self) -> str:
        """What would be registered: the table, or how many."""
        return self.found[0].name if len(self.found) == 1 else f"{len(self.found)} tables"

    @property
    def steps(self) -> tuple[str, ...]:
        """What would be registered, from which file."""
        return tuple(f"{table.name} from {table.metadata_location}" for table in self.found)


def locations_of(settings: Settings) -> dict[str, str]:
    """Return the tables that a home had, by its memory and by its warehouse: table → location."""
    found = {}
    for name, folder in table_folders.local_tables(settings.warehouse_address).items():
        if table_folders.has_snapshots(folder):
            found[name] = f"file://{folder}"
    remembered = remembered_tables.read(settings.home)
    return {**found, **(remembered.tables if remembered else {})}


def lost_table(name: str, location: str | None, properties: Mapping[str, str]) -> LostTable:
    """Return how a table can be registered again.

    Args:
        name: The table.
        location: Its folder; None if it is not known.
        properties: Properties of the catalog, for access to the files.
    """
    if location is None:
        unknown = Choice(problem="Nothing says where its files are.", remedy="Restore the catalog from a backup.")
        return LostTable(name, None, unknown, has_files=False)
    io = load_file_io(dict(properties), location)
    files = [_read(io, location, name) for name in _metadata_names(io, location)]
    return LostTable(name, location, newest_metadata(files), has_files=bool(files))


def register(settings: Settings, lost: Sequence[LostTable]) -> None:
    """Register tables in the catalog, each from its chosen metadata file."""
    catalog = connect(settings)
    for table in lost:
        catalog.create_namespace_if_not_exists(table.name.rpartition(".")[0])
        catalog.register_table(table.name, table.metadata_location)
    remember_tables(catalog, [table.name for table in lost], settings)


def _metadata_names(io: FileIO, location: str) -> Iterable[str]:
    for file in list_files(io, f"{location}/metadata"):
        if file.path.endswith(METADATA_SUFFIX):
            yield file.path.rpartition("/")[2]


def _read(io: FileIO, location: str, name: str) -> MetadataFile:
    try:
        metadata = FromInputFile.table_metadata(io.new_input(f"{location}/metadata/{name}"))
    except (OSError, EOFError, ValueError, ValidationError):
        return MetadataFile(name, None)
    return MetadataFile(
        name=name,
        uuid=str(metadata.table_uuid),
        updated_ms=metadata.last_updated_ms,
        has_snapshots=bool(metadata.snapshots),
        predecessors=frozenset(entry.metadata_file.rpartition("/")[2] for entry in metadata.metadata_log),
    )


STARTED_AGAIN = "lake.started-again"
"""Property of a log table that was created again on purpose: the former one in its folder is damaged."""


def forgotten_by(name: str, damaged: DamagedFile) -> str:
    """Return what `forget` does about a damaged file of a log table, in the third person."""
    if damaged.partition is not None:
        return f"forgets the logged sessions of {damaged.partition}: the target keeps its state, which is in its table"
    return f"starts {name} again and forgets all logged sessions: targets keep their state, which is in their tables"


def forget(catalog: Catalog, name: str, damaged: DamagedFile) -> None:
    """Forget the process of a damaged data file, or all processes if another file of the log table is damaged.

    The files stay, so that they can be restored. The damaged table comes last: if a repair dies before it, the log
    still cannot be read, and the repair is made again.
    """
    session, high_watermark = session_table(catalog), high_watermark_table(catalog)
    other = high_watermark if name == session else session
    if damaged.partition is not None:
        _delete(catalog, other, damaged.partition)
        _delete(catalog, name, damaged.partition)
        return
    _clear(catalog, other)
    _clear(catalog, name)


def _clear(catalog: Catalog, name: str) -> None:
    """Delete all rows of a log table; one whose metadata or manifests are damaged is created again."""
    if damaged_file(catalog, name, data=False) is None:
        _delete(catalog, name, None)
        return
    catalog.drop_table(name)
    create_tables(catalog)
    with iceberg.load(catalog, name).transaction() as transaction:
        transaction.set_properties({STARTED_AGAIN: "true"})


def _delete(catalog: Catalog, name: str, process: str | None) -> None:
    """Delete the rows of a process, or all. Whole files go, by metadata alone: a damaged one is not opened."""
    rows = AlwaysTrue() if process is None else EqualTo("process_name", process)  # type: ignore[call-arg, arg-type]
    for attempt in iceberg.retrying():
        with attempt:
            iceberg.load(catalog, name).delete(rows)


@dataclass(frozen=True)
class Context:
    """A home to be checked.

    Attributes:
        settings: Its settings.
        pipeline: Its pipeline; None if it cannot be loaded.
        clock: Returns the present moment.
    """

    settings: Settings
    pipeline: Pipeline | None
    clock: Callable[[], datetime]

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

    @property
    def logs(self) -> tuple[str, str]:
        """The two tables of the session log."""
        return self.settings.session_table, self.settings.high_watermark_table

    @property
    def targets(self) -> frozenset[str]:
        """The declared targets."""
        return frozenset(target.table for target in self.pipeline.targets) if self.pipeline else frozenset()

    @cached_property
    def columns(self) -> Mapping[str, Declared]:
        """Table → its declared columns."""
        return declared_columns(self.pipeline) if self.pipeline else {}

    @property
    def declared(self) -> frozenset[str]:
        """The tables that `lake init` creates."""
        raw = {raw.table for raw in self.pipeline.raw} if self.pipeline else set()
        return self.targets.union(raw, engine_tables(log_tables(self.settings)))


CATALOG_CHECK = "catalog"
_RESTORE = "Restore the catalog from a backup, or correct LAKE_CATALOG_URI."


def check_catalog(context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the catalog."""
    had = locations_of(context.settings)
    try:
        present = context.present
    except ServiceError as error:
        yield _unreadable(context, error, had)
        return
    known: dict[str, str | None] = {**dict.fromkeys(_named_by(context.references)), **had}
    lost = _lost(context, {name: known[name] for name in sorted(set(known) - present)})
    if not present and not lost.tables:
        yield _never_initialised(context)
        return
    if lost.found:
        yield _registrable(context, lost)
    for table in lost.not_found:
        yield _without_files(context, table)
    yield from _not_created(context, known)
    if not lost.tables:
        yield Finding(
            CATALOG_CHECK, "ok", f"{safe_address(context.settings.catalog_address)} has {len(present)} tables."
        )


def _not_created(context: Context, known: Collection[str]) -> Iterator[Finding]:
    new = sorted(context.declared - context.present - set(known))
    if new:
        yield Finding(
            CATALOG_CHECK, "warning", f"Declared tables do not exist yet: {', '.join(new)}.", "Run `lake init`."
        )


def _registrable(context: Context, lost: LostTables) -> Finding:
    """Return the finding of tables that can be registered again, once the others that have files can, too."""
    text = _lost_text(context, [table.name for table in lost.found])
    if not lost.can_be_registered:
        remedy = f"{_RESTORE} Or repair the other lost tables first: all are registered again, or none."
        return Finding(CATALOG_CHECK, "error", text, remedy, details=lost.steps)
    repair = Repair(f"registers {lost.named} again", lambda: register(context.settings, lost.found))
    remedy = f"{_RESTORE} Or run `lake doctor --repair`, which {repair.what}."
    return Finding(CATALOG_CHECK, "error", text, remedy, repair, lost.steps)


def _lost_text(context: Context, names: Sequence[str]) -> str:
    if context.present:
        return f"The catalog does not have {', '.join(names)}, which the home had."
    remembered = remembered_tables.read(context.settings.home)
    former = remembered.catalog if remembered else None
    address = safe_address(context.settings.catalog_address)
    return CatalogLost(address, home=context.settings.home, tables=names, former=former).problem


def _without_files(context: Context, lost: LostTable) -> Finding:
    text = f"The catalog does not have {lost.name}. {lost.choice.problem}"
    if lost.has_files or lost.name in context.declared:
        return Finding(CATALOG_CHECK, "error", text, lost.choice.remedy)
    remembered = remembered_tables.read(context.settings.home)
    if remembered is None or lost.name not in remembered.tables:
        return Finding(CATALOG_CHECK, "warning", text, lost.choice.remedy)
    repair = Repair(
        f"forgets {lost.name}, which has no files and no pipeline declares",
        lambda: remembered_tables.forget(context.settings.home, [lost.name]),
    )
    remedy = f"{lost.choice.remedy} If it was dropped, `lake doctor --repair` {repair.what}."
    return Finding(CATALOG_CHECK, "warning", text, remedy, repair)


def _never_initialised(context: Context) -> Finding:
    return Finding(
        CATALOG_CHECK,
        "error",
        f"{context.settings.home} was never initialised: its catalog has no tables.",
        "Run `lake init`, or set LAKE_HOME to the directory that is meant.",
    )


def _unreadable(context: Context, error: ServiceError, had: Mapping[str, str]) -> Finding:
    """Return the finding of a catalog that cannot be opened; an SQLite file that is damaged can be replaced."""
    if not _is_damaged_file(context, error):  # the files of its tables may be as far away as the catalog
        return Finding(CATALOG_CHECK, "error", error.problem, error.remedy)
    properties = pyiceberg_properties(context.settings, chooses_io=False)
    lost = LostTables([lost_table(name, location, properties) for name, location in sorted(had.items())])
    if not lost.can_be_registered:
        return Finding(CATALOG_CHECK, "error", error.problem, error.remedy)
    file = sqlite_file(context.settings.catalog_address)
    repair = Repair(
        f"moves {file.name} away and registers {lost.named} again",
        lambda: _replace(context, file, lost.found),
    )
    remedy = f"{_RESTORE} Or run `lake doctor --repair`, which {repair.what}."
    return Finding(CATALOG_CHECK, "error", error.problem, remedy, repair, lost.steps)


def _is_damaged_file(context: Context, error: ServiceError) -> bool:
    """Whether SQLite says that its file is damaged. Other failures, such as a lock or permissions, are no damage."""
    is_file = context.settings.catalog_address.startswith("sqlite")
    return is_file and ("not a database" in error.problem or "malformed" in error.problem)


def _replace(context: Context, file: Path, lost: Sequence[LostTable]) -> None:
    number = 1
    while (aside := file.with_name(f"{file.name}.damaged-{number}")).exists():
        number += 1
    for journal in file.parent.glob(f"{file.name}-*"):  # SQLite would apply it to the new file
        journal.replace(aside.with_name(f"{aside.name}{journal.name.removeprefix(file.name)}"))
    file.replace(aside)
    register(context.settings, lost)


def _lost(context: Context, locations: Mapping[str, str | None]) -> LostTables:
    if not locations:
        return LostTables([])
    own = pyiceberg_properties(context.settings, chooses_io=False)
    properties = own if is_blank(context.settings) else context.catalog.properties
    return LostTables([lost_table(name, location, properties) for name, location in locations.items()])


def _named_by(references: SnapshotReferences | None) -> set[str]:
    """Return the tables that watermarks name, as sources and as targets."""
    names: set[str] = set()
    for watermark in references.watermarks if references else ():
        names.update((watermark["source"], watermark["process_name"]))
    return names


LEFTOVER_CHECK = "leftovers"


def check_leftovers(context: Context) -> Iterator[Finding]:
    """Yield the targets with staged snapshots that were never published and that no session needs."""
    any_found = False
    loaded = {name: _load(context, name) for name in sorted(context.targets & context.present)}
    for name, table in loaded.items():
        ids = leftover_snapshots(table) if table else []
        if ids:
            any_found = True
            what = f"expires {len(ids)} staged snapshots of {name}"
            repair = Repair(what, partial(_expire, context, name))
            text = f"{name} has {len(ids)} staged snapshots of ended sessions: {', '.join(map(str, ids))}."
            remedy = f"Maintenance expires them later; `lake doctor --repair` {what}."
            yield Finding(LEFTOVER_CHECK, "warning", text, remedy, repair)
    if not any_found:
        yield Finding(LEFTOVER_CHECK, "ok", "No target has staged snapshots that no session needs.")


def leftover_snapshots(table: Table) -> list[int]:
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
        if wap_id is None or snapshot.snapshot_id in kept:
            continue
        if wap_id.rpartition(".")[0] != written_for and number_of(snapshot) <= ended:
            found.append(snapshot.snapshot_id)
    return found


def _load(context: Context, name: str) -> Table | None:
    try:
        return iceberg.load(context.catalog, name)
    except TableDamaged:  # the check of tables reports it
        return None


def _expire(context: Context, name: str) -> None:
    for attempt in iceberg.retrying():
        with attempt:
            table = iceberg.load(context.catalog, name)
            ids = leftover_snapshots(table)
            if ids:
                table.maintenance.expire_snapshots().by_ids(ids).commit()


TABLE_CHECK = "tables"
SAMPLE = 3
"""Number of manifests of each table that are read."""


def check_tables(context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the tables of the catalog."""
    sound = 0
    for name in sorted(context.present):
        found = list(_check_table(context, name))
        yield from found
        sound += not found
    if sound:
        yield Finding(TABLE_CHECK, "ok", f"{sound} tables are sound: metadata, up to {SAMPLE} manifests, properties.")


def _check_table(context: Context, name: str) -> Iterator[Finding]:
    damaged = damaged_file(context.catalog, name, manifests=SAMPLE, data=False)
    if damaged is not None:
        if name not in context.logs:  # the check of sessions reports these, and can repair them
            error = TableDamaged(name, damaged.path, damaged.cause)
            yield Finding(TABLE_CHECK, "error", error.problem, error.remedy)
        return
    table = iceberg.load(context.catalog, name)
    yield from _check_properties(context, name, table)
    yield from _check_complete_through(context, name, table)
    yield from _check_of_another_program(context, name)
    yield from _check_columns(context, name, table)
    former = former_tables(table)
    if former:
        yield _former_table(context, name, table, sorted(former.values()))


def _check_of_another_program(context: Context, name: str) -> Iterator[Finding]:
    """Yield why a table that another program has created cannot be read; its sessions would stop."""
    raw = context.pipeline.raw_table(name) if context.pipeline else None
    if raw is None or not raw.exists_already:
        return
    try:
        check_head(load_existing(context.catalog, raw), name)
    except SourceError as error:
        yield Finding(TABLE_CHECK, "error", error.problem, error.remedy)


def _check_columns(context: Context, name: str, table: Table) -> Iterator[Finding]:
    """Yield in which columns a table differs from its declaration so that sessions or landings stop."""
    declared = context.columns.get(name)
    if declared is None:
        return
    for each in differences(declared, table.schema()):
        if declared.stops(each):
            yield Finding(TABLE_CHECK, "error", each.text, remedy_of(each))


def _former_table(context: Context, name: str, table: Table, files: Sequence[str]) -> Finding:
    """Return the finding of a folder that also holds a former table, which can be restored if a catalog was lost."""
    lost = lost_table(name, table.location(), context.catalog.properties)
    if _is_empty(table) and lost.choice.file and _log_was_started_again(context):
        text = f"{name} is empty, but its folder holds a former table with rows, and the session log is empty, too: "
        text += "the catalog was lost, and tables were created anew."
        repair = Repair(f"registers the former {name} in place of the empty one", partial(_restore, context, lost))
        step = f"{name} from {lost.metadata_location}"
        return Finding(TABLE_CHECK, "error", text, f"Run `lake doctor --repair`, which {repair.what}.", repair, (step,))
    text = f"The folder of {name} also holds a former table, so maintenance removes no orphans from it."
    return Finding(
        TABLE_CHECK, "warning", text, f"If that table is not needed, delete its metadata: {', '.join(files)}."
    )


def _log_was_started_again(context: Context) -> bool:
    """Whether the session log is empty over a former one: somebody who drops a table does not drop the log with it."""
    name, _ = context.logs
    if name not in context.present:
        return False
    log = iceberg.load(context.catalog, name)
    on_purpose = STARTED_AGAIN in log.metadata.properties
    return _is_empty(log) and not on_purpose and bool(former_tables(log))


def _is_empty(table: Table) -> bool:
    return not table.metadata.snapshots


def _restore(context: Context, lost: LostTable) -> None:
    if _is_empty(iceberg.load(context.catalog, lost.name)):  # nobody has written to it meanwhile
        context.catalog.drop_table(lost.name)
        register(context.settings, [lost])


def _check_properties(context: Context, name: str, table: Table) -> Iterator[Finding]:
    required: Mapping[str, str] = {}
    if name in context.targets:
        required = {iceberg.WAP_ENABLED: "true"}
    elif name in (*context.logs, QUARANTINE):
        required = LOG_PROPERTIES
    wrong = {}
    for key, value in required.items():
        if table.metadata.properties.get(key, "").lower() != value:
            wrong[key] = value
    if not wrong:
        return
    settings = ", ".join(f"{key}={value}" for key, value in wrong.items())
    text = f"{name} lacks the properties {settings}."
    if iceberg.WAP_ENABLED in wrong:
        text = WriteAuditPublishDisabled(name).problem
    repair = Repair(f"sets {settings} of {name}", lambda: _set_properties(context, name, wrong))
    yield Finding(TABLE_CHECK, "error", text, f"Run `lake doctor --repair`, which {repair.what}.", repair)


def _check_complete_through(context: Context, name: str, table: Table) -> Iterator[Finding]:
    try:
        iceberg.complete_through(table, name)
    except InvalidCompleteThrough as error:
        references = context.references
        hour = references.complete_through(name) if references else None
        what = f"removes complete-through of {name}, which no session has recorded"
        if hour is not None:
            what = f"sets complete-through of {name} to {hour_key(hour)}, the last hour that sessions have recorded"
        repair = None
        if references is not None:
            repair = Repair(what, lambda: _set_complete_through(context, name, hour))
        yield Finding(TABLE_CHECK, "error", error.problem, error.remedy, repair)


def _set_complete_through(context: Context, name: str, hour: int | None) -> None:
    if hour is not None:
        _set_properties(context, name, {iceberg.COMPLETE_THROUGH: hour_key(hour)})
        return
    for attempt in iceberg.retrying():
        with attempt, iceberg.load(context.catalog, name).transaction() as transaction:
            transaction.remove_properties(iceberg.COMPLETE_THROUGH)


def _set_properties(context: Context, name: str, properties: Mapping[str, str]) -> None:
    for attempt in iceberg.retrying():
        with attempt, iceberg.load(context.catalog, name).transaction() as transaction:
            transaction.set_properties(dict(properties))


LOG, WATERMARKS, TARGETS, OPEN_SESSIONS = "session log", "watermarks", "targets", "open sessions"

Row = Mapping[str, Any]


def check_log(context: Context) -> Iterator[Finding]:
    """Yield the damaged files of the session log. All files are read, because each may be the newest of a process."""
    sound = True
    for name in context.logs:
        damaged = damaged_file(context.catalog, name) if name in context.present else None
        if damaged is not None:
            sound = False
            yield _damaged(context, name, damaged)
    if sound:
        yield Finding(LOG, "ok", f"{' and '.join(context.logs)} can be read.")


def check_watermarks(context: Context, references: SnapshotReferences) -> Iterator[Finding]:
    """Yield the watermarks whose source or target is missing or was replaced."""
    found: list[Finding] = []
    for watermark in references.watermarks:
        found += _check_watermark(context, watermark)
    yield from dict.fromkeys(found)
    if not found:
        yield Finding(WATERMARKS, "ok", f"{len(references.watermarks)} watermarks fit their tables.")


def check_targets(context: Context) -> Iterator[Finding]:
    """Yield the targets that are not as their sessions left them: dropped, replaced, rolled back."""
    if context.pipeline is None:
        return
    engine = Engine(context.catalog, context.pipeline, clock=context.clock)
    problems = target_problems(engine)
    for problem in problems:
        yield Finding(TARGETS, "error", problem.problem, problem.remedy)
    if not problems:
        yield Finding(TARGETS, "ok", f"{len(context.targets)} targets are as their sessions left them.")


def check_open_sessions(context: Context) -> Iterator[Finding]:
    """Yield the sessions that other programs write. They block nobody, so none has to be ended."""
    found = []
    for name in sorted(context.targets & context.present):
        opened = State(name, table=_load_or_none(context, name)).opened
        if opened is not None:
            since = datetime.fromisoformat(opened["at"])
            text = f"Session {opened['plan']['session_id']} of {name} waits for an external job since "
            found.append(Finding(OPEN_SESSIONS, "ok", f"{text}{since:%Y-%m-%d %H:%M} UTC."))
    yield from found
    if not found:
        yield Finding(OPEN_SESSIONS, "ok", "No session is open.")


def _load_or_none(context: Context, name: str) -> Table | None:
    try:
        return iceberg.load(context.catalog, name)
    except TableDamaged:  # the check of tables reports it
        return None


def _damaged(context: Context, name: str, damaged: DamagedFile) -> Finding:
    what = forgotten_by(name, damaged)
    error = TableDamaged(name, damaged.path, damaged.cause, repair=what)
    repair = Repair(what, lambda: forget(context.catalog, name, damaged))
    return Finding(LOG, "error", error.problem, error.remedy, repair)


def _check_watermark(context: Context, watermark: Row) -> Iterator[Finding]:
    process = watermark["process_name"]
    source = watermark["source"]
    level: Level = "error" if process in context.targets else "warning"
    if process not in context.present and process not in context.targets:
        text = f"{context.logs[1]} has watermarks of {process}, but the catalog has no such table."
        yield Finding(
            WATERMARKS, level, text, f"Restore {process}. If it was removed on purpose, nothing is to be done."
        )
    if source not in context.present:
        text = f"{process} reads {source}, but the catalog has no such table."
        yield Finding(WATERMARKS, level, text, f"Restore {source}, or correct the declaration of {process}.")
    elif damaged_file(context.catalog, source, manifests=0, data=False) is None:
        found = str(iceberg.load(context.catalog, source).metadata.table_uuid)
        if found != watermark["table_uuid"]:
            error = SourceReplaced(source, expected=watermark["table_uuid"], found=found)
            yield Finding(WATERMARKS, "warning", f"{process}: {error.problem}", error.remedy)


def diagnose_lake(
    settings: Settings,
    pipeline: Pipeline | None,
    *,
    clock: Callable[[], datetime],
) -> list[Finding]:
    """Check a home. Changes nothing, and raises nothing.

    Args:
        settings: The settings of the home.
        pipeline: Its pipeline; None if it cannot be loaded, so that no table counts as declared.
        clock: Returns the present moment.
    """
    context = Context(settings, pipeline, clock)
    found = run_checks([Check(CATALOG_CHECK, lambda: check_catalog(context))])
    if not _has_tables(context):
        return found
    checks = [
        Check(TABLE_CHECK, lambda: check_tables(context)),
        Check(LOG, lambda: check_log(context)),
    ]
    references = context.references
    if references is not None:
        checks += [
            Check(WATERMARKS, lambda: check_watermarks(context, references)),
            Check(TARGETS, lambda: check_targets(context)),
            Check(OPEN_SESSIONS, lambda: check_open_sessions(context)),
            Check(LEFTOVER_CHECK, lambda: check_leftovers(context)),
        ]
    with one_look(context.catalog):
        return found + run_checks(checks)


def _has_tables(context: Context) -> bool:
    """Return whether the catalog can be read and has tables. If not, its own check has said so."""
    try:
        return bool(context.present)
    except Exception:  # of SQLAlchemy, requests or the REST client, depending on the address
        return False
