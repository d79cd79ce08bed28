"""What needs no server of an engagement lake: its changes and tables as programs read them, and that it is paused.

`benchmarks/home_before.py` has made the lakes: six engagements each, e0 to e5, then a batch without its notification.
"""

import json
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest
from dagster_deltalake import DeltaTableResource
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from lake_assets import LakeError, Settings, lake_resources, read_changes
from lake_assets.definitions import declared
from lake_assets_tests.doors.golden_home import HOMES
from lake_assets_tests.doors.lake_door import LakeDoor
from lake_assets_tests.incremental.receiver import receiver

LAKES = "email_event,meeting_event,voice_insight"
SIX = [("insert", f"e{number}", f"w{number % 3}") for number in range(6)]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeDoor:
    folder = tmp_path_factory.mktemp("changes")
    with tarfile.open(HOMES / "engagement.tar.xz") as packed:
        tables = [member for member in packed if member.name.startswith("home/warehouse/engagement")]
        packed.extractall(folder, members=tables, filter="data")
    return LakeDoor(folder, {"LAKE_LAKES": LAKES})


def test_each_change_is_read_once_and_none_before_its_notification(lake: LakeDoor) -> None:
    for name in ("email_event", "voice_insight"):
        first = lake.json("engagement", "changes", name)
        assert [(row["_change_type"], row["engagement_id"], row["who_id"]) for row in first["rows"]] == SIX
        assert [(told["org_id"], told["inserted"]) for told in first["notifications"]] == [("acme", 6)]
        second = lake.json("engagement", "changes", name, "--since", first["cursor"])
        assert (second["rows"], second["notifications"], second["cursor"]) == ([], [], first["cursor"])
    assert "6 inserted, 0 updated, 0 deleted; the next cursor is 3@" in lake("engagement", "changes", name)


def test_the_call_reads_what_the_command_shows(lake: LakeDoor) -> None:
    settings = Settings(home=lake.home, lakes=LAKES)
    found = read_changes("email_event", None, "acme", settings=settings)
    assert [row["engagement_id"] for row in found.rows.read_all().to_pylist()] == [identity for _, identity, _ in SIX]
    other = read_changes("voice_insight", 0, settings=settings).cursor
    with pytest.raises(LakeError, match="cursor of another table"):
        read_changes("email_event", other, settings=settings)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--since", "x"], "'x' is no cursor."),
        (["--since", "5"], "5 is no cursor of"),
        (["--since", "3@00000000"], "3@00000000 is a cursor of another table"),
        (["--org", "globex"], "The lake email_event has no org 'globex'."),
    ],
)
def test_what_cannot_be_answered_is_refused_in_two_lines(lake: LakeDoor, words: list[str], problem: str) -> None:
    said = lake.refused("engagement", "changes", "email_event", *words)
    assert said.startswith(f"Error: {problem}")
    assert len(said.splitlines()) == 2


@pytest.mark.parametrize("words", [["ingest"], ["maintain"], ["run", "mutation", "--once"]])
def test_no_turn_of_a_paused_lake_begins(lake: LakeDoor, words: list[str]) -> None:
    verb, *rest = words
    assert "paused since" in lake("engagement", "pause", "voice_insight")
    said = lake.refused("engagement", verb, "voice_insight", *rest)
    assert said.startswith("Error: The lake voice_insight is paused since 20")
    assert said.splitlines()[1:] == ["  → Let its turns begin again: `lake engagement resume voice_insight`."]
    assert "voice_insight goes on" in lake("engagement", "resume", "voice_insight")
    assert "paused" not in lake.refused("engagement", verb, "voice_insight", *rest)


def test_the_doctor_says_what_is_paused(lake: LakeDoor) -> None:
    lake("engagement", "pause", "email_event")
    since = lake("engagement", "pause", "email_event").split()[-1]
    said = lake.run("doctor").out
    lake("engagement", "resume", "email_event")
    assert f"email_event is paused since {since}" in said
    assert "is paused" not in lake.run("doctor").out


