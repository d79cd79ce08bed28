"""Errors of stored state that is lost or damaged."""

from collections.abc import Collection

from lake_assets.errors.base import LakeError
from lake_assets.errors.texts import named


class StoredStateError(LakeError):
    """Stored state is lost or damaged. Nothing was changed."""


class CatalogLost(StoredStateError):
    """A catalog has none of the tables of its home. New tables would be created over the files of the old ones.

    Args:
        catalog: The catalog's address, without a password.
        home: The data directory.
        tables: The tables that the home had.
        former: Address of the catalog that had them; None if it is not known.
    """

    def __init__(self, catalog: str, *, home: object, tables: Collection[str], former: str | None) -> None:
        moved = f" They were in the catalog {former}." if former not in (None, catalog) else ""
        super().__init__(
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


class BackupDamaged(StoredStateError):
    """A backup is not what it was when it was made. Nothing was restored.

    Args:
        folder: The backup.
        file: The file of the backup that is wrong.
        cause: What is wrong with it, as the end of a sentence.
    """

    def __init__(self, folder: object, file: str, cause: str) -> None:
        super().__init__(
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
