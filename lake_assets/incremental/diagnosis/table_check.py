"""The check of tables: files that can be read, properties that sessions need, and folders that hold no other table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from pyiceberg.table import Table

from lake_assets.base.findings import Finding, Repair
from lake_assets.base.hours import hour_key
from lake_assets.errors import InvalidCompleteThrough, SourceError, TableDamaged, WriteAuditPublishDisabled
from lake_assets.incremental.diagnosis.context import Context
from lake_assets.incremental.diagnosis.forget import STARTED_AGAIN
from lake_assets.incremental.diagnosis.lost_tables import LostTable, lost_table, register
from lake_assets.incremental.execution.log import LOG_PROPERTIES
from lake_assets.incremental.maintenance.cleaning import former_tables
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.damaged_files import damaged_file
from lake_assets.incremental.metadata.declared_columns import differences, remedy_of
from lake_assets.incremental.metadata.misread_files import check_head
from lake_assets.incremental.metadata.source_tables import load_existing
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK, QUARANTINE, SESSION

CHECK = "tables"
SAMPLE = 3
"""Number of manifests of each table that are read."""

_LOGS = (SESSION, HIGH_WATERMARK, QUARANTINE)


def check_tables(context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the tables of the catalog."""
    sound = 0
    for name in sorted(context.present):
        found = list(_check_table(context, name))
        yield from found
        sound += not found
    if sound:
        yield Finding(CHECK, "ok", f"{sound} tables are sound: metadata, up to {SAMPLE} manifests, properties.")


def _check_table(context: Context, name: str) -> Iterator[Finding]:
    damaged = damaged_file(context.catalog, name, manifests=SAMPLE, data=False)
    if damaged is not None:
        if name not in (SESSION, HIGH_WATERMARK):  # the check of sessions reports these, and can repair them
            error = TableDamaged(name, damaged.path, damaged.cause)
            yield Finding(CHECK, "error", error.problem, error.remedy)
        return
    table = tables.load(context.catalog, name)
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
        yield Finding(CHECK, "error", error.problem, error.remedy)


def _check_columns(context: Context, name: str, table: Table) -> Iterator[Finding]:
    """Yield in which columns a table differs from its declaration so that sessions or landings stop."""
    declared = context.columns.get(name)
    if declared is None:
        return
    for each in differences(declared, table.schema()):
        if declared.stops(each):
            yield Finding(CHECK, "error", each.text, remedy_of(each))


def _former_table(context: Context, name: str, table: Table, files: Sequence[str]) -> Finding:
    """Return the finding of a folder that also holds a former table, which can be restored if a catalog was lost."""
    lost = lost_table(name, table.location(), context.catalog.properties)
    if _is_empty(table) and lost.choice.file and _log_was_started_again(context):
        text = f"{name} is empty, but its folder holds a former table with rows, and the session log is empty, too: "
        text += "the catalog was lost, and tables were created anew."
        repair = Repair(f"registers the former {name} in place of the empty one", partial(_restore, context, lost))
        step = f"{name} from {lost.metadata_location}"
        return Finding(CHECK, "error", text, f"Run `lake doctor --repair`, which {repair.what}.", repair, (step,))
    text = f"The folder of {name} also holds a former table, so maintenance removes no orphans from it."
    return Finding(CHECK, "warning", text, f"If that table is not needed, delete its metadata: {', '.join(files)}.")


def _log_was_started_again(context: Context) -> bool:
    """Whether the session log is empty over a former one: somebody who drops a table does not drop the log with it."""
    if SESSION not in context.present:
        return False
    log = tables.load(context.catalog, SESSION)
    on_purpose = STARTED_AGAIN in log.metadata.properties
    return _is_empty(log) and not on_purpose and bool(former_tables(log))


def _is_empty(table: Table) -> bool:
    return not table.metadata.snapshots


def _restore(context: Context, lost: LostTable) -> None:
    if _is_empty(tables.load(context.catalog, lost.name)):  # nobody has written to it meanwhile
        context.catalog.drop_table(lost.name)
        register(context.settings, [lost])


def _check_properties(context: Context, name: str, table: Table) -> Iterator[Finding]:
    required: Mapping[str, str] = {}
    if name in context.targets:
        required = {tables.WAP_ENABLED: "true"}
    elif name in _LOGS:
        required = LOG_PROPERTIES
    wrong = {}
    for key, value in required.items():
        if table.metadata.properties.get(key, "").lower() != value:
            wrong[key] = value
    if not wrong:
        return
    settings = ", ".join(f"{key}={value}" for key, value in wrong.items())
    text = f"{name} lacks the properties {settings}."
    if tables.WAP_ENABLED in wrong:
        text = WriteAuditPublishDisabled(name).problem
    repair = Repair(f"sets {settings} of {name}", lambda: _set_properties(context, name, wrong))
    yield Finding(CHECK, "error", text, f"Run `lake doctor --repair`, which {repair.what}.", repair)


def _check_complete_through(context: Context, name: str, table: Table) -> Iterator[Finding]:
    try:
        tables.complete_through(table, name)
    except InvalidCompleteThrough as error:
        references = context.references
        hour = references.complete_through(name) if references else None
        what = f"removes complete-through of {name}, which no session has recorded"
        if hour is not None:
            what = f"sets complete-through of {name} to {hour_key(hour)}, the last hour that sessions have recorded"
        repair = None
        if references is not None:
            repair = Repair(what, lambda: _set_complete_through(context, name, hour))
        yield Finding(CHECK, "error", error.problem, error.remedy, repair)


def _set_complete_through(context: Context, name: str, hour: int | None) -> None:
    if hour is not None:
        _set_properties(context, name, {tables.COMPLETE_THROUGH: hour_key(hour)})
        return
    for attempt in tables.retrying():
        with attempt, tables.load(context.catalog, name).transaction() as transaction:
            transaction.remove_properties(tables.COMPLETE_THROUGH)


def _set_properties(context: Context, name: str, properties: Mapping[str, str]) -> None:
    for attempt in tables.retrying():
        with attempt, tables.load(context.catalog, name).transaction() as transaction:
            transaction.set_properties(dict(properties))
