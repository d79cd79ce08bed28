"""Files go when only a former version names them, or when they are old and nobody ever did; and no other file does."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.erasures import delete_rows, holds
from lake_assets.incremental.engine.retention import (
    bare_path,
    drop_deleted_entries,
    expire,
    former_tables,
    remove_unreferenced_files,
)
from lake_assets_tests.incremental.scenario import NOW, landed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

NAME = "raw.signups"


def expire_all_but(catalog: Catalog, *kept: int) -> int:
    """Expire all snapshots but main and some. How many were expired."""
    ids = [snapshot.snapshot_id for snapshot in iceberg.load(catalog, NAME).metadata.snapshots]
    return expire(catalog, NAME, lambda _: [each for each in ids if each not in kept])[1]


def folder(catalog: Catalog) -> Path:
    return Path(bare_path(iceberg.load(catalog, NAME).location()))


def test_only_what_no_version_needs_is_removed(catalog: Catalog) -> None:
    landed(catalog, "a-1", "a-2")
    landed(catalog, "a-3")
    delete_rows(catalog, NAME, holds(iceberg.load(catalog, "raw.signups").schema(), ["account_id"], ["a-1"]))
    drop_deleted_entries(catalog, NAME)
    table = iceberg.load(catalog, NAME)
    kept = table.metadata.snapshots[0].snapshot_id
    before = {i: table.scan(snapshot_id=i).to_arrow() for i in (kept, table.metadata.current_snapshot_id)}
    assert expire_all_but(catalog, kept) == len(table.metadata.snapshots) - 2
    assert remove_unreferenced_files(catalog, NAME, orphaned_before=NOW) > 0
    table = iceberg.load(catalog, NAME)
    assert {i: table.scan(snapshot_id=i).to_arrow() for i in before} == before
    assert remove_unreferenced_files(catalog, NAME, orphaned_before=NOW) == 0

    assert expire_all_but(catalog) == 1
    remove_unreferenced_files(catalog, NAME, orphaned_before=NOW)
    assert sorted(iceberg.load(catalog, NAME).scan().to_arrow()["account_id"].to_pylist()) == ["a-2", "a-3"]
    assert len(list(folder(catalog).rglob("*.parquet"))) == 2


def test_an_orphan_goes_when_it_is_old_and_is_what_iceberg_writes(catalog: Catalog) -> None:
    landed(catalog, "a-1")
    for name, age in (("old.parquet", 2), ("young.parquet", 0), ("note.txt", 2)):
        file = folder(catalog) / name
        file.touch()
        moment = (NOW - timedelta(days=age)).timestamp()
        os.utime(file, (moment, moment))
    assert remove_unreferenced_files(catalog, NAME, orphaned_before=NOW - timedelta(days=1)) == 1
    assert {f.name for f in folder(catalog).iterdir() if f.is_file()} == {"young.parquet", "note.txt"}


def test_of_a_table_that_lacks_a_manifest_nothing_is_removed(catalog: Catalog) -> None:
    landed(catalog, "a-1")
    landed(catalog, "a-2")
    head = iceberg.load(catalog, NAME).current_snapshot()
    assert head is not None
    expire_all_but(catalog)
    Path(bare_path(head.manifests(iceberg.load(catalog, NAME).io)[0].manifest_path)).unlink()
    before = sorted(folder(catalog).rglob("*"))
    with pytest.raises(FileNotFoundError):
        remove_unreferenced_files(catalog, NAME, orphaned_before=NOW)
    assert sorted(folder(catalog).rglob("*")) == before


def test_the_files_of_a_former_table_of_the_same_name_stay_until_its_metadata_is_gone(catalog: Catalog) -> None:
    landed(catalog, "a-1")
    former = set(folder(catalog).rglob("*.parquet"))
    catalog.drop_table(NAME)
    landed(catalog, "a-2")
    metadata = former_tables(iceberg.load(catalog, NAME))
    assert len(metadata) == 1
    later = datetime.now(UTC) + timedelta(days=9)
    assert remove_unreferenced_files(catalog, NAME, orphaned_before=later) == 0
    assert all(file.exists() for file in former)

    for file in (folder(catalog) / "metadata").glob("*.metadata.json"):
        if f'"table-uuid":"{next(iter(metadata))}"' in file.read_text().replace(" ", ""):
            file.unlink()
    assert remove_unreferenced_files(catalog, NAME, orphaned_before=later) > 0
    assert not any(file.exists() for file in former)
    assert iceberg.load(catalog, NAME).scan().to_arrow()["account_id"].to_pylist() == ["a-2"]
