"""The ten minutes of README.md: its YAML and its CSV are read out of it, and do what it says."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lake_assets.cli.main import app
from lake_assets.connections.catalog import open_catalog
from lake_assets.incremental.engine.iceberg import load
from lake_assets.settings import PROJECT, Settings, settings

README = (PROJECT / "README.md").read_text()
LATE = "payment_id,account_id,amount,event_ts\np4,a2,2.25,2026-01-01T00:07:00Z\n"


def block(pattern: str) -> str:
    """The only block of README.md whose text matches."""
    (found,) = re.findall(rf"^```\w*\n({pattern}.*?)^```$", README, re.S | re.M)
    return str(found)


@pytest.mark.slow
def test_a_table_of_your_own_in_ten_minutes(tmp_path: Path, home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "payment_fact.yaml").write_text(block("type: lake_assets.IncrementalTable"))
    (tmp_path / "payments.csv").write_text(block("payment_id,"))
    (tmp_path / "late.csv").write_text(LATE)
    shown = block(r"\$ lake init")
    monkeypatch.chdir(tmp_path)
    for name, value in {"HOME": home.home, "SPARK_REMOTE": home.spark_remote, "PIPELINES": "tables"}.items():
        monkeypatch.setenv(f"LAKE_{name}", str(value))
    settings.cache_clear()
    try:
        created = lake("init")
        assert all(line in created for line in ("analysed core.payment_fact\n", "6 tables created.\n"))
        land = "land raw.payments payments.csv --through 2026-01-01-02:00"
        assert f"$ lake {land}\n{lake(land)}" in shown
        built = lake("catch-up").splitlines()[0].rpartition(";")[0]
        assert f"$ lake catch-up\n{built}" in shown
        lake("land raw.payments late.csv")
        assert "append 2026-01-01-00:00 (1 rows read" in lake("catch-up")
    finally:
        settings.cache_clear()
    rows = load(open_catalog(home), "core.payment_fact").scan().to_arrow()
    amounts = dict(zip(rows["payment_id"].to_pylist(), rows["amount"].to_pylist(), strict=True))
    assert amounts == {"p1": Decimal("10.00"), "p3": Decimal("7.50"), "p4": Decimal("2.25")}


def lake(command: str) -> str:
    """What a command prints; it must succeed."""
    done = CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output
