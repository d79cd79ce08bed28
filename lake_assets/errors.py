"""One error tree. Every message names the culprit and the remedy.

LakeError
├── ConfigurationError      a declaration or a setting that cannot work
├── UsageError              a command or a request that names something that is not there
├── SourceError             a source that cannot be read as declared; nothing was staged
│   ├── TableMissing
│   ├── ColumnMismatch
│   ├── InvalidHourKey
│   ├── SourceReplaced
│   └── HistoryCut
├── TargetError             a target that cannot be published to
│   ├── WriteAuditPublishDisabled
│   ├── PublishConflict
│   └── TargetRolledBack
├── SessionError            a session that could not go on
│   ├── AuditFailed
│   ├── HoursHeld
│   └── StateMoved
├── StreamError             a stream of an engagement lake that could not go on
│   ├── TopicReplaced
│   ├── OffsetsMissing
│   ├── CountsDiffer
│   └── CheckpointLost
├── ErasureStopped          an erasure that could not be finished; called again, it goes on
├── CoordinationError       a turn that cannot begin, or cannot go on
│   ├── LockNotFree
│   ├── TurnRefused
│   ├── NotHolder
│   ├── LockLost
│   ├── ClaimRefused
│   └── RegistryDamaged
├── LandingError            files that landing refuses; the manifest is as it was, but for what is quarantined
│   ├── OffsetsOverlap
│   ├── FilesDiffer
│   ├── FileDamaged
│   └── SumsDisagree
├── ServingError            what serving refuses (lake_assets/serving/errors.py)
└── ServiceError            a service of this machine, or what it needs
"""


class LakeError(Exception):
    """What is wrong, with which value, and what to do about it."""

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(f"{problem}\n  → {remedy}")
        self.problem = problem
        self.remedy = remedy


class ConfigurationError(LakeError):
    """A declaration or a setting that cannot work."""


class UsageError(LakeError):
    """A command or a request that names something that is not there."""


class SourceError(LakeError):
    """A source that cannot be read as declared. Nothing was staged."""


class TableMissing(SourceError):
    def __init__(self, table: str) -> None:
        super().__init__(
            f"Table {table} is not in the catalog.",
            remedy="Create it with `lake init`, or correct its name in the declaration.",
        )


class ColumnMismatch(SourceError):
    """A declared column that the table lacks, or has with another type."""

    def __init__(self, table: str, column: str, *, expected: str, found: str | None) -> None:
        state = f"has it as {found}" if found else "has no such column"
        super().__init__(
            f"{table} should have the column {column} ({expected}), but {state}.",
            remedy=f"Restore the column in {table}, or change the declaration that names it.",
        )


class InvalidHourKey(SourceError):
    def __init__(self, where: str, value: object) -> None:
        super().__init__(
            f"{where} is {value!r}, which is not an hour key such as 2026-01-01-05:00.",
            remedy="Write it in UTC, as YYYY-MM-DD-HH:00.",
        )


class SourceReplaced(SourceError):
    def __init__(self, table: str, *, expected: str, found: str) -> None:
        super().__init__(
            f"{table} is another table (uuid {found}) than the one read so far (uuid {expected}).",
            remedy=f"Restore the former table, or rebuild what reads {table}: `lake rebuild TARGET FROM TO --reset`.",
        )


class HistoryCut(SourceError):
    """The watermark's snapshot is neither an ancestor of the head nor comparable with it."""

    def __init__(self, table: str, snapshot_id: int) -> None:
        super().__init__(
            f"The history of {table} was cut: snapshot {snapshot_id}, read last, is gone and not under its head.",
            remedy=f"Rebuild what reads {table} with `lake rebuild TARGET FROM TO --reset`.",
        )


class TargetError(LakeError):
    """A target that cannot be published to."""


class WriteAuditPublishDisabled(TargetError):
    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} has write.wap.enabled off: a staged write would go straight to main, unaudited.",
            remedy=f"ALTER TABLE lake.{table} SET TBLPROPERTIES ('write.wap.enabled'='true')",
        )


class PublishConflict(TargetError):
    """Main moved while a session was staged and audited."""

    def __init__(self, table: str, *, expected: int | None, found: int | None) -> None:
        super().__init__(
            f"main of {table} moved from snapshot {expected} to {found} while a session was being built.",
            remedy="The session is staged and audited again; if it keeps failing, pause the other writer.",
        )
        self.expected = expected
        self.found = found


