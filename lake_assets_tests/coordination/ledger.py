"""What the streams of these tests write: an SQLite file that only the last to claim it can commit to.

One stream's batches are numbered 1, 2, ...; the same one committed again changes nothing. The checkpoint follows in a
commit of its own, so a batch may be there before its checkpoint is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lake_assets.coordination import JobCoordinator, check_claim

POINTS = ("locked", "registered", "claimed", "written", "checkpointed", "done", "unlocked")
"""Where a process may be in its turn; in order."""

SCHEMA = """
CREATE TABLE epoch (token INTEGER);
CREATE TABLE batch (stream TEXT, number INTEGER);
CREATE TABLE checkpoint (stream TEXT PRIMARY KEY, number INTEGER);
"""


@dataclass(frozen=True)
class Ledger:
    file: Path

    def create(self) -> None:
        with closing(sqlite3.connect(self.file)) as db:
            db.executescript(SCHEMA)

    def claim(self, token: int) -> None:
        """The token is on the ledger; `CoordinationError` if a later one is."""
        with self._commit(token) as db:
            db.execute("DELETE FROM epoch")
            db.execute("INSERT INTO epoch VALUES (?)", [token])

    def next_batch(self, stream: str) -> int:
        with closing(sqlite3.connect(self.file)) as db:
            found = db.execute("SELECT number FROM checkpoint WHERE stream = ?", [stream]).fetchone()
        return found[0] + 1 if found else 1

    def write(self, stream: str, number: int, token: int) -> None:
        with self._commit(token) as db:
            db.execute(
                "INSERT INTO batch SELECT ?1, ?2 WHERE NOT EXISTS "
                "(SELECT * FROM batch WHERE stream = ?1 AND number = ?2)",
                [stream, number],
            )

    def checkpoint(self, stream: str, number: int, token: int) -> None:
        with self._commit(token) as db:
            db.execute("REPLACE INTO checkpoint VALUES (?, ?)", [stream, number])

    def batches(self, stream: str) -> list[int]:
        with closing(sqlite3.connect(self.file)) as db:
            return [n for (n,) in db.execute("SELECT number FROM batch WHERE stream = ? ORDER BY rowid", [stream])]

    @contextmanager
    def _commit(self, token: int) -> Iterator[sqlite3.Connection]:
        """One commit that a later claim refuses."""
        with closing(sqlite3.connect(self.file, timeout=30, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            found = db.execute("SELECT token FROM epoch").fetchone()
            check_claim("the ledger", found[0] if found else None, token)
            yield db
            db.execute("COMMIT")


def take_turn(coordinator: JobCoordinator, ledger: Ledger, reach: Callable[[str], None]) -> None:
    """One turn with one batch. reach: called at each of `POINTS`."""
    stream = coordinator.stream.name
    assert coordinator.lock()
    reach("locked")
    coordinator.register()
    reach("registered")
    token = coordinator.claim()
    reach("claimed")
    number = ledger.next_batch(stream)
    ledger.write(stream, number, token)
    reach("written")
    ledger.checkpoint(stream, number, token)
    reach("checkpointed")
    coordinator.done()
    reach("done")
    coordinator.unlock()
    reach("unlocked")
