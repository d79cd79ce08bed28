"""Errors of incremental tables: their sources, their targets and their sessions."""

from __future__ import annotations

from collections.abc import Sequence

from lake_assets.errors.base import LakeError
from lake_assets.errors.texts import ErrorText


class SourceError(LakeError):
    """A source cannot be read as declared. Nothing was staged."""


class TableMissing(SourceError):
    """The catalog does not have a declared table."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"Table {table} is not in the catalog.",
            remedy="Create it with `lake init`, or correct its name in the declaration.",
        )


class SourceTableMissing(TableMissing):
    """The catalog does not have a table that the declaration says another program has created."""

    def __init__(self, table: str, *, known: Sequence[str]) -> None:
        namespace = table.split(".")[0]
        beside = f"{namespace} has: {', '.join(known)}." if known else f"There is no table in {namespace}."
        SourceError.__init__(
            self,
            f"Table {table} is not in the catalog, and its RawTable declares no columns to create it with.",
            remedy=f"Correct its name, create it with the program that writes it, or declare columns=. {beside}",
        )


class TimeColumnUnusable(SourceError):
    """A table that another program has created cannot be read by its time column, or its `landed_column`."""

    def __init__(
        self, table: str, column: str, *, found: str | None, timestamps: Sequence[str], names: str = "time_column"
    ) -> None:
        what = f"has no column {column!r}" if found is None else f"has the column {column!r} as {found}"
        known = ", ".join(timestamps)
        super().__init__(
            f"{table} {what}; it is declared as {names}=, which must be a timestamp.",
            remedy=f"Name one of its timestamps as {names}=: {known}." if known else f"Add one to {table}.",
        )


class ColumnNameTaken(SourceError):
    """A table that another program has created has a column that cannot be read by its name."""

    def __init__(self, table: str, column: str, *, why: str) -> None:
        super().__init__(
            f"{table} has the column {column!r}, which cannot be read: {why}.",
            remedy=f"Rename it: ALTER TABLE lake.{table} RENAME COLUMN `{column}` TO another_name.",
        )


class ColumnUnreadable(SourceError):
    """A table that another program has created has a column that Spark cannot read, nor any other column beside it."""

    def __init__(self, table: str, column: str, *, why: str) -> None:
        super().__init__(
            f"{table} has the column {column!r}: {why}.",
            remedy=f"Drop the column, or let {table} be written with it as text, such as 23:59:59.",
        )


class ColumnMismatch(SourceError):
    """A table lacks a declared column, or has it with another type (`found`)."""

    def __init__(self, table: str, column: str, *, expected: str, found: str | None, remedy: str = "") -> None:
        state = f"has it as {found}" if found else "has no such column"
        super().__init__(
            f"{table} should have the column {column} ({expected}), but {state}.",
            remedy=remedy or f"Restore the column in {table}, or change the declaration that names it.",
        )


class InvalidHourKey(SourceError):
    """A text is not an hour key."""

    def __init__(
        self, where: str, value: object, *, remedy: str = "Write the hour in UTC, as YYYY-MM-DD-HH:00."
    ) -> None:
        super().__init__(
            f"{where} is {value!r}, which is not an hour key such as 2026-01-01-05:00.",
            remedy=remedy,
        )


class InvalidCompleteThrough(InvalidHourKey):
    """A table's property complete-through is not an hour key."""

    def __init__(self, table: str, name: str, value: object) -> None:
        super().__init__(
            f"Property {name} of {table}",
            value,
            remedy=f"For a raw table, run `lake complete {table} HOUR --force`. `lake doctor --repair` sets it to the "
            "last hour that sessions have recorded, for targets, too.",
        )


class FilesMisread(SourceError):
    """Spark would read other rows from a data file than are in it."""

    def __init__(self, table: str, path: str, what: str, *, files: int) -> None:
        others = " One more file is like it." if files == 2 else ""
        others = f" {files - 1:,} more files are like it." if files > 2 else others
        super().__init__(
            f"Spark does not read {path} of {table} rightly: {what}.{others}",
            remedy="Write the file again with the types of the table (times in microseconds), and let the program that "
            "added it replace it; or take it out of the table. pyiceberg's table.overwrite(table.scan().to_arrow()) "
            "writes all files again.",
        )


class RowsUnread(SourceError):
    """Spark reads fewer rows of a table than its metadata contain."""

    def __init__(self, table: str, *, read: int, least: int, path: str) -> None:
        super().__init__(
            f"Spark reads {read:,} of at least {least:,} rows of {table}, by the metadata of files such as {path}.",
            remedy="Nothing was staged. Compare a count by Spark with one by pyiceberg, and write the files again that "
            f"differ: if the session went on, it would delete rows that are in {table}.",
        )


class SourceReplaced(SourceError):
    """The catalog now has another table under the name of a source."""

    def __init__(self, table: str, *, expected: str, found: str) -> None:
        super().__init__(
            f"{table} was replaced: its uuid is {found}, but previous sessions read the table with uuid {expected}.",
            remedy="The next session of each target that reads it reads all of it, and overwrites every hour. "
            "To prevent that, restore the previous table first.",
        )


class HistoryCut(SourceError):
    """The watermark's snapshot is not an ancestor of the head and cannot be compared with it."""

    def __init__(self, table: str, snapshot_id: int) -> None:
        super().__init__(
            f"The history of {table} no longer contains snapshot {snapshot_id}, which the last session read up to.",
            remedy=f"The next session of each target that reads {table} reads all of it, and overwrites every hour.",
        )


