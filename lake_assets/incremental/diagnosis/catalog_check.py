"""The check of the catalog: it opens, and has every table that the home had."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from lake_assets.base.findings import Finding, Repair
from lake_assets.connections import remembered_tables
from lake_assets.connections.catalog import is_blank, sqlite_file
from lake_assets.connections.clients.catalog_properties import pyiceberg_properties
from lake_assets.connections.clients.postgresql import safe_address
from lake_assets.errors import CatalogLost, ServiceError
from lake_assets.incremental.diagnosis.context import Context
from lake_assets.incremental.diagnosis.lost_tables import LostTable, LostTables, locations_of, lost_table, register
from lake_assets.incremental.maintenance.snapshot_references import SnapshotReferences

CHECK = "catalog"
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
        yield Finding(CHECK, "ok", f"{safe_address(context.settings.catalog_address)} has {len(present)} tables.")


def _not_created(context: Context, known: Collection[str]) -> Iterator[Finding]:
    new = sorted(context.declared - context.present - set(known))
    if new:
        yield Finding(CHECK, "warning", f"Declared tables do not exist yet: {', '.join(new)}.", "Run `lake init`.")


def _registrable(context: Context, lost: LostTables) -> Finding:
    """Return the finding of tables that can be registered again, once the others that have files can, too."""
    text = _lost_text(context, [table.name for table in lost.found])
    if not lost.can_be_registered:
        remedy = f"{_RESTORE} Or repair the other lost tables first: all are registered again, or none."
        return Finding(CHECK, "error", text, remedy, details=lost.steps)
    repair = Repair(f"registers {lost.named} again", lambda: register(context.settings, lost.found))
    remedy = f"{_RESTORE} Or run `lake doctor --repair`, which {repair.what}."
    return Finding(CHECK, "error", text, remedy, repair, lost.steps)


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
        return Finding(CHECK, "error", text, lost.choice.remedy)
    remembered = remembered_tables.read(context.settings.home)
    if remembered is None or lost.name not in remembered.tables:
        return Finding(CHECK, "warning", text, lost.choice.remedy)
    repair = Repair(
        f"forgets {lost.name}, which has no files and no pipeline declares",
        lambda: remembered_tables.forget(context.settings.home, [lost.name]),
    )
    remedy = f"{lost.choice.remedy} If it was dropped, `lake doctor --repair` {repair.what}."
    return Finding(CHECK, "warning", text, remedy, repair)


def _never_initialised(context: Context) -> Finding:
    return Finding(
        CHECK,
        "error",
        f"{context.settings.home} was never initialised: its catalog has no tables.",
        "Run `lake init`, or set LAKE_HOME to the directory that is meant.",
    )


def _unreadable(context: Context, error: ServiceError, had: Mapping[str, str]) -> Finding:
    """Return the finding of a catalog that cannot be opened; an SQLite file that is damaged can be replaced."""
    if not _is_damaged_file(context, error):  # the files of its tables may be as far away as the catalog
        return Finding(CHECK, "error", error.problem, error.remedy)
    properties = pyiceberg_properties(context.settings, chooses_io=False)
    lost = LostTables([lost_table(name, location, properties) for name, location in sorted(had.items())])
    if not lost.can_be_registered:
        return Finding(CHECK, "error", error.problem, error.remedy)
    file = sqlite_file(context.settings.catalog_address)
    repair = Repair(
        f"moves {file.name} away and registers {lost.named} again",
        lambda: _replace(context, file, lost.found),
    )
    remedy = f"{_RESTORE} Or run `lake doctor --repair`, which {repair.what}."
    return Finding(CHECK, "error", error.problem, remedy, repair, lost.steps)


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
