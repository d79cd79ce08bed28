"""The error tree, and an error as two lines. Each message states the problem and the remedy.

A class stands for what a caller does; functions in lower case make the errors of one class that have a fixed text.
May import nothing else of the project.

LakeError
├── ConfigurationError      an invalid declaration or setting
├── UsageError              an invalid argument of a command or request
├── ServiceError            a local service or one of its dependencies is not available
├── ErasureStopped          an erasure did not finish; the same call continues it
├── StoredStateError        stored state is lost or damaged; nothing was changed
│   ├── StoredByNewerVersion
│   └── TableDamaged
├── SourceError             a source cannot be read as declared; nothing was staged
│   ├── TableMissing
│   ├── InvalidHourKey
│   └── HistoryCut          all of the source is read anew
├── TargetError             a target cannot be published to
│   ├── PublishConflict     the session is staged again
│   ├── TargetRolledBack    a repair goes on
│   └── TargetGone          only a rebuild of all hours goes on
├── AuditFailed             hours are not published
├── BatchFailed             the attempt counts
├── MessagesLost            `accept` records what is lost; other topics go on
├── ChangesExpired          a reader starts again
├── CoordinationError       a turn cannot start or cannot continue
│   ├── LockNotFree
│   ├── TurnRefused
│   └── LockLost
├── LandingError            landing refuses a file; the manifest is unchanged, except that the file may be quarantined
│   ├── FilesDiffer
│   ├── FileDamaged
│   ├── ZoneMismatch
│   └── DiskFull
└── ServingError            serving refuses an operation; its `status` is that of the endpoint's answer
    ├── EntryEnded          there is no such entry, or it was reverted
    └── SegmentDamaged      a segment whose file is gone, or is not what was pushed
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


class LakeError(Exception):
    """Base of all errors of this project.

    Args:
        problem: What is wrong, with the value, as one sentence.
        remedy: What to do, as a sentence or a command.
    """

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(f"{problem}\n  → {remedy}")
        self.problem = problem
        self.remedy = remedy


class ConfigurationError(LakeError):
    """A declaration or a setting is invalid."""


class UsageError(LakeError):
    """A command or request has an invalid argument, or names something that does not exist."""


class ServiceError(LakeError):
    """A local service, or something that it needs, is not available."""


class ErasureStopped(LakeError):
    """An erasure did not finish. It stays recorded as requested."""


MAX_CHARACTERS = 300
"""Longest part of another program's message that is shown; the log has all of it."""

SHOWN_NAMES = 3
"""Names of a collection that are shown; of the others, their number."""


@dataclass(frozen=True)
class ErrorText:
    """What a person reads of an error.

    Attributes:
        problem: What is wrong and where, as one sentence.
        remedy: What to do, as a sentence or a command.
    """

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}\n  → {self.remedy}"


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that one, and so on."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


def text_of(error: BaseException) -> str:
    """Return the message of an error. An error of Java asks the JVM for its message, which may be gone: then the class
    of what that raised, and its message.
    """
    try:
        return str(error)
    except Exception as unreadable:  # of py4j, pyspark, or whatever the error asks
        return f"its text cannot be read: {type(unreadable).__module__}.{type(unreadable).__qualname__}: {unreadable!r}"


def chain_text(error: BaseException) -> str:
    """Return the classes and messages of an error and its causes, the error first."""
    lines = []
    for found in chain(error):
        kind = type(found)
        lines.append(f"{kind.__module__}.{kind.__qualname__}: {text_of(found)}")
    return "\n".join(lines)


def first_line(text: str) -> str:
    """Return the first line of a text that is not empty, without the full stop, cut to `MAX_CHARACTERS`."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if len(line) > MAX_CHARACTERS:
        return f"{line[:MAX_CHARACTERS]}…"
    return line.removesuffix(".")


def named(names: Iterable[str]) -> str:
    """Return the first names, and the number of further ones."""
    found = sorted(names)
    shown = ", ".join(found[:SHOWN_NAMES])
    more = len(found) - SHOWN_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def closest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that a name is probably meant to be, with or without its namespace; None if none is."""
    wanted = name.replace("/", ".").casefold()
    by_name = {each.casefold(): each for each in known}
    without = {each.rpartition(".")[2]: full for each, full in by_name.items()}
    for asked, names in ((wanted, by_name), (wanted.rpartition(".")[2], without)):
        for found in get_close_matches(asked, names, n=1):
            return names[found]
    return None