class TargetError(LakeError):
    """A target cannot be published to."""


class WriteAuditPublishDisabled(TargetError):
    """The table property that makes staged writes possible is off."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} has write.wap.enabled off, so a staged write would go to main before its audits run.",
            remedy=f"ALTER TABLE lake.{table} SET TBLPROPERTIES ('write.wap.enabled'='true')",
        )


class TargetColumnsDiffer(TargetError):
    """The table of a target does not have the columns that the target is declared with. Nothing was staged."""


class PublishConflict(TargetError):
    """Another writer moved main while a session was staged and audited."""

    def __init__(self, table: str, *, expected: int | None, found: int | None) -> None:
        super().__init__(
            f"main of {table} moved from snapshot {expected} to {found} while a session was running.",
            remedy="The session is staged and audited again. If this repeats, pause the other writer.",
        )
        self.expected = expected
        self.found = found


class TargetRolledBack(TargetError):
    """A target was rolled back to a snapshot before its last published one (`recorded`)."""

    def __init__(self, table: str, *, recorded: int) -> None:
        super().__init__(
            f"{table} was rolled back behind snapshot {recorded}, which its last session published.",
            remedy=f"Undo the rollback with CALL lake.system.set_current_snapshot('{table}', {recorded}), "
            f"or keep it and rebuild what is missing with `lake repair {table}`.",
        )


class TargetDropped(TargetError):
    """The table of a target that sessions have built is not in the catalog."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} was dropped: the session log has sessions of it, but the catalog has no such table.",
            remedy=f"Restore the table, or create it again and rebuild all its hours: `lake rebuild {table} --reset`.",
        )


class TargetReplaced(TargetError):
    """The catalog now has another table under the name of a target.

    Args:
        table: The target.
        expected: The UUID of the table that sessions have built; None if an older version did not record it.
        found: The UUID of the present table.
    """

    def __init__(self, table: str, *, expected: str | None, found: str) -> None:
        built = f"the one with uuid {expected}" if expected else "another one, which had rows"
        super().__init__(
            f"{table} was replaced: its uuid is {found}, but its sessions built {built}.",
            remedy=f"Restore the former table, or rebuild all hours of this one: `lake rebuild {table} --reset`.",
        )


class SessionError(LakeError):
    """A session stopped."""


class AuditFailed(SessionError):
    """A blocking audit failed. Nothing was published and the watermark did not move.

    Args:
        table: The target.
        failures: Audit name → what it found.
    """

    def __init__(self, table: str, failures: dict[str, str]) -> None:
        lines = "; ".join(f"{name}: {what}" for name, what in failures.items())
        super().__init__(
            f"{table} was not published: {lines}.",
            remedy="Repair the source or the declaration. The next change of either one starts a new session.",
        )
        self.failures = failures
        self.report: object = None
        """The `SessionReport` of the stopped session, with its audits; set by the engine."""


class HoursHeld(SessionError):
    """Blocking audits failed in some hours. These are held back; the other hours were published."""

    def __init__(self, table: str, held: str) -> None:
        super().__init__(
            f"{table}: {held}.",
            remedy="The other hours were published. Repair the source or the declaration: the next change of either "
            f"one rebuilds the held hours. To rebuild them now, run `lake rebuild {table} FROM TO`.",
        )


class StateMoved(SessionError):
    """Another run changed the recorded state after this one read it."""

    def __init__(self, process: str, *, expected: object, found: object) -> None:
        super().__init__(
            f"The state of {process} moved meanwhile: expected {expected}, found {found}.",
            remedy="Nothing to do: another run of the same process committed first, and this one changed nothing.",
        )


class NotAsPlanned(SessionError):
    """Another program wrote something that does not match its session's plan. Nothing was published.

    Args:
        table: The target.
        wap_id: The WAP id of the write.
        what: How the write differs, as the end of a sentence.
        write: What the plan requires.
    """

    def __init__(self, table: str, wap_id: str, what: str, *, write: str) -> None:
        super().__init__(
            f"The write to {table} under WAP id {wap_id} does not match its plan: it {what}.",
            remedy=f"Run `lake session init {table}` for a new WAP id, then write {write}.",
        )


class FunctionFailed(SessionError):
    """The function of a target failed. Nothing was staged.

    Args:
        table: The target.
        function: The name of its function.
        place: `file:line` where it failed.
        found: What failed, as the end of a sentence, and what to do.
    """

    def __init__(self, table: str, function: str, place: str, found: ErrorText) -> None:
        super().__init__(f"{table}: in {function}() at {place}, {found.problem}.", remedy=found.remedy)


class RowsFailed(SessionError):
    """Spark failed to compute a row of a target. Nothing was published.

    Args:
        table: The target.
        place: `file:line` of the expression that failed.
        hours: The hours that the session builds, as text.
        found: What failed, as the end of a sentence, and what to do.
    """

    def __init__(self, table: str, place: str, hours: str, found: ErrorText) -> None:
        super().__init__(f"{table}: at {place}, in rows for {hours}, {found.problem}.", remedy=found.remedy)


class AuditBroken(SessionError):
    """An audit could not be evaluated. Nothing was published.

    Args:
        table: The target.
        audit: The name of the audit.
        found: What failed, as the end of a sentence, and what to do.
    """

    def __init__(self, table: str, audit: str, found: ErrorText) -> None:
        super().__init__(f"{table}: in the audit {audit}, {found.problem}.", remedy=found.remedy)
