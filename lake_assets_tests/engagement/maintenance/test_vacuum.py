"""What VACUUM gets to see of a table's folder. Delta without Spark."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lake_assets.engagement.maintenance import inventory


def parquet(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*.parquet")}


@pytest.mark.parametrize("name", ["plain", "with blanks and é"])
def test_files_older_than_a_table_are_not_shown_to_vacuum(tmp_path: Path, name: str) -> None:
    tmp_path = tmp_path / name
    rows = pa.table({"number": [1]})
    write_deltalake(str(tmp_path), rows)
    former = parquet(tmp_path)
    for name in former:
        os.utime(tmp_path / name, (1_000_000, 1_000_000))
    shutil.rmtree(tmp_path / "_delta_log")
    write_deltalake(str(tmp_path), rows)
    (tmp_path / "orphan.parquet").touch()
    for name in parquet(tmp_path) - former:
        later = time.time() + 60  # the kernel's times of files may be some ms behind the clock
        os.utime(tmp_path / name, (later, later))
    listed = {Path(entry["path"]).name for entry in inventory(f"file://{tmp_path}") if not entry["isDir"]}
    assert former
    assert listed == parquet(tmp_path) - former