def suggestion(name: str, known: Collection[str]) -> str:
    """Return a remedy for an unknown name: the closest known one, and all of them."""
    if not known:
        return "There is none yet."
    names = ", ".join(known)
    near = closest(name, known)
    return f"Did you mean {near!r}? Otherwise name one of: {names}." if near else f"Name one of: {names}."


class StoredStateError(LakeError):
    """Stored state is lost or damaged. Nothing was changed."""


def catalog_lost(catalog: str, *, home: object, tables: Collection[str], former: str | None) -> StoredStateError:
    """A catalog has none of the tables of its home. New tables would be created over the files of the old ones.

    Args:
        catalog: The catalog's address, without a password.
        home: The data directory.
        tables: The tables that the home had.
        former: Address of the catalog that had them; None if it is not known.
    """
    moved = f" They were in the catalog {former}." if former not in (None, catalog) else ""
    return StoredStateError(
        f"The catalog {catalog} has no tables, but {home} had {named(tables)}.{moved}",
        remedy="Restore the catalog from a backup, or correct LAKE_CATALOG_URI. If it is lost, run `lake doctor`: "
        "it shows which tables `lake doctor --repair` can register again from their files. "
        "To start without these tables, use another LAKE_HOME.",
    )


class StoredByNewerVersion(StoredStateError):
    """A later version of lake-assets has written the state. This version may misread it, so it changes nothing.

    Args:
        what: The state, as the beginning of a sentence.
        found: Its format.
        readable: The newest format that this version reads.
        written_by: The version of the package that wrote it; None if the state does not say.
    """

    def __init__(self, what: str, *, found: object, readable: int, written_by: object = None) -> None:
        version = "the version of lake-assets that wrote it" if written_by is None else f"lake-assets {written_by}"
        super().__init__(
            f"{what} has format {found}, and this version reads formats up to {readable}.",
            remedy=f"Install {version} or a later one. This version can go on only with a backup of its own.",
        )


def backup_damaged(folder: object, file: str, cause: str) -> StoredStateError:
    """A backup is not what it was when it was made. Nothing was restored.

    Args:
        folder: The backup.
        file: The file of the backup that is wrong.
        cause: What is wrong with it, as the end of a sentence.
    """
    return StoredStateError(
        f"The backup {folder} is damaged: {file} {cause}.", remedy="Restore another backup; this one is not whole."
    )


class TableDamaged(StoredStateError):
    """A file of a table cannot be read.

    Args:
        table: The table.
        file: The path of the file.
        cause: Why it cannot be read, as the end of a sentence.
        repair: What `lake doctor --repair` does about it; None if it can do nothing.
        partition: First partition value of a data file: in a log table, the process. None for other files.
    """

    def __init__(
        self, table: str, file: str, cause: str, *, repair: str | None = None, partition: str | None = None
    ) -> None:
        remedy = f"Restore {file} from a backup of the warehouse"
        remedy += f", or run `lake doctor --repair`, which {repair}." if repair else "."
        super().__init__(f"{table} cannot be read, because its file {file} {cause}.", remedy=remedy)
        self.table = table
        self.file = file
        self.cause = cause
        self.partition = partition


class SourceError(LakeError):
    """A source cannot be read as declared. Nothing was staged."""