class TargetRolledBack(TargetError):
    def __init__(self, table: str, *, recorded: int) -> None:
        super().__init__(
            f"{table} was rolled back behind snapshot {recorded}, which its last session published.",
            remedy=f"Undo it with CALL lake.system.set_current_snapshot('{table}', {recorded}), "
            "or keep it and rebuild with `lake rebuild TARGET FROM TO --reset`.",
        )


class SessionError(LakeError):
    """A session that could not go on."""


class AuditFailed(SessionError):
    """A blocking audit failed: nothing was published, the watermark is where it was."""

    def __init__(self, table: str, failures: dict[str, str]) -> None:
        lines = "; ".join(f"{name}: {what}" for name, what in failures.items())
        super().__init__(
            f"{table} was not published: {lines}.",
            remedy="Repair the source or the declaration; the next change of either tries again by itself.",
        )
        self.failures = failures
        self.report: object = None
        """The `SessionReport` of the stopped session, with its audits; set by the engine."""


class HoursHeld(SessionError):
    """Blocking audits failed in some hours: these are held back, the others were published."""

    def __init__(self, table: str, held: str) -> None:
        super().__init__(
            f"{table}: {held}.",
            remedy="The other hours were published. Repair the source or the declaration: the next change of either "
            f"builds a held hour again by itself, alone. `lake rebuild {table} FROM TO` does so at once.",
        )


class StateMoved(SessionError):
    """Somebody else moved the state that a step started from."""

    def __init__(self, process: str, *, expected: object, found: object) -> None:
        super().__init__(
            f"The state of {process} moved meanwhile: expected {expected}, found {found}.",
            remedy="Another run of the same process won; this one stops without harm. Nothing to do.",
        )


class StreamError(LakeError):
    """A stream of an engagement lake that could not go on. Its checkpoint is where it was."""


class TopicReplaced(StreamError):
    def __init__(self, topic: str, *, expected: str, found: str) -> None:
        super().__init__(
            f"Topic {topic} is another one (id {found}) than was read so far (id {expected}): offsets begin anew.",
            remedy="Restore the former topic, or give the lake a topic of another name.",
        )


class OffsetsMissing(StreamError):
    """Messages that were not read yet are not in Kafka any more, or those that were read are not there yet."""

    def __init__(self, topic: str, partition: int, *, expected: int, earliest: int, end: int) -> None:
        super().__init__(
            f"Topic {topic} should go on at offset {expected} of partition {partition}, "
            f"but holds those from {earliest} to {end}, the end.",
            remedy="Restore the messages, or send what was lost again to a topic of another name; lengthen retention.",
        )


class CountsDiffer(StreamError):
    """A commit's change data feed and its metrics disagree: one of them is not what was committed."""

    def __init__(self, table: str, version: int, *, feed: object, metrics: object) -> None:
        super().__init__(
            f"Version {version} of {table} changed {feed} by its change data feed, {metrics} by its metrics.",
            remedy="Compare both with `table_changes_by_path` and DESCRIBE HISTORY; the notification was not written.",
        )


class CheckpointLost(StreamError):
    """Delta would skip the batch in silence: it has seen its id, with other data maybe."""

    def __init__(self, app_id: str, *, batch_id: int, seen: int) -> None:
        super().__init__(
            f"Batch {batch_id} of {app_id} was about to be written, but its table holds batch {seen} already: "
            "the checkpoint is older than the data.",
            remedy="Restore the newest version of the lake's checkpoint table; it must never go back.",
        )


class ErasureStopped(LakeError):
    """An erasure that could not be finished. It stays recorded as requested."""


class CoordinationError(LakeError):
    """A turn that cannot begin, or cannot go on."""


class LockNotFree(CoordinationError):
    """The lock could not be had in time. No contender is left behind. holder: None if it can not be told."""

    def __init__(self, lock: str, *, seconds: float, stream: str, holder: str | None) -> None:
        super().__init__(
            f"{lock} was not free within {seconds:g} s: {stream} waits, and {holder or 'nobody known'} holds it.",
            remedy="Nothing to do if a turn is merely long; else see what became of the holder.",
        )


