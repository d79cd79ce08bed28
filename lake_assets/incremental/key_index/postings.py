"""The stored index of one column of one table: a SQLite file with the data files, and the values in each.

Values are stored as hashes of 32 bits. Two values may have one hash, so a file that is found may lack the value. A file
that was removed from the table stays in the index while a retained snapshot has it.

Failure model: a change is one SQLite transaction. A file that is damaged or missing is built again.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

LOCK_SECONDS = 20
"""How long a change waits for the change of another process."""

VALUES_IN_QUERY = 500
"""Number of values that one query looks up."""

_SCHEMA = """
create table if not exists described (snapshot_id integer, sequence_number integer, first_sequence_number integer);
create table if not exists files (
    id integer primary key, path text unique, rows integer, bytes integer, spec_id integer, partition text,
    added integer, removed integer
);
create table if not exists postings (hash integer, file integer, primary key (hash, file)) without rowid;
create index if not exists postings_of_file on postings (file);
create index if not exists removed_files on files (removed) where removed is not null;
"""


@dataclass(frozen=True)
class Described:
    """The state of the table that the index describes.

    Attributes:
        snapshot_id: The snapshot that it describes.
        sequence_number: Of the snapshot.
        first_sequence_number: Of the earliest ancestor of the snapshot that it also describes.
    """

    snapshot_id: int
    sequence_number: int
    first_sequence_number: int


@dataclass(frozen=True)
class IndexedFile:
    """A data file of the index.

    Attributes:
        path: Its location.
        rows: Number of rows.
        bytes: Size.
        spec_id: Its partition spec.
        partition: Its partition values, as JSON.
    """

    path: str
    rows: int
    bytes: int
    spec_id: int
    partition: str


class Postings:
    """One index file, inside a transaction of `opened`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def described(self) -> Described | None:
        """Return the state that the index describes; None for an empty index."""
        row = self._connection.execute("select * from described").fetchone()
        return Described(*row) if row else None

    def describe(self, state: Described) -> None:
        """Record the state that the index describes from now on."""
        self._connection.execute("delete from described")
        values = (state.snapshot_id, state.sequence_number, state.first_sequence_number)
        self._connection.execute("insert into described values (?, ?, ?)", values)

    def clear(self) -> None:
        """Remove everything."""
        for table in ("described", "postings", "files"):
            self._connection.execute(f"delete from {table}")

    def add(self, file: IndexedFile, values: Iterable[object], *, at: int) -> None:
        """Add a data file.

        Args:
            file: The file.
            values: The values of the column in it.
            at: Sequence number of the snapshot that added it.
        """
        row = (file.path, file.rows, file.bytes, file.spec_id, file.partition, at)
        insert = "insert into files (path, rows, bytes, spec_id, partition, added) values (?, ?, ?, ?, ?, ?)"
        number = self._connection.execute(insert, row).lastrowid
        hashes = {hash_of(value) for value in values}
        self._connection.executemany("insert into postings values (?, ?)", [(each, number) for each in sorted(hashes)])

    def remove(self, path: str, *, at: int) -> None:
        """Record that a snapshot, given by its sequence number, removed a data file."""
        self._connection.execute("update files set removed = ? where path = ?", (at, path))

    def forget(self, *, before: int) -> None:
        """Forget the files that no snapshot has from a sequence number on."""
        gone = "select id from files where removed <= ?"
        self._connection.execute(f"delete from postings where file in ({gone})", (before,))
        self._connection.execute("delete from files where removed <= ?", (before,))

    def files_with(self, values: Collection[object], *, at: int) -> list[IndexedFile]:
        """Return the files that may have one of the values, by path, as of a snapshot's sequence number."""
        hashes = sorted({hash_of(value) for value in values})
        found: set[IndexedFile] = set()
        for start in range(0, len(hashes), VALUES_IN_QUERY):
            part = hashes[start : start + VALUES_IN_QUERY]
            places = ", ".join("?" * len(part))
            rows = self._connection.execute(
                "select distinct path, rows, bytes, spec_id, partition from postings join files on id = file"
                f" where hash in ({places}) and added <= ? and (removed is null or removed > ?)",
                (*part, at, at),
            )
            found.update(IndexedFile(*row) for row in rows)
        return sorted(found, key=lambda file: file.path)


@contextmanager
def opened(path: Path) -> Iterator[Postings]:
    """Open an index in a transaction that is committed if the block ends without an error.

    Raises:
        sqlite3.Error: The file is damaged, or another process changes it for longer than `LOCK_SECONDS`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as connection:
        connection.execute("pragma secure_delete = on")  # hashes of erased subjects leave the disk, too
        connection.executescript(_SCHEMA)
        connection.execute("begin immediate")
        try:
            yield Postings(connection)
            connection.execute("commit")
        except BaseException:
            connection.rollback()
            raise


def hash_of(value: object) -> int:
    """Return the hash of a value, the same in every process."""
    return zlib.crc32(str(value).encode())