class TableMissing(SourceError):
    """The catalog does not have a declared table."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"Table {table} is not in the catalog.",
            remedy="Create it with `lake init`, or correct its name in the declaration.",
        )


def source_table_missing(table: str, *, known: Sequence[str]) -> SourceError:
    """The catalog does not have a table that the declaration says another program has created."""
    namespace = table.rpartition(".")[0]
    beside = f"{namespace} has: {', '.join(known)}." if known else f"There is no table in {namespace}."
    return SourceError(
        f"Table {table} is not in the catalog, and its RawTable declares no columns to create it with.",
        remedy=f"Correct its name, create it with the program that writes it, or declare columns=. {beside}",
    )


def time_column_unusable(
    table: str, column: str, *, found: str | None, timestamps: Sequence[str], names: str = "time_column"
) -> SourceError:
    """A table that another program has created cannot be read by its time column, or its `landed_column`."""
    what = f"has no column {column!r}" if found is None else f"has the column {column!r} as {found}"
    known = ", ".join(timestamps)
    return SourceError(
        f"{table} {what}; it is declared as {names}=, which must be a timestamp.",
        remedy=f"Name one of its timestamps as {names}=: {known}." if known else f"Add one to {table}.",
    )


def column_name_taken(table: str, column: str, *, in_sql: str, why: str) -> SourceError:
    """A table that another program has created has a column that cannot be read by its name."""
    return SourceError(
        f"{table} has the column {column!r}, which cannot be read: {why}.",
        remedy=f"Rename it: ALTER TABLE {in_sql} RENAME COLUMN `{column}` TO another_name.",
    )


def column_unreadable(table: str, column: str, *, why: str) -> SourceError:
    """A table that another program has created has a column that Spark cannot read, nor any other column beside it."""
    return SourceError(
        f"{table} has the column {column!r}: {why}.",
        remedy=f"Drop the column, or let {table} be written with it as text, such as 23:59:59.",
    )


def column_mismatch(table: str, column: str, *, expected: str, found: str | None, remedy: str = "") -> SourceError:
    """A table lacks a declared column, or has it with another type (`found`)."""
    state = f"has it as {found}" if found else "has no such column"
    return SourceError(
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


def invalid_complete_through(table: str, name: str, value: object) -> InvalidHourKey:
    """A table's property complete-through is not an hour key."""
    return InvalidHourKey(
        f"Property {name} of {table}",
        value,
        remedy=f"For a raw table, run `lake complete {table} HOUR --force`. `lake doctor --repair` sets it to the "
        "last hour that sessions have recorded, for targets, too.",
    )


def files_misread(table: str, path: str, what: str, *, files: int) -> SourceError:
    """Spark would read other rows from a data file than are in it."""
    others = " One more file is like it." if files == 2 else ""
    others = f" {files - 1:,} more files are like it." if files > 2 else others
    return SourceError(
        f"Spark does not read {path} of {table} rightly: {what}.{others}",
        remedy="Write the file again with the types of the table (times in microseconds), and let the program that "
        "added it replace it; or take it out of the table. pyiceberg's table.overwrite(table.scan().to_arrow()) "
        "writes all files again.",
    )


def rows_unread(table: str, *, read: int, least: int, path: str) -> SourceError:
    """Spark reads fewer rows of a table than its metadata contain."""
    return SourceError(
        f"Spark reads {read:,} of at least {least:,} rows of {table}, by the metadata of files such as {path}.",
        remedy="Nothing was staged. Compare a count by Spark with one by pyiceberg, and write the files again that "
        f"differ: if the session went on, it would delete rows that are in {table}.",
    )


class HistoryCut(SourceError):
    """What changed in a source since the watermark is not known: it is another table, or its snapshots have expired."""


def source_replaced(table: str, *, expected: str, found: str) -> HistoryCut:
    """The catalog now has another table under the name of a source."""
    return HistoryCut(
        f"{table} was replaced: its uuid is {found}, but previous sessions read the table with uuid {expected}.",
        remedy="The next session of each target that reads it reads all of it, and overwrites every hour. "
        "To prevent that, restore the previous table first.",
    )


def history_cut(table: str, snapshot_id: int) -> HistoryCut:
    """The watermark's snapshot is not an ancestor of the head and cannot be compared with it."""
    return HistoryCut(
        f"The history of {table} no longer contains snapshot {snapshot_id}, which the last session read up to.",
        remedy=f"The next session of each target that reads {table} reads all of it, and overwrites every hour.",
    )


class TargetError(LakeError):
    """A target cannot be published to."""


def write_audit_publish_disabled(table: str) -> TargetError:
    """The table property that makes staged writes possible is off."""
    return TargetError(
        f"{table} has write.wap.enabled off, so a staged write would go to main before its audits run.",
        remedy=f"ALTER TABLE lake.{table} SET TBLPROPERTIES ('write.wap.enabled'='true')",
    )


class PublishConflict(TargetError):
    """Another process changed a table, or the recorded state, after this one read it. Nothing was published."""


def main_moved(table: str, *, expected: int | None, found: int | None) -> PublishConflict:
    """Another writer moved main while a session was staged and audited."""
    return PublishConflict(
        f"main of {table} moved from snapshot {expected} to {found} while a session was running.",
        remedy="The session is staged and audited again. If this repeats, pause the other writer.",
    )


