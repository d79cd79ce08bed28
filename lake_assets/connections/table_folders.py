"""The folders of Iceberg tables in a local warehouse, found without a catalog. Reads metadata files as plain JSON.

A warehouse in an object store is not searched: listing all of it may take long.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

METADATA_FOLDER = "metadata"
METADATA_SUFFIX = ".metadata.json"
_HIVE_SUFFIX = ".db"
"""Some writers call the folder of a namespace `name.db`."""


def local_tables(warehouse: str) -> dict[str, Path]:
    """Return the tables of a warehouse by the names of their folders; none if it is not on this machine.

    Returns:
        `namespace.name` → the table's folder.
    """
    root = _local_path(warehouse)
    found: dict[str, Path] = {}
    if root is None:
        return found
    for metadata in sorted(root.glob(f"*/*/{METADATA_FOLDER}")):
        folder = metadata.parent
        if any(metadata.glob(f"*{METADATA_SUFFIX}")):
            namespace = folder.parent.name.removesuffix(_HIVE_SUFFIX)
            found[f"{namespace}.{folder.name}"] = folder
    return found


def has_snapshots(folder: Path) -> bool:
    """Return whether any metadata file of a table has a snapshot: an empty table has nothing to lose."""
    return any(content.get("snapshots") for content in _metadata(folder))


def _metadata(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the metadata files of a table, those with the highest version first, without damaged ones."""
    for file in sorted((folder / METADATA_FOLDER).glob(f"*{METADATA_SUFFIX}"), reverse=True):
        try:
            content = json.loads(_text(file))
        except (OSError, EOFError, ValueError):
            continue
        if isinstance(content, dict):
            yield content


def _text(file: Path) -> str:
    stored = file.read_bytes()
    is_compressed = file.name.endswith(f".gz{METADATA_SUFFIX}")
    return (gzip.decompress(stored) if is_compressed else stored).decode()


def _local_path(warehouse: str) -> Path | None:
    parts = urlsplit(warehouse)
    if parts.scheme not in ("", "file"):
        return None
    return Path(unquote(parts.path))
