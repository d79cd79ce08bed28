"""Requests to an object store cost money: those of a session are bounded, whatever its rows and the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.cluster.stack import s3
from benchmarks.history import Past
from benchmarks.sizing.__main__ import on_store
from benchmarks.sizing.curves import SMALL, Size
from benchmarks.sizing.lake import LATE_HOURS, SizedLake, Store
from lake_assets.incremental.engine.model import SessionReport
from lake_assets.services.service import free_port, running
from lake_assets_tests.matrices import one_now

if TYPE_CHECKING:
    from pathlib import Path

    from lake_assets.settings import Settings

FEW = replace(SMALL, rows=1_000)
WRITES = 20
"""Of a session beside its data files: the snapshot of the target, its publish, and the log."""

READS = 150


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with running(s3(tmp_path / "s3", free_port())) as service:
        found = Store(service)
        found.bucket.create()
        yield found


def requests(home: Settings, store: Store, size: Size) -> Counter[str]:
    """Those of one session, in a lake of its own."""
    own = on_store(home, store, home.home / f"{size.rows}-{size.partitions}")
    lake = SizedLake(own, Past(own.home, size.partitions), size.partitions, snapshots=size.snapshots)
    lake.land_rows(size.rows)
    before = store.requests()
    try:
        report = lake.engine.run(lake.pipeline.targets[0])
    finally:
        lake.spark.stop()
    assert isinstance(report, SessionReport)
    assert report.rows_written == size.rows
    return store.requests() - before


@pytest.mark.slow
@pytest.mark.parametrize("size", one_now([FEW, replace(FEW, rows=50_000, partitions=700, snapshots=1_000)]))
def test_requests_of_a_session_are_bounded(home: Settings, store: Store, size: Size) -> None:
    found = requests(home, store, size)
    assert found["PUT"] == LATE_HOURS + WRITES
    assert found["POST"] == found["LIST"] == 0
    assert found["GET"] + found["HEAD"] <= READS + 2 * LATE_HOURS