def test_alerts_tell_of_streams_that_fail_and_of_requests_without_rows(lake: LakeDoor) -> None:
    """Also in a code location that has lakes alone. The batch is what a turn leaves that has died once."""
    table = DeltaTable(str(lake.home / "warehouse" / "engagement" / "voice_insight" / "checkpoint"))
    [row] = [row for row in table.to_pyarrow_table().to_pylist() if row["process"] == "data"][:1]
    stream = f"app_name = '{row['app_name']}'"
    trouble = {"attempts": 2, "commit": "data", "error": "OSError", "suspects": None, "narrowed": None}
    failed = json.dumps({**trouble, "withdrawing": False, "exhausted": False}).replace("'", "''")
    before = table.version()
    table.update(updates={"state": "'intended'", "trouble": f"'{failed}'"}, predicate=stream)
    assert "failed attempts: 2, the last one in commit data: OSError" in lake.run("doctor").out
    with receiver() as hook, dg.instance_for_test() as instance:
        settings = Settings(home=lake.home, lakes=LAKES, pipelines="", alert_webhook=hook.url)
        location, name, cursor = declared(settings).get_repository_def(), "alerts_sensor", None
        for _ in range(2):
            with dg.build_sensor_context(
                instance,
                cursor,
                repository_def=location,
                sensor_name=name,
                resources=lake_resources(settings),
            ) as context:
                cursor = location.get_sensor_def(name).evaluate_tick(context).cursor
            table.update_incremental()
            if table.version() == before + 1:
                table.restore(before)
    told = [(alert["target"], alert["kind"], alert["state"]) for alert in hook.got]
    failing = (row["app_name"], "batch_failed")
    assert sorted(told[:-1]) == sorted([("meeting_event.mutation", "requests_unmet", "open"), (*failing, "open")])
    assert told[-1] == (*failing, "over")


STEPS = [
    ("convert", "1", "2"),
    ("convert", "2", "3"),
    ("convert", "3", "4"),
    ("merge", "5", "4"),
    ("delete", "4", None),
    ("convert", "4", "6"),
    ("convert", "6", "7"),
    ("convert", "7", "6"),
]
"""Requests of one org, an hour apart: a chain, a merge, a deletion, an id that is used again, and a cycle."""


def test_the_graph_of_an_org_shows_chains_merges_cycles_and_where_each_id_ends(lake: LakeDoor) -> None:
    table = DeltaTable(str(lake.home / "warehouse" / "engagement" / "meeting_event" / "mutation_request"))
    schema = pa.schema(table.schema().to_arrow())
    rows = []
    for hour, (op, old_id, new_id) in enumerate(STEPS):
        told = {"org_id": "acme", "request_id": f"step {hour}", "op": op, "old_id": old_id, "new_id": new_id}
        at = {"executed_at": datetime(2026, 3, 1, hour, tzinfo=UTC), "partition": 0, "offset": hour}
        rows.append({**told, **at, "status": "applied", "batch_id": 1})
    write_deltalake(table, pa.Table.from_pylist(rows, schema=schema), mode="append")
    largest, *others = lake.json("engagement", "graph", "meeting_event", "acme")
    assert (largest, len(others)) == ({"id": "1", "ids": 7, "requests": 8}, 3)
    found = lake.json("engagement", "graph", "meeting_event", "acme", "2")
    assert found["ids"] == [str(number) for number in range(1, 8)]
    assert [each["request_id"] for each in found["requests"]] == [f"step {hour}" for hour in range(8)]
    assert (found["merges"], found["cycles"]) == (["4", "6"], [["6", "7"]])
    ends = [(each["old_id"], each["new_id"], each["until"][11:13]) for each in found["ends"]]
    deleted = [(str(number), None, f"{number - 1:02}") for number in (1, 2, 3)]
    assert ends == [*deleted, ("4", None, "04"), ("4", "6", "05"), ("5", None, "03"), ("7", "6", "07")]
    drawn = lake("engagement", "graph", "meeting_event", "acme", "2")
    assert "a cycle: 6, 7" in drawn
    pending = lake.json("engagement", "graph", "meeting_event", "acme", "w9")
    assert (pending["ids"], pending["requests"][0]["status"], pending["ends"]) == (["c9", "w9"], "parked", [])
    assert "4: rows there until 2026-03-01 04:00:00 are deleted" in drawn


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["acme", "nobody"], "No request of acme names the id 'nobody'."),
        (["globex"], "The lake email_event has no org"),
    ],
)
def test_a_graph_of_nothing_is_refused(lake: LakeDoor, words: list[str], problem: str) -> None:
    assert lake.refused("engagement", "graph", "email_event", *words).startswith(f"Error: {problem}")
    assert lake.json("engagement", "graph", "email_event", "acme") == []