class TurnRefused(CoordinationError):
    """It is not this stream's turn. The lock was released, nothing was registered."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(
            f"It is not the turn of {stream}: {reason}.",
            remedy="Let the other run, then try again; Dagster does both by itself.",
        )
        self.stream = stream
        self.reason = reason


class NotHolder(CoordinationError):
    """Something was asked for that only the holder may do. Nothing was written."""

    def __init__(self, stream: str, *, needs: str) -> None:
        super().__init__(f"{stream} has to {needs} first.", remedy="lock(), register(), the work, done(), unlock().")


class LockLost(CoordinationError):
    """The holder's session is gone, or counts as gone: another may hold the lock."""

    def __init__(self, stream: str, why: str) -> None:
        super().__init__(
            f"{stream} has lost its lock: {why}.",
            remedy="Stop this batch without another commit; the next turn redoes it from its checkpoint.",
        )


class ClaimRefused(CoordinationError):
    """A later holder has claimed the guarded resource."""

    def __init__(self, resource: str, *, token: int, found: int) -> None:
        super().__init__(
            f"{resource} was claimed with token {found}, after this turn got its own, {token}.",
            remedy="Stop this batch without another commit; the next turn redoes it from its checkpoint. If each turn "
            "is refused, since ZooKeeper was moved or has lost its data: `lake engagement reclaim LAKE`.",
        )


class RegistryDamaged(CoordinationError):
    """A node of the registry that the coordinator cannot have left like this."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"The registry node {path} {what}.",
            remedy=f"Stop all streams, see in their checkpoints that none has an open batch, delete {path}: "
            "a first stream then starts.",
        )


class ServiceError(LakeError):
    """A service of this machine, or something that it needs, is not there."""


class LandingError(LakeError):
    """Something that landing refuses. The manifest is as it was, but for what is quarantined."""


class OffsetsOverlap(LandingError):
    """Two files of one shard have the same offset of a partition."""

    def __init__(self, partition: int, offset: int, *, names: tuple[str, str]) -> None:
        super().__init__(
            f"Offset {offset} of partition {partition} is in two files, {names[0]} and {names[1]}.",
            remedy="Take the one that does not belong there out of the manifest: `lake landing quarantine discard`.",
        )


class FilesDiffer(LandingError):
    """A file holds other records than the other zone's file of the same offsets. It is quarantined."""

    def __init__(self, name: str, offsets: str, *, found: str, expected: str, zone: str) -> None:
        super().__init__(
            f"{name} ({offsets}) has the checksum {found}, but that of zone {zone} has {expected}.",
            remedy="Find out which of the two is right: `lake landing quarantine release` takes the quarantined one, "
            "`discard` the other.",
        )


class FileDamaged(LandingError):
    """A file is not what the manifest says of it."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"{name} {what}.",
            remedy="Look up the file again in the manifest, which may have replaced it; else discard it (`lake landing "
            "quarantine discard`) and start the zone again, which lands its offsets anew.",
        )


class SumsDisagree(LandingError):
    """What an operation took in and what it put out do not hold the same records. Nothing was added."""

    def __init__(self, operation: str, names: str, *, taken: str, given: str) -> None:
        super().__init__(
            f"The {operation} of {names} took in {taken}, but put out {given}.",
            remedy="The files are as they were. Run `lake landing verify`, and report the operation as a bug.",
        )


class ServingError(LakeError):
    """What serving refuses; its own tree is in `lake_assets.serving.errors`."""


class ChangesExpired(StreamError):
    """The change data feed no longer reaches back to a cursor. version: where its reader starts again."""

    def __init__(self, table: str, *, cursor: int, version: int) -> None:
        super().__init__(
            f"The changes of {table} after version {cursor} are gone: VACUUM or an erasure has taken them.",
            remedy=f"Read the table as of version {version}, then go on with {version} as the cursor.",
        )
        self.version = version


class NotAsPlanned(SessionError):
    """What another program wrote for a session does otherwise than its plan says. Nothing was published."""

    def __init__(self, table: str, wap_id: str, what: str, *, write: str) -> None:
        super().__init__(
            f"What was written to {table} under {wap_id} {what}.",
            remedy=f"Run `lake session init {table}` for a new WAP id, then write {write}.",
        )