def state_moved(process: str, *, expected: object, found: object) -> PublishConflict:
    """Another run changed the recorded state after this one read it."""
    return PublishConflict(
        f"The state of {process} moved meanwhile: expected {expected}, found {found}.",
        remedy="Nothing to do: another run of the same process committed first, and this one changed nothing.",
    )


class TargetRolledBack(TargetError):
    """A target was rolled back to a snapshot before its last published one (`recorded`)."""

    def __init__(self, table: str, *, recorded: int) -> None:
        super().__init__(
            f"{table} was rolled back behind snapshot {recorded}, which its last session published.",
            remedy=f"Undo the rollback with CALL lake.system.set_current_snapshot('{table}', {recorded}), "
            f"or keep it and rebuild what is missing with `lake repair {table}`.",
        )


class TargetGone(TargetError):
    """The table that the sessions of a target have built was dropped or replaced."""


def target_dropped(table: str) -> TargetGone:
    """The table of a target that sessions have built is not in the catalog."""
    return TargetGone(
        f"{table} was dropped: the session log has sessions of it, but the catalog has no such table.",
        remedy=f"Restore the table, or create it again and rebuild all its hours: `lake rebuild {table} --reset`.",
    )


def target_replaced(table: str, *, expected: str | None, found: str) -> TargetGone:
    """The catalog now has another table under the name of a target.

    Args:
        table: The target.
        expected: The UUID of the table that sessions have built; None if an older version did not record it.
        found: The UUID of the present table.
    """
    built = f"the one with uuid {expected}" if expected else "another one, which had rows"
    return TargetGone(
        f"{table} was replaced: its uuid is {found}, but its sessions built {built}.",
        remedy=f"Restore the former table, or rebuild all hours of this one: `lake rebuild {table} --reset`.",
    )


class AuditFailed(LakeError):
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


def hours_held(table: str, held: str) -> LakeError:
    """Blocking audits failed in some hours. These are held back; the other hours were published."""
    return LakeError(
        f"{table}: {held}.",
        remedy="The other hours were published. Repair the source or the declaration: the next change of either "
        f"one rebuilds the held hours. To rebuild them now, run `lake rebuild {table} FROM TO`.",
    )


def not_as_planned(table: str, wap_id: str, what: str, *, write: str) -> LakeError:
    """Another program wrote something that does not match its session's plan. Nothing was published.

    Args:
        table: The target.
        wap_id: The WAP id of the write.
        what: How the write differs, as the end of a sentence.
        write: What the plan requires.
    """
    return LakeError(
        f"The write to {table} under WAP id {wap_id} does not match its plan: it {what}.",
        remedy=f"Run `lake session init {table}` for a new WAP id, then write {write}.",
    )


def function_failed(table: str, function: str, place: str, found: ErrorText) -> LakeError:
    """The function of a target failed. Nothing was staged.

    Args:
        table: The target.
        function: The name of its function.
        place: `file:line` where it failed.
        found: What failed, as the end of a sentence, and what to do.
    """
    return LakeError(f"{table}: in {function}() at {place}, {found.problem}.", remedy=found.remedy)


def rows_failed(table: str, place: str, hours: str, found: ErrorText) -> LakeError:
    """Spark failed to compute a row of a target. Nothing was published.

    Args:
        table: The target.
        place: `file:line` of the expression that failed.
        hours: The hours that the session builds, as text.
        found: What failed, as the end of a sentence, and what to do.
    """
    return LakeError(f"{table}: at {place}, in rows for {hours}, {found.problem}.", remedy=found.remedy)


def audit_broken(table: str, audit: str, found: ErrorText) -> LakeError:
    """An audit could not be evaluated. Nothing was published.

    Args:
        table: The target.
        audit: The name of the audit.
        found: What failed, as the end of a sentence, and what to do.
    """
    return LakeError(f"{table}: in the audit {audit}, {found.problem}.", remedy=found.remedy)


class MessagesLost(LakeError):
    """Kafka does not have the messages at which a stream or a zone has to continue. Nothing is open or landed."""


ACCEPT = "or run `lake engagement accept LAKE`: it records what is lost, and the stream goes on with what Kafka has."


