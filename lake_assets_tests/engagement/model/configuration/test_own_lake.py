"""The page "Add your own lake", played as it is written: its file, its commands, and what they leave."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from typer.testing import CliRunner

from lake_assets.cli.main import app
from lake_assets.demo.engagement_simulator import Simulation, generate, org_names
from lake_assets.engagement.lakes import read_lake
from lake_assets.engagement.tables import ENGAGEMENT, open_tables
from lake_assets.settings import PROJECT, settings
from lake_assets_tests.engagement.oracle import truth

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.settings import Settings

PAGE = (PROJECT / "docs" / "own-lake.md").read_text()
SIMULATION = Simulation(orgs=3, people=60, touches=300)
"""What the page simulates. Its numbers are in the command, too."""


@pytest.fixture
def configured(
    home: Settings, kafka: str, zookeeper: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The file of the page, named by LAKE_LAKES; commands are called in this process, with the session of the test."""
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.S | re.M)
    file = tmp_path / "chat.yaml"
    file.write_text(text)
    named = {"LAKE_HOME": home.home, "LAKE_SPARK_REMOTE": home.spark_remote, "LAKE_LAKES": file}
    for variable, value in {**named, "LAKE_KAFKA": kafka, "LAKE_ZOOKEEPER": zookeeper}.items():
        monkeypatch.setenv(variable, str(value))
    monkeypatch.setattr("lake_assets.connections.spark.open_spark", lambda _: spark)
    settings.cache_clear()
    yield file
    settings.cache_clear()


def commands() -> list[list[str]]:
    """The arguments of each `lake …` of the page's first commands."""
    [block] = re.findall(r"^```\nexport LAKE_LAKES=.*?\n(.*?)^```$", PAGE, re.S | re.M)
    return [line.split()[1:] for line in block.splitlines()]


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_a_fourth_lake_is_simulated_counted_and_shown_by_its_file_alone(configured: Path) -> None:
    lake = read_lake(configured)
    messages = list(generate(SIMULATION, lake))
    expected = truth(messages, lake, org_names(SIMULATION)).rows
    table = open_tables(settings(), lake).location(ENGAGEMENT)
    verbs = []
    for arguments in commands():
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.output
        verbs.append(arguments[1])
        if verbs[-1] == "mutate":
            assert {row["engagement_id"]: (row["org_id"], row["who_id"]) for row in rows(table)} == expected
    assert verbs == ["init", "simulate", "ingest", "mutate", "retain", "metrics", "dashboard"]
    assert_counts_are_of_the_rows(settings().home / "chat_message.html", rows(table))


def rows(table: str) -> list[dict[str, str]]:
    read = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t")
    return pa.table(read.read_all()).to_pylist()


def assert_counts_are_of_the_rows(page: Path, left: list[dict[str, str]]) -> None:
    """The dashboard adds up to the rows that the streams left, each under the name that the file gives it."""
    text = page.read_text()
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.S)[0])
    places = {name: place for place, name in enumerate(data["columns"])}
    shown = {name: sum(cell[place] for cell in data["cells"]) for name, place in places.items()}
    kinds = Counter(row["kind"] for row in left)
    outcomes = Counter(row["outcome"] for row in left)
    assert set(kinds) == {"asked", "opened", "answered", "bounced", "closed"}
    counted = {"asked": kinds["asked"], "answered": kinds["answered"], "conversations": kinds["closed"]}
    counted |= {"solved": outcomes["solved"], "handed_over": outcomes["handed over"]}
    assert {name: shown[name] for name in counted} == counted
    assert min(counted.values()) > 0
    assert re.findall(r"<h3>(.*?)</h3>", text)[0] == "Messages"
