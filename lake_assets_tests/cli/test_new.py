"""`lake new` writes files that run as they are, overwrites nothing, and refuses names that are none."""

from __future__ import annotations

import importlib
import sys
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from lake_assets.cli.main import app
from lake_assets.cli.new import GRAINS, MODES, NewTable, write
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Pipeline, Sequential, Stateful, Stateless
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.settings import Settings
from lake_assets_tests.matrices import one_now

if TYPE_CHECKING:
    from collections.abc import Iterator

CLASSES = {"stateless": Stateless, "stateful": Stateful, "sequential": Sequential}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python imports from; its modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def new(**changed: Any) -> NewTable:
    words = {"mode": "stateless", "source": "raw.payments", "time_column": "paid_at", "key": "payment_id"}
    return NewTable(**{"table": "core.payment_fact", **words, **changed})


@pytest.mark.parametrize("grain", GRAINS)
@pytest.mark.parametrize("mode", MODES)
def test_the_declaration_is_one_that_the_platform_loads(project: Path, mode: str, grain: str) -> None:
    write(new(mode=mode, grain=grain), project)
    pipeline: Pipeline = open_pipeline(Settings(pipelines="payment_fact:PIPELINE"))
    target = pipeline.target("payment_fact")
    assert target.table == "core.payment_fact"
    assert isinstance(target.mode, CLASSES[mode])
    assert target.grain.name == grain
    assert [raw.table for raw in pipeline.raw] == ["raw.payments"]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", one_now(zip(MODES, cycle(GRAINS))), ids="-".join)
def test_the_written_test_passes_on_a_lake(
    project: Path, chosen: tuple[Any, Any], spark_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode, grain = chosen
    monkeypatch.setenv("LAKE_SPARK_REMOTE", spark_server)
    write(new(mode=mode, grain=grain), project)
    importlib.import_module("test_payment_fact").test_late_rows_reach_their_partitions(project)


def test_the_command_writes_both_files_and_says_what_comes_next(tmp_path: Path) -> None:
    out = tmp_path / "tables"
    options = ["--source", "raw.payments", "--time-column", "paid_at", "--key", "payment_id", "--out", str(out)]
    done = CliRunner().invoke(app, ["new", "payment_fact", "--mode", "stateful", "--grain", "day", *options])
    assert done.exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["payment_fact.py", "test_payment_fact.py"]
    assert "LAKE_PIPELINES=payment_fact:PIPELINE" in done.output
    assert 'grain="day"' in (out / "payment_fact.py").read_text()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_payment_fact.py").write_text("mine")
    with pytest.raises(UsageError, match=r"test_payment_fact\.py would be overwritten"):
        write(new(), tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("test_payment_fact.py", "mine")]


@pytest.mark.parametrize(
    ("changed", "culprit"),
    [
        ({"mode": "hourly"}, "The mode is 'hourly'"),
        ({"grain": "week"}, "The grain is 'week'"),
        ({"table": "core.Payments"}, r"The table is called 'core\.Payments'"),
        ({"table": "core.import"}, r"The table is called 'core\.import'"),
        ({"table": "core.calendar"}, "calendar.py would hide"),
        ({"table": "core.pyspark"}, "pyspark.py would hide"),
        ({"source": "payments"}, "The source is called 'payments'"),
        ({"time_column": "paid at"}, "The time column is called 'paid at'"),
        ({"key": 'id"); import os  # '}, "The key is called"),
        ({"key": "batch_id"}, "The key is called 'batch_id'"),
        ({"key": "paid_at"}, "Key and time column are both 'paid_at'"),
        ({"table": "raw.payments"}, r"Table and source are both 'raw\.payments'"),
    ],
)
def test_a_name_that_cannot_be_is_refused(changed: dict[str, str], culprit: str) -> None:
    with pytest.raises(UsageError, match=culprit):
        new(**changed)
