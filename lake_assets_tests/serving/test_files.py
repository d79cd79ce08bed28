"""A segment file that was uploaded is read back: its bytes and its rows are those that will be registered."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_assets.connections.storage import Folder
from lake_assets.errors import SegmentDamaged
from lake_assets.serving.registry import SegmentInfo
from lake_assets.serving.store import SegmentFiles


def test_what_is_not_the_segment_that_will_be_registered_is_refused(tmp_path: Path) -> None:
    files, source = SegmentFiles(Folder(tmp_path / "segments")), tmp_path / "draft"
    pq.write_table(pa.table({"id": [1, 2, 3]}), source)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    info = SegmentInfo("s", 3, source.stat().st_size, digest, datetime(2026, 1, 1, tzinfo=UTC), "push")
    files.upload("t", "s", source)
    files.verify("t", info)
    assert files.stored("t") == {"s": source.stat().st_size}
    with pytest.raises(SegmentDamaged, match="it has 3 rows, not 4"):
        files.verify("t", replace(info, rows=4))
    with pytest.raises(SegmentDamaged, match=f"its checksum is {digest}, not 0000"):
        files.verify("t", replace(info, sha256="0" * 64))
    with pytest.raises(SegmentDamaged, match="it cannot be read"):
        files.verify("t", replace(info, name="lost"))
    source.write_bytes(b"no segment")
    files.upload("t", "s", source)
    with pytest.raises(SegmentDamaged, match="it cannot be read"):
        files.verify("t", replace(info, sha256=hashlib.sha256(b"no segment").hexdigest()))
