"""The erasure registry, `etl.erasure`: which ids were erased, and when. It stores keyed hashes, no ids.

The hash is HMAC-SHA256 over the subject's name and the id (RFC 2104). Without the key, nobody can find an id by hashing
all possible ones. The hash is computed in this process: no query, plan or log of Spark contains the key.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.metadata import tables
from lake_assets.settings import Settings, settings

ERASURE = "etl.erasure"
KEY_FILE = "erasure.key"
KEY_BYTES = 32
KEY_ID_DIGITS = 16
OWNER_ONLY = 0o600

_COLUMNS = {
    "subject": "string",
    "id_hash": "string",
    "key_id": "string",
    "state": "string",
    "erased_at": "timestamptz",
    "recorded_at": "timestamptz",
}
"""One row for each state of an erasure. key_id: identifies the key of the hash. erased_at: everything sent by then is
erased."""


@dataclass(frozen=True)
class Erasure:
    """One erasure, by its newest row.

    Attributes:
        subject: The subject's name.
        id_hash: The keyed hash of the id.
        erased_at: Everything that was sent by this time is erased.
        state: `requested`, or `done`.
    """

    subject: str
    id_hash: str
    erased_at: datetime
    state: Literal["requested", "done"]


def create_table(catalog: Catalog) -> list[str]:
    """Create `etl.erasure` if it does not exist. Return its name if it was created."""
    created = tables.create(catalog, ERASURE, _COLUMNS, {}, {})
    return [ERASURE] if created else []


def last_erasure(catalog: Catalog) -> datetime | None:
    """Return when an erasure was recorded last, requested or done; None if there was none."""
    table = tables.find(catalog, ERASURE)
    if table is None:
        return None
    recorded = table.scan(selected_fields=("recorded_at",)).to_arrow()
    return max(recorded["recorded_at"].to_pylist(), default=None)


def erasure_key(found: Settings) -> bytes:
    """Return the erasure key: the setting, else the key in the data directory, which the first call creates."""
    if found.erasure_key is not None:
        return found.erasure_key.get_secret_value().encode()
    file = found.home / KEY_FILE
    if not file.exists():
        _create_key(file)
    return file.read_bytes()


def _create_key(file: Path) -> None:
    """Create the key file, readable by its owner only; after a crash, or with concurrent calls, it is complete."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(secrets.token_hex(KEY_BYTES))
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # another process created the key first
    finally:
        draft.unlink()


@dataclass(frozen=True)
class KeyedHash:
    """Hashes ids with a key.

    Attributes:
        key: Returns the key; called when the first id is hashed. Default: the key of the data directory.
    """

    key: Callable[[], bytes] = lambda: erasure_key(settings())

    def of(self, *words: str) -> str:
        """Return the keyed hash of an id, hexadecimal. words: what kind of id it is, then the id."""
        message = "\0".join(words).encode()
        return hmac.digest(self._key, message, "sha256").hex()

    def check(self, table: str, key_ids: Iterable[str]) -> None:
        """Check that the rows of a table were hashed with this key.

        Args:
            table: The table, for the message.
            key_ids: The key ids of its rows.

        Raises:
            ConfigurationError: They were hashed with another key, so no erased id would be recognized.
        """
        if any(key_id != self.key_id for key_id in key_ids):
            raise ConfigurationError(
                f"{table} was written with another key: no erased id would be recognized.",
                remedy=f"Restore the key: LAKE_ERASURE_KEY, or {KEY_FILE} in the data directory (LAKE_HOME).",
            )

    @cached_property
    def key_id(self) -> str:
        """An identifier of the key."""
        digest = hmac.digest(self._key, b"key id", "sha256")
        return digest.hex()[:KEY_ID_DIGITS]

    @cached_property
    def _key(self) -> bytes:
        return self.key()


class Erasures:
    """Reads and writes `etl.erasure`.

    Args:
        catalog: The catalog.
        key: Returns the key; called when the first id is hashed. Default: the key of the data directory.
    """

    def __init__(self, catalog: Catalog, *, key: Callable[[], bytes] | None = None) -> None:
        self.catalog = catalog
        self._keyed = KeyedHash(key) if key else KeyedHash()

    def rows(self) -> list[Erasure]:
        """Return all erasures, in no order. Without any, this costs one look-up in the catalog.

        Raises:
            ConfigurationError: They were recorded with another key, so no erased id would be recognized.
        """
        table = tables.find(self.catalog, ERASURE)
        if table is None or table.current_snapshot() is None:
            return []
        rows = table.scan().to_arrow().to_pylist()
        self._keyed.check(ERASURE, (row["key_id"] for row in rows))
        newest: dict[tuple[str, str], Erasure] = {}
        for row in sorted(rows, key=_done_first):
            erasure = Erasure(
                subject=row["subject"],
                id_hash=row["id_hash"],
                erased_at=row["erased_at"],
                state=row["state"],
            )
            key = erasure.subject, erasure.id_hash
            before = newest.get(key)
            if before is None or before.erased_at < erasure.erased_at:
                newest[key] = erasure
        return list(newest.values())

    def record(
        self,
        subject: str,
        value: str,
        state: Literal["requested", "done"],
        *,
        erased_at: datetime,
        now: datetime,
    ) -> None:
        """Add the state of an erasure.

        Args:
            subject: The subject's name.
            value: The id.
            state: The state.
            erased_at: Everything that was sent by this time is erased.
            now: When the state is recorded.

        Raises:
            ConfigurationError: Earlier erasures were recorded with another key.
        """
        table = tables.load(self.catalog, ERASURE)
        self.rows()  # checks the key
        row = {
            "subject": subject,
            "id_hash": self.hash(subject, value),
            "key_id": self._keyed.key_id,
            "state": state,
            "erased_at": erased_at,
            "recorded_at": now,
        }
        schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        table.append(pa.Table.from_pylist([row], schema=schema))

    def known(self, subject: str, values: Iterable[str], among: Iterable[Erasure]) -> Mapping[str, datetime]:
        """Return erased id → time of its erasure, for those of the ids that were erased.

        Args:
            subject: The subject's name.
            values: The ids to look for.
            among: The erasures to look in.
        """
        times: dict[str, datetime] = {}
        for erasure in among:
            if erasure.subject == subject:
                times[erasure.id_hash] = erasure.erased_at
        found: dict[str, datetime] = {}
        if not times:
            return found  # no id is hashed, and no key is needed
        for value in values:
            id_hash = self.hash(subject, value)
            if id_hash in times:
                found[value] = times[id_hash]
        return found

    def hash(self, subject: str, value: str) -> str:
        """Return the keyed hash of an id, hexadecimal."""
        return self._keyed.of(subject, value)


def _done_first(row: Mapping[str, Any]) -> tuple[datetime, bool, datetime]:
    """Sort key: by time of erasure, and `done` before a request of the same time, which does not undo it."""
    return row["erased_at"], row["state"] == "requested", row["recorded_at"]