def topic_replaced(topic: str, *, expected: str, found: str) -> MessagesLost:
    """Kafka now has another topic under this name (`found`), or the lake names another topic than before."""
    return MessagesLost(
        f"Topic {topic} was replaced: its id is {found}, but the checkpoint has offsets of the topic "
        f"with id {expected}.",
        remedy=f"Restore the previous topic, {ACCEPT}",
    )


def offsets_missing(topic: str, partition: int, *, expected: int, earliest: int, end: int) -> MessagesLost:
    """Kafka does not have the offset at which a stream has to continue.

    Args:
        topic: The topic.
        partition: Its partition.
        expected: The offset to continue at.
        earliest: The first offset that the partition holds.
        end: The offset after its last message.
    """
    return MessagesLost(
        f"The next offset of partition {partition} of {topic} is {expected}, "
        f"but Kafka holds offsets {earliest} to {end} (exclusive).",
        remedy=f"Increase the topic's retention. Restore the messages, {ACCEPT}",
    )


def counts_differ(table: str, version: int, *, feed: object, metrics: object) -> LakeError:
    """The change data feed and the metrics of a commit disagree."""
    return LakeError(
        f"Version {version} of {table} changed {feed} according to its change data feed, "
        f"but {metrics} according to its metrics.",
        remedy="Compare `table_changes_by_path` with DESCRIBE HISTORY. No notification was written.",
    )


class BatchFailed(LakeError):
    """An attempt at a batch failed, perhaps because of a message. The attempt is counted in the checkpoint.

    Args:
        trouble: What failed, as a clause, without values of messages.
    """

    def __init__(self, trouble: str, *, remedy: str) -> None:
        super().__init__(f"{trouble}.", remedy=remedy)


def checkpoint_lost(app_id: str, *, batch_id: int, seen: int) -> LakeError:
    """The checkpoint is older than the table. Delta would skip the batch without an error."""
    return LakeError(
        f"Batch {batch_id} of {app_id} cannot be written, because its table already holds batch {seen}: "
        "the checkpoint is older than the data.",
        remedy="Restore the newest version of the lake's checkpoint table. Never roll this table back.",
    )


class ChangesExpired(LakeError):
    """The change data feed no longer reaches back to a cursor. version: where the reader starts again."""

    def __init__(self, table: str, *, cursor: int, version: int) -> None:
        super().__init__(
            f"The changes of {table} after version {cursor} no longer exist: VACUUM or an erasure removed them.",
            remedy=f"Read the table as of version {version}, then continue with {version} as the cursor.",
        )
        self.version = version


_STOP_BATCH = "Stop this batch without another commit; the next turn repeats it from its checkpoint."


class CoordinationError(LakeError):
    """A turn cannot start or cannot continue."""


class LockNotFree(CoordinationError):
    """The lock was not acquired in time. No contender is left behind.

    Args:
        holder: The stream that holds it; None if it is not known.
        answers: Whether ZooKeeper answers.
    """

    def __init__(self, lock: str, *, seconds: float, stream: str, holder: str | None, answers: bool = True) -> None:
        held = f"{holder or 'an unknown process'} holds it" if answers else "ZooKeeper does not answer"
        super().__init__(
            f"{lock} was not free within {seconds:g} s: {stream} waits, and {held}.",
            remedy="Wait if the turn of the holder takes long; otherwise check whether the holder still works."
            if answers
            else "Check that ZooKeeper runs and has a quorum. The turn is tried again from its checkpoint.",
        )


class TurnRefused(CoordinationError):
    """It is not this stream's turn. The lock was released and nothing was registered."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(
            f"It is not the turn of {stream}: {reason}.",
            remedy="Run the other stream first, then try again. Dagster does both automatically.",
        )
        self.stream = stream
        self.reason = reason


def not_holder(stream: str, *, needs: str) -> CoordinationError:
    """A caller that does not hold the lock called a method for the holder. Nothing was written."""
    return CoordinationError(
        f"{stream} has not called {needs}.",
        remedy="Call lock(), register(), then do the work, then call done() and unlock().",
    )


class LockLost(CoordinationError):
    """The holder's ZooKeeper session ended or may have ended, so another process may hold the lock."""

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(f"{stream} has lost its lock: {why}.", remedy=_STOP_BATCH)


