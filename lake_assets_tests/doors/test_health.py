"""Whether targets are well: every way of looking says the same, whatever the trouble is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from lake_assets_tests.doors.lake_door import LakeDoor

BEGINNING = """
from datetime import timedelta

from lake_assets import Pipeline, RawTable, Source, Stateless, audits, incremental_asset

COLUMNS = {"row_id": "string", "amount": "long", "seen_at": "timestamptz"}
RAW = [RawTable(f"raw.{name}", COLUMNS, time_column="seen_at", feed=False) for name in ("visits", "gone")]
VISITS, GONE = (Source(raw.table, time_column="seen_at", key="row_id") for raw in RAW)
OWN = dict(mode=Stateless(), key="row_id", time_column="seen_at", columns=COLUMNS)
"""
TARGET = """

@incremental_asset(sources=[{source}], **OWN{attributes})
def {name}_fact(session, rows):
    {body}
"""
ROWS = "return rows.select(*COLUMNS)"
NAMES = ("good", "broken", "audited", "lost", "late", "slow")


def declared(**changed: dict[str, str]) -> str:
    """A module of six targets. changed: of each, what differs from a target that is well."""
    text = BEGINNING
    for name in NAMES:
        own = {"name": name, "source": "VISITS", "attributes": "", "body": ROWS}
        text += TARGET.format(**{**own, **changed.get(name, {})})
    targets = ", ".join(f"{name}_fact" for name in NAMES)
    return f'{text}\n\nPIPELINE = Pipeline(raw=tuple(RAW), targets=({targets}), start="2026-01-01-00:00")\n'


WRONG = {
    "broken": {"body": 'raise ValueError("secret-value")'},
    "audited": {"attributes": ', audits=[audits.not_null("amount")]'},
    "lost": {"source": "GONE"},
    "late": {"source": "GONE", "attributes": ", max_delay=timedelta(days=100_000)"},
    "slow": {"attributes": ", max_delay=timedelta(minutes=5)"},
}
HEADER = "row_id,amount,seen_at"


def said(lake: LakeDoor) -> dict[str, set[str]]:
    """Way of looking → the targets that it calls wrong. Each ends with exit code 1 if there are any, else with 0."""

    def named(texts: list[str]) -> set[str]:
        return {name for name in NAMES if any(f"core.{name}_fact" in text for text in texts)}

    status = lake.run("status")
    found = {"status": named([line for line in status.err.splitlines() if line.startswith("Error: ")])}
    doctor = lake.run("doctor", "--json")
    diagnosed: dict[str, Any] = json.loads(doctor.out)
    wrong = [each["text"] for each in diagnosed["findings"] if (each["check"], each["level"]) == ("targets", "error")]
    found["doctor"] = named(wrong)
    report = lake.run("report", "--json")
    verdict = json.loads(report.out)["verdict"]
    found["report"] = named([each["problem"] for each in verdict["wrong"]])
    for way, done in (("status", status), ("report", report)):
        assert done.code == int(bool(found[way])), f"{way}: {done.text}"
    assert doctor.code == int(not diagnosed["ok"]), doctor.text
    assert len({frozenset(targets) for targets in found.values()}) == 1, found
    return found


def test_every_way_of_looking_calls_the_same_targets_wrong(lake: LakeDoor) -> None:
    lake.declare_in_python(declared(**WRONG))
    lake("init")
    lake.land("raw.gone", f"{HEADER}\ng1,1,2026-01-01T00:05:00Z\n", through="2026-01-01-00:00")
    lake("catch-up", "lost_fact", "late_fact")
    lake.land("raw.visits", f"{HEADER}\nr1,,2026-01-01T00:05:00Z\n", through="2026-01-01-00:00")
    for _ in range(2):
        failed = lake.run("catch-up")
        assert failed.code == 1
    assert said(lake)["status"] == {"broken", "audited", "slow"}
    status = lake.run("status").err
    assert "core.broken_fact: session" in status
    assert "failed, 2 times: ValueError." in status
    assert "secret-value" not in status, "the message of an error may name values of rows, and is not stored"

    lake.catalog.drop_table("raw.gone")
    lake.catalog.drop_table("core.good_fact")
    assert said(lake)["status"] == {"good", "broken", "audited", "lost", "late", "slow"}
    verified = lake.run("verify")
    assert [name for name in NAMES if f"core.{name}_fact" in verified.err] == ["good", "lost", "late"], verified.text

    lake.declare_in_python(declared())
    lake.run("catch-up")
    lake("rebuild", "good_fact", "--reset")
    lake("catch-up")
    assert said(lake)["status"] == set()


def test_a_table_that_cannot_be_read_stops_its_own_target_alone(lake_without_spark: LakeDoor) -> None:
    lake = lake_without_spark
    lake.home.mkdir()
    catalog = lake.catalog
    catalog.create_namespace("prod")
    schema = Schema(NestedField(1, "row_id", StringType()), NestedField(2, "seen_at", TimestamptzType()))
    for name in ("kept", "lost", "renamed", "cut", "damaged"):
        catalog.create_table(f"prod.{name}", schema)
    lake.declare_in_python(
        """
from lake_assets import Pipeline, RawTable, Source, Stateless, incremental_asset
COLUMNS = {"row_id": "string", "seen_at": "timestamptz"}
NAMES = ("kept", "lost", "renamed", "cut", "damaged")
def fact(name):
    def function(session, rows):
        return rows
    function.__name__ = f"{name}_fact"
    source = Source(f"prod.{name}", time_column="seen_at", key="row_id")
    own = dict(key="row_id", time_column="seen_at", columns=COLUMNS)
    return incremental_asset(mode=Stateless(), sources=[source], **own)(function)
RAW = [RawTable(f"prod.{name}", time_column="seen_at", complete_after="1 hour") for name in ("renamed", "cut")]
PIPELINE = Pipeline(raw=tuple(RAW), targets=tuple(map(fact, NAMES)), start="2026-01-01-00:00")
"""
    )
    lake("init")
    catalog.drop_table("prod.lost")
    with catalog.load_table("prod.renamed").update_schema() as update:
        update.rename_column("seen_at", "at")
    cut = catalog.load_table("prod.cut")
    cut.append(cut.schema().as_arrow().empty_table())
    snapshot = cut.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    Path(catalog.load_table("core.damaged_fact").metadata_location.removeprefix("file://")).unlink()
    catalog.drop_table("core.kept_fact")
    shown = {
        "init": "created core.kept_fact",
        "catch-up": "core.kept_fact: no new snapshot",
        "maintain": "core.kept_fact",
        "migrate": "The columns of the other tables are as declared.",
    }
    for command, kept in shown.items():
        done = lake.run(command)
        assert done.code == 1, done.text
        assert kept in done.out
        assert "core.damaged_fact cannot be read, because its file file://" in done.err
        if command in ("init", "catch-up"):
            assert "core.lost_fact" in done.err
            assert "prod.lost" in done.err
            assert "prod.renamed has no column 'seen_at'" in done.err
            assert f"There is no file {snapshot.manifest_list.removeprefix('file://')}." in done.err
