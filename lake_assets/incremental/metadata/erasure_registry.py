"""The memory of erasures, `etl.erasure`: who was erased, as a keyed hash, and when. No id is kept.

The hash is HMAC-SHA256 over the subject's name and the id (RFC 2104): without the key, nobody can find out whose it
is by trying all ids. It is computed here, in this process: no query, plan or log of Spark ever holds the key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.metadata import tables
from lake_assets.settings import Settings, settings

ERASURE = "etl.erasure"
KEY_FILE = "erasure.key"

_COLUMNS = {
    "subject": "string",
    "id_hash": "string",
    "key_id": "string",
    "state": "string",
    "erased_at": "timestamptz",
    "recorded_at": "timestamptz",
}
"""key_id: which key the hash was made with. erased_at: what was sent by then is erased. One row for each state."""


@dataclass(frozen=True)
class Erasure:
    """One erasure as its newest row tells it."""

    subject: str
    id_hash: str
    erased_at: datetime
    state: Literal["requested", "done"]


def create_table(catalog: Catalog) -> list[str]:
    """Create `etl.erasure` unless it is there; its name if it was created."""
    return [ERASURE] if tables.create(catalog, ERASURE, _COLUMNS, {}, {}) else []


def last_erasure(catalog: Catalog) -> datetime | None:
    """When an erasure was recorded last, asked for or done; None if there never was one."""
    if (table := tables.find(catalog, ERASURE)) is None:
        return None
    times = table.scan(selected_fields=("recorded_at",)).to_arrow()["recorded_at"].to_pylist()
    return max(times, default=None)


def erasure_key(found: Settings) -> bytes:
    """The key of a home: the setting, or else the home's own, which is made at the first call."""
    if found.erasure_key is not None:
        return found.erasure_key.get_secret_value().encode()
    file = found.home / KEY_FILE
    if not file.exists():
        _make_key(file)
    return file.read_bytes()


def _make_key(file: Path) -> None:
    """Whole or not at all, whoever dies and however many call at once; of its owner alone."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(secrets.token_hex(32))
    try:
        os.link(draft, file)
    except FileExistsError:
        pass  # another process made one first, and that one counts
    finally:
        draft.unlink()


@dataclass(frozen=True)
class KeyedHash:
    """What ids are hashed with. key: asked for when an id is hashed, not before; default: the key of the home."""

    key: Callable[[], bytes] = lambda: erasure_key(settings())

    def of(self, *words: str) -> str:
        """The keyed hash of an id, hexadecimal; words: what it is an id of, then the id."""
        return hmac.digest(self._key, "\0".join(words).encode(), "sha256").hex()

    def check(self, table: str, key_ids: Iterable[str]) -> None:
        """`ConfigurationError` when rows of a table were made with another key: then nobody would be recognized."""
        if any(key_id != self.key_id for key_id in key_ids):
            raise ConfigurationError(
                f"{table} was written with another key: nobody who was erased could be recognized.",
                remedy=f"Restore the key: LAKE_ERASURE_KEY, or {KEY_FILE} in the home.",
            )

    @cached_property
    def key_id(self) -> str:
        """Which key it is."""
        return hmac.new(self._key, b"key id", hashlib.sha256).hexdigest()[:16]

    @cached_property
    def _key(self) -> bytes:
        return self.key()


class Erasures:
    """Reads and writes `etl.erasure`. key: asked for when an id is hashed, not before."""

    def __init__(self, catalog: Catalog, *, key: Callable[[], bytes] | None = None) -> None:
        self.catalog = catalog
        self._keyed = KeyedHash(key) if key else KeyedHash()

    def rows(self) -> list[Erasure]:
        """All erasures, in no order; one look at the catalog when there is none.

        Raises `ConfigurationError` when they were made with another key: then nobody would be recognized.
        """
        table = tables.find(self.catalog, ERASURE)
        if table is None or table.current_snapshot() is None:
            return []
        rows = table.scan().to_arrow().to_pylist()
        self._keyed.check(ERASURE, (r["key_id"] for r in rows))
        newest: dict[tuple[str, str], Erasure] = {}
        for r in sorted(rows, key=lambda r: (r["erased_at"], r["state"] == "requested", r["recorded_at"])):
            # Of one erasure `done` comes first here, and a request with the same time does not undo it.
            before = newest.get((r["subject"], r["id_hash"]))
            if before is None or before.erased_at < r["erased_at"]:
                newest[r["subject"], r["id_hash"]] = Erasure(r["subject"], r["id_hash"], r["erased_at"], r["state"])
        return list(newest.values())

    def record(
        self, subject: str, value: str, state: Literal["requested", "done"], *, erased_at: datetime, now: datetime
    ) -> None:
        """Add the state of an erasure."""
        table = tables.load(self.catalog, ERASURE)
        self.rows()  # refuses another key than the first
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
        """Those ids that were erased, and when."""
        times = {e.id_hash: e.erased_at for e in among if e.subject == subject}
        if not times:
            return {}
        hashes = {value: self.hash(subject, value) for value in values}
        return {value: times[hashed] for value, hashed in hashes.items() if hashed in times}

    def hash(self, subject: str, value: str) -> str:
        """The keyed hash of an id, hexadecimal."""
        return self._keyed.of(subject, value)