def claim_refused(resource: str, *, token: int, found: int) -> CoordinationError:
    """A later holder has claimed the guarded resource."""
    return CoordinationError(
        f"{resource} was claimed with token {found}, which is later than this turn's token {token}.",
        remedy=f"{_STOP_BATCH} If every turn is refused because ZooKeeper was replaced or lost its data, run "
        "`lake engagement reclaim LAKE`.",
    )


def registry_damaged(path: str, what: str) -> CoordinationError:
    """A node of the registry has content that the coordinator never writes. what: the content, as a sentence end."""
    return CoordinationError(
        f"The registry node {path} {what}.",
        remedy=f"Stop all streams, check in their checkpoints that none has an open batch, then delete {path}. "
        "The first stream can start after that.",
    )


class LandingError(LakeError):
    """Landing refuses a file. The manifest is unchanged, except that the file may be quarantined."""


def offsets_overlap(partition: int, offset: int, *, names: tuple[str, str]) -> LandingError:
    """Two files of one shard hold the same offset of a partition."""
    return LandingError(
        f"Offset {offset} of partition {partition} is in two files, {names[0]} and {names[1]}.",
        remedy="Remove the wrong file from the manifest: `lake landing quarantine discard`.",
    )


class FilesDiffer(LandingError):
    """A file does not hold the records of the other zone's file for the same offsets. It is quarantined."""

    def __init__(self, name: str, offsets: str, *, found: str, expected: str, zone: str) -> None:
        super().__init__(
            f"{name} ({offsets}) has the checksum {found}, but the file of zone {zone} has {expected}.",
            remedy="Find out which file is right. `lake landing quarantine release` accepts the quarantined file, "
            "`lake landing quarantine discard` removes it.",
        )


class FileDamaged(LandingError):
    """A file does not match its entry in the manifest. what: how, as the end of a sentence."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"{name} {what}.",
            remedy="Look the file up in the manifest again, because it may have been replaced. If not, run "
            "`lake landing repair`, which writes it again from the other zone.",
        )


def sums_disagree(operation: str, names: str, *, taken: str, given: str) -> LandingError:
    """An operation did not write the records that it read. No file was added."""
    return LandingError(
        f"The {operation} of {names} is wrong: expected {taken}, found {given.removesuffix('.')}.",
        remedy="The existing files are unchanged. Run `lake landing verify`, and report the operation as a bug.",
    )


class ZoneMismatch(LandingError):
    """The folder of a zone and the manifest do not belong together: one of them is gone, new or another one's."""


def topic_recreated(topic: str, *, expected: str, found: str) -> MessagesLost:
    """Kafka has another topic (`found`) under the name of one that landed (`expected`). Nothing of it is landed."""
    return MessagesLost(
        f"Topic {topic} was deleted and created again: its id is {found}, but files have landed from the topic "
        f"with the id {expected or 'that was not recorded'}.",
        remedy=f"Restore the former topic. Or run `lake landing accept {topic}`, which records what is lost: the "
        "zones then land the new topic from its first message on.",
    )


def offsets_gone(topic: str, partition: int, *, expected: int, earliest: int) -> MessagesLost:
    """Kafka has removed the offset at which a zone has to continue. `earliest` is the first one that it has."""
    return MessagesLost(
        f"The next offset of partition {partition} of {topic} is {expected}, but Kafka holds offsets from "
        f"{earliest} on only.",
        remedy=f"Restore the messages. Or run `lake landing accept {topic}`, which records what is lost: the zones "
        "then continue. Increase the retention.",
    )


def intake_incomplete(topic: str, partition: int, span: tuple[int, int], *, given: int, kept: int) -> LandingError:
    """Landing was about to add files that do not hold every message that Kafka gave. Nothing was added."""
    first, last = span
    return LandingError(
        f"Kafka gives {given:,} messages of partition {partition} of {topic} from offset {first} to {last}, "
        f"but {kept:,} records and dead letters were to be landed.",
        remedy="Nothing was added. Start the zone again; if it stops again, report landing as a bug.",
    )


class DiskFull(LandingError):
    """A file or the manifest could not be written because there is no space left."""

    def __init__(self, place: object, reason: str) -> None:
        super().__init__(
            f"{place} cannot be written: {reason}.",
            remedy="Free space or enlarge the quota, then run the command again. It continues where it stopped.",
        )


