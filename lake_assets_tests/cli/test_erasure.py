"""An erasure as a person asks for it: of tables, landed files and segments; the certificate sees each, then nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lake_assets.base.hours import milliseconds
from lake_assets.cli.main import app
from lake_assets.errors import ErasureStopped
from lake_assets.incremental.engine.engine import utc_now
from lake_assets.incremental.engine.erasures import Erasures
from lake_assets.landing.records import Record, Shard
from lake_assets.landing.state import SharedState
from lake_assets.settings import Settings, settings
from lake_assets_tests.incremental.scenario import landed
from lake_assets_tests.landing.scenario import TOPIC, Landed
from lake_assets_tests.serving.scenario import fresh_name

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

GONE = "account-to-be-erased"
NO_SPARK = "sc://127.0.0.1:1"
"""Nobody listens there: of one who was all alone nothing is left to rebuild."""


@pytest.fixture
def opened(bare_home: Settings, zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """The home as `lake` opens it, with nothing of other pushes in the system's temporary folder, and without Spark."""
    for name, value in {"HOME": bare_home.home, "SPARK_REMOTE": NO_SPARK, "ZOOKEEPER": zookeeper}.items():
        monkeypatch.setenv(f"LAKE_{name}", str(value))
    monkeypatch.setattr("tempfile.tempdir", str(bare_home.home.parent))
    settings.cache_clear()
    yield settings()
    settings.cache_clear()


class Lines:
    """`lake`, and all that it printed."""

    def __init__(self) -> None:
        self.printed = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
        assert done.exit_code == code, done.output
        self.printed += done.output
        return done.output

    def read(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))


def land(zones: Landed, offset: int, *accounts: str, only: str = "ab") -> None:
    """A file of signups in zones, and one of a dead letter that names the first account."""
    moment = datetime(2026, 1, 1, offset, tzinfo=UTC)
    rows = [{"signup_id": f"s{n}", "account_id": a, "event_ts": moment.isoformat()} for n, a in enumerate(accounts)]
    texts = [*map(json.dumps, rows), f'{{"account_id": "{accounts[0]}"']
    records = [Record(0, offset + n, milliseconds(moment), None, text.encode()) for n, text in enumerate(texts)]
    for writer in map(zones.writers.__getitem__, only):
        for shard, found in ((Shard(TOPIC, dead_letters=True), records[-1:]), (Shard(TOPIC), records[:-1])):
            writer.land(writer.zone.draft(str(shard), {0: (offset, offset + len(accounts))}, found), now=moment)


def rows_file(folder: Path, *accounts: str) -> str:
    file = folder / f"{len(accounts)}.parquet"
    pq.write_table(pa.table({"account_id": accounts}), file)
    return str(file)


def test_who_is_erased_was_everywhere_and_is_nowhere(opened: Settings, catalog: Catalog, tmp_path: Path) -> None:
    lake, served, zones = Lines(), fresh_name(), Landed(opened)
    landed(catalog, GONE)
    land(zones, 0, GONE, "b", only="a")
    for _ in range(2):
        lake("serving", "push", served, "--file", rows_file(tmp_path, GONE, "b"))

    found = lake.read("erasure", "certify", "account", GONE, code=1)["findings"]
    places = {(f["table"], f["kind"], f["referenced"]) for f in found}
    assert places >= {
        ("raw.signups", "data", "main"),
        ("raw.signups", "manifest", "main"),
        *((f"{TOPIC}, zone a", kind, "main") for kind in ("landed file", "dead letters")),
        *((f"{served}, served", "segment", by) for by in ("main", "history")),
    }

    listed = tmp_path / "ids.txt"
    listed.write_text(GONE)
    with pytest.raises(ErasureStopped, match="zone a stay") as stopped:
        lake("erase", "account", "--from", str(listed))
    assert [e.state for e in Erasures(catalog).rows()] == ["requested"]
    assert len(SharedState(zones.writers["a"].manifest).deletions(TOPIC)) == 1
    land(zones, 0, GONE, "b", only="b")
    done = lake.read("erase", "account", GONE)
    assert [e.state for e in Erasures(catalog).rows()] == ["done"]
    assert done["landed"] == [{"scrubbed": 2, "removed": 4, "waits": []}]
    assert done["served"] == [{"table": served, "deleted": 1, "shown": 1, "left": 0}]
    (left,) = lake.read("erasure", "certify", "account", GONE, code=1)["findings"]
    assert (left["table"], left["referenced"]) == (f"{served}, served", "main")

    land(zones, 3, "c", "d")
    told = lake("erase", "--sweep")
    assert f"`lake serving push {served}`, then `lake serving clean-up {served}`" in " ".join(told.split())
    lake("serving", "push", served, "--file", rows_file(tmp_path, "b"))
    lake("serving", "clean-up", served)
    assert "nowhere" in lake("erasure", "certify", "account", GONE)
    assert lake.read("erase", "--sweep")["served"] == []
    zones.clock = utc_now()
    zones.assert_equal()
    assert GONE not in lake.printed + str(stopped.value)