VOICE = ["engagement", "voice_insight"]
ORG = dg.StaticPartitionsDefinition(["acme", "o'neil \\ sons"])
OURS = "lake_assets_delta_io_manager"
SEEN: dict[str, Any] = {}
"""What assets were given."""


@dg.asset(key=["reports", "told"], ins={"notification": dg.AssetIn([*VOICE, "notification"])}, io_manager_key=OURS)
def told(notification: pd.DataFrame) -> pd.DataFrame:
    return notification[["org_id", "inserted"]]


@dg.asset(ins={"told": dg.AssetIn(["reports", "told"]), "rows": dg.AssetIn([*VOICE, "engagement"])})
def read(told: pa.Table, rows: pa.Table, lake_assets_voice_insight_engagement: DeltaTableResource) -> None:
    query = (
        QueryBuilder().register("t", lake_assets_voice_insight_engagement.load()).execute("SELECT count(*) AS n FROM t")
    )
    SEEN.update(told=told.to_pylist(), rows=sorted(rows["engagement_id"].to_pylist()), n=pa.table(query.read_all()))


@dg.asset(key=["reports", "by_org"], partitions_def=ORG, metadata={"partition_expr": "org_id"}, io_manager_key=OURS)
def by_org(context: dg.AssetExecutionContext) -> pa.Table:
    SEEN["written"] = SEEN.get("written", 0) + 1
    return pa.table({"org_id": [context.partition_key], "written": [SEEN["written"]]})


@dg.asset(ins={"part": dg.AssetIn(["reports", "by_org"])}, partitions_def=ORG)
def of_one_org(part: pd.DataFrame) -> None:
    SEEN["part"] = part.to_dict("records")


@dg.asset(key=[*VOICE, "engagement_copy"], io_manager_key=OURS)
def in_the_lake() -> pd.DataFrame:
    return pd.DataFrame({"a": [1]})


@pytest.fixture
def location(lake: LakeDoor) -> Iterator[tuple[dg.JobDefinition, dg.DagsterInstance]]:
    """A code location of somebody else, with two tables of a lake."""
    settings = Settings(home=lake.home, lakes=LAKES, spark_remote="sc://127.0.0.1:1")
    of_lake = [dg.AssetSpec([*VOICE, name]).with_io_manager_key(OURS) for name in ("notification", "engagement")]
    own = [told, read, by_org, of_one_org, in_the_lake]
    definitions = dg.Definitions(assets=[*own, *of_lake], resources=lake_resources(settings))
    with dg.instance_for_test() as instance:
        yield definitions.resolve_implicit_global_asset_job_def(), instance


def test_assets_take_tables_by_their_keys_and_become_delta_tables(
    lake: LakeDoor, location: tuple[dg.JobDefinition, dg.DagsterInstance]
) -> None:
    """An erasure has left deletion vectors in the rows of the lake."""
    job, instance = location
    assert job.execute_in_process(instance=instance, asset_selection=[told.key, read.key]).success
    assert SEEN["told"] == [{"org_id": "acme", "inserted": 6}]
    assert (SEEN["rows"], SEEN["n"]["n"].to_pylist()) == (["e0", "e1", "e3", "e4"], [4])
    for org in (*ORG.get_partition_keys(), "acme"):
        done = job.execute_in_process(instance=instance, asset_selection=[by_org.key], partition_key=org)
        assert done.success
        assert "error while computing table stats" not in str(done.all_events)
    table = DeltaTable(str(lake.home / "warehouse" / "engagement" / "reports" / "by_org"))
    assert table.metadata().partition_columns == ["org_id"]
    assert job.execute_in_process(instance=instance, asset_selection=[of_one_org.key], partition_key="acme").success
    assert SEEN["part"] == [{"org_id": "acme", "written": 3}]


def test_no_output_replaces_a_table_of_a_lake(location: tuple[dg.JobDefinition, dg.DagsterInstance]) -> None:
    job, instance = location
    done = job.execute_in_process(instance=instance, asset_selection=[in_the_lake.key], raise_on_error=False)
    [failed] = [event for event in done.all_events if event.is_step_failure]
    assert "would overwrite engagement_copy of the lake voice_insight" in str(failed.step_failure_data.error)