class ServingError(LakeError):
    """Serving refuses an operation, which has changed nothing unless the error says otherwise.

    Attributes:
        status: HTTP status code of the endpoint's answer.
    """

    status = 503

    def __init__(self, problem: str, *, remedy: str, status: int | None = None) -> None:
        super().__init__(problem, remedy=remedy)
        self.status = status or self.status


REFUSED = 500
"""As a controller of Pinot answers what its lineage does not allow."""

MAX_ANSWER_CHARACTERS = 500
"""Of another service's answer, in a message."""


class EntryEnded(ServingError):
    """The lineage has no such entry, or it was reverted."""

    status = REFUSED


def replace_refused(problem: str, *, remedy: str) -> ServingError:
    """Return the error of an operation that the lineage does not allow."""
    return ServingError(problem, remedy=remedy, status=REFUSED)


def target_taken(table: str, segments: Iterable[str], why: str) -> ServingError:
    """Return the error of a target whose name is in use. why: a clause."""
    return ServingError(
        f"{named(segments)} of {table} cannot be pushed: {why}.",
        remedy="Each name can be used once: choose another.",
        status=409,
    )


def quota_exceeded(table: str, *, stored: int, new: int, quota: int) -> ServingError:
    """Return the error of a push with which a table would exceed its quota. All in bytes."""
    return ServingError(
        f"{table} may take {quota:,} bytes; it takes {stored:,}, and the push adds {new:,}.",
        remedy="Raise its quota (or LAKE_SERVING_QUOTA_MB), keep fewer snapshots (LAKE_SERVING_SNAPSHOTS), or push "
        "less.",
        status=403,
    )


def pinot_refused(call: str, answer: str) -> ServingError:
    """The controller of a Pinot cluster refused a call, or did not answer. A push that this stopped was reverted."""
    words = " ".join(answer.split())
    return ServingError(
        f"Pinot did not carry out {call}: {words[:MAX_ANSWER_CHARACTERS]}.",
        remedy="See the controller's log. If an earlier push has died, push with --force; "
        "otherwise correct what the answer says, or LAKE_PINOT_CONTROLLER.",
    )


def lineage_damaged(path: str, what: str) -> ServingError:
    """Return the error of a node that contains what serving cannot have written. what: a clause."""
    return ServingError(
        f"The node {path} {what}.", remedy="Stop all pushes, and restore the node from a backup of ZooKeeper."
    )


def lineage_busy(tables: Iterable[str], tries: int) -> ServingError:
    """Return the error of an operation during which other clients kept writing the lineage."""
    return ServingError(
        f"The lineage of {named(tables)} was changed by other clients {tries} times in a row.", remedy="Try again."
    )


class SegmentDamaged(ServingError):
    """The file of a segment is gone, or is not what was pushed."""


def upload_damaged(table: str, segment: str, what: str) -> SegmentDamaged:
    """Return the error of a segment that was read back and differs from the pushed one."""
    return SegmentDamaged(
        f"{segment} of {table} is not what was pushed: {what}.",
        remedy="Push again. If it happens again, check the disk.",
    )


def segment_damaged(table: str, segment: str) -> SegmentDamaged:
    """Return the error of a segment that a query needs. Where it is stays unsaid: the endpoint answers this."""
    return SegmentDamaged(
        f"The file of segment {segment} of {table} is gone, or damaged: it is not what was pushed.",
        remedy=f"`lake serving verify {table} --repair` restores it from its source if that has not changed since. "
        f"Otherwise push {table} again, or revert to an earlier push: `lake serving lineage {table}`.",
    )


def not_served(table: str, served: Iterable[str]) -> ServingError:
    """Return the error of a table that is not served, or of which readers see nothing."""
    return ServingError(f"No table {table!r} is served.", remedy=suggestion(table, sorted(served)), status=404)


def query_refused(problem: str, *, remedy: str) -> ServingError:
    """Return the error of a query that is not allowed, or cannot be parsed. It has no result."""
    return ServingError(problem, remedy=remedy, status=400)


def query_stopped(problem: str, *, remedy: str) -> ServingError:
    """Return the error of a query that exceeded its limits, or that DuckDB could not finish. It has no result."""
    return ServingError(problem, remedy=remedy, status=422)
