"""The error tree, one module for each part of the platform. Each message states the problem and the remedy.

May import nothing else of the project. Import each error from here.

LakeError
├── ConfigurationError      an invalid declaration or setting
├── UsageError              an invalid argument of a command or request
├── ServiceError            a local service or one of its dependencies is not available
├── ErasureStopped          an erasure did not finish; the same call continues it
├── StoredStateError        stored state is lost or damaged; nothing was changed
│   ├── BackupDamaged
│   ├── CatalogLost
│   ├── StoredByNewerVersion
│   └── TableDamaged
├── SourceError             a source cannot be read as declared; nothing was staged
│   ├── TableMissing
│   │   └── SourceTableMissing
│   ├── TimeColumnUnusable
│   ├── ColumnNameTaken
│   ├── ColumnUnreadable
│   ├── ColumnMismatch
│   ├── InvalidHourKey
│   │   └── InvalidCompleteThrough
│   ├── FilesMisread
│   ├── RowsUnread
│   ├── SourceReplaced
│   └── HistoryCut
├── TargetError             a target cannot be published to
│   ├── WriteAuditPublishDisabled
│   ├── TargetColumnsDiffer
│   ├── PublishConflict
│   ├── TargetRolledBack
│   ├── TargetDropped
│   └── TargetReplaced
├── SessionError            a session stopped
│   ├── AuditFailed
│   ├── HoursHeld
│   ├── StateMoved
│   ├── NotAsPlanned
│   ├── FunctionFailed
│   ├── RowsFailed
│   └── AuditBroken
├── StreamError             a stream of an engagement lake stopped
│   ├── BatchFailed
│   ├── MessagesLost
│   │   ├── TopicReplaced
│   │   └── OffsetsMissing
│   ├── CountsDiffer
│   ├── CheckpointLost
│   └── ChangesExpired
├── CoordinationError       a turn cannot start or cannot continue
│   ├── LockNotFree
│   ├── TurnRefused
│   ├── NotHolder
│   ├── LockLost
│   ├── ClaimRefused
│   └── RegistryDamaged
├── LandingError            landing refuses a file; the manifest is unchanged, except that the file may be quarantined
│   ├── OffsetsOverlap
│   ├── FilesDiffer
│   ├── FileDamaged
│   ├── SumsDisagree
│   ├── ZoneMismatch
│   ├── TopicRecreated
│   ├── OffsetsGone
│   ├── IntakeIncomplete
│   └── DiskFull
└── ServingError            serving refuses a request (tree in lake_assets/serving/errors.py)
"""

from lake_assets.errors.base import (
    ConfigurationError,
    ErasureStopped,
    LakeError,
    ServiceError,
    ServingError,
    UsageError,
)
from lake_assets.errors.coordination import (
    ClaimRefused,
    CoordinationError,
    LockLost,
    LockNotFree,
    NotHolder,
    RegistryDamaged,
    TurnRefused,
)
from lake_assets.errors.engagement import (
    BatchFailed,
    ChangesExpired,
    CheckpointLost,
    CountsDiffer,
    MessagesLost,
    OffsetsMissing,
    StreamError,
    TopicReplaced,
)
from lake_assets.errors.incremental import (
    AuditBroken,
    AuditFailed,
    ColumnMismatch,
    ColumnNameTaken,
    ColumnUnreadable,
    FilesMisread,
    FunctionFailed,
    HistoryCut,
    HoursHeld,
    InvalidCompleteThrough,
    InvalidHourKey,
    NotAsPlanned,
    PublishConflict,
    RowsFailed,
    RowsUnread,
    SessionError,
    SourceError,
    SourceReplaced,
    SourceTableMissing,
    StateMoved,
    TableMissing,
    TargetColumnsDiffer,
    TargetDropped,
    TargetError,
    TargetReplaced,
    TargetRolledBack,
    TimeColumnUnusable,
    WriteAuditPublishDisabled,
)
from lake_assets.errors.landing import (
    DiskFull,
    FileDamaged,
    FilesDiffer,
    IntakeIncomplete,
    LandingError,
    OffsetsGone,
    OffsetsOverlap,
    SumsDisagree,
    TopicRecreated,
    ZoneMismatch,
)
from lake_assets.errors.stored_state import (
    BackupDamaged,
    CatalogLost,
    StoredByNewerVersion,
    StoredStateError,
    TableDamaged,
)

__all__ = [
    "AuditBroken",
    "AuditFailed",
    "BackupDamaged",
    "BatchFailed",
    "CatalogLost",
    "ChangesExpired",
    "CheckpointLost",
    "ClaimRefused",
    "ColumnMismatch",
    "ColumnNameTaken",
    "ColumnUnreadable",
    "ConfigurationError",
    "CoordinationError",
    "CountsDiffer",
    "DiskFull",
    "ErasureStopped",
    "FileDamaged",
    "FilesDiffer",
    "FilesMisread",
    "FunctionFailed",
    "HistoryCut",
    "HoursHeld",
    "IntakeIncomplete",
    "InvalidCompleteThrough",
    "InvalidHourKey",
    "LakeError",
    "LandingError",
    "LockLost",
    "LockNotFree",
    "MessagesLost",
    "NotAsPlanned",
    "NotHolder",
    "OffsetsGone",
    "OffsetsMissing",
    "OffsetsOverlap",
    "PublishConflict",
    "RegistryDamaged",
    "RowsFailed",
    "RowsUnread",
    "ServiceError",
    "ServingError",
    "SessionError",
    "SourceError",
    "SourceReplaced",
    "SourceTableMissing",
    "StateMoved",
    "StoredByNewerVersion",
    "StoredStateError",
    "StreamError",
    "SumsDisagree",
    "TableDamaged",
    "TableMissing",
    "TargetColumnsDiffer",
    "TargetDropped",
    "TargetError",
    "TargetReplaced",
    "TargetRolledBack",
    "TimeColumnUnusable",
    "TopicRecreated",
    "TopicReplaced",
    "TurnRefused",
    "UsageError",
    "WriteAuditPublishDisabled",
    "ZoneMismatch",
]
