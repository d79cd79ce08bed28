"""Landed files, engagement lakes and served tables that the version before has left unfinished.

`benchmarks/home_before.py` has made them, with the data of their Kafka and ZooKeeper, and says where each one stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from lake_assets_tests.doors.golden_home import GoldenLake
from lake_assets_tests.packed_servers import servers_of

pytestmark = [pytest.mark.journey, pytest.mark.timeout(1800)]
Unpack = Callable[..., GoldenLake]


@pytest.fixture
def unpack(tmp_path: Path, s3: str) -> Iterator[Unpack]:
    """Unpacks a home, and runs the servers whose data it has."""
    with ExitStack() as stack:

        def unpacked(name: str, **environment: str) -> GoldenLake:
            lake = GoldenLake.unpack(name, tmp_path, s3, **environment)
            lake.environment.update(stack.enter_context(servers_of(lake.home)))
            return lake

        yield unpacked


def test_landing_goes_on(unpack: Unpack, spark_server: str) -> None:
    lake = unpack("landing", LAKE_SPARK_REMOTE=spark_server, LAKE_LANDING_FILE_MESSAGES="5")
    lake("landing", "run", "--once", "--no-heartbeats")
    lake("landing", "compact", "raw.signups")
    for account in ("a3", "a4"):
        lake("erase", "account", account)
        assert lake.json("erasure", "certify", "account", account)["nowhere"]
    lake("landing", "run", "--once", "--no-heartbeats")  # what one zone had scrubbed can be compared only now
    lake("catch-up")
    right = sorted((f"s{number}", f"a{number % 5}") for number in range(48) if number % 5 < 3)
    for table in ("raw.signups", "core.signup_fact"):
        assert sorted((row["signup_id"], row["account_id"]) for row in lake.rows(table)) == right
    lake("landing", "verify")
    zones: dict[str, Counter[str]] = {"a": Counter(), "b": Counter()}
    for shard in lake.json("landing", "status"):
        assert not shard["provisional"] + shard["quarantined"]
        zones[shard["zone"]][shard["shard"]] += shard["records"]
    assert zones["a"] == zones["b"]
    assert sorted(zones["a"].values()) == [2, len(right)], "the dead letters, and the records of all others"


def turn(lake: GoldenLake, verb: str, name: str) -> Any:
    return lake("engagement", verb, name, LAKE_WAREHOUSE=f"file://{lake.home / 'warehouse'}")


def delta(lake: GoldenLake, name: str, table: str, columns: str) -> list[tuple[Any, ...]]:
    """Rows of a table of an engagement lake, sorted."""
    found = DeltaTable(str(lake.home / "warehouse" / "engagement" / name / table))
    rows = pa.table(QueryBuilder().register("t", found).execute(f"select {columns} from t").read_all())
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def people(lake: GoldenLake, name: str) -> str:
    """The engagements of a lake, and whose they are."""
    return " ".join(f"{each}:{who}" for each, who in delta(lake, name, "engagement", "engagement_id, who_id"))


LETTERS = {
    "email_event": [
        (("email_event.ingestion", "missing field org_id"), 1),
        (("email_event.ingestion", "not JSON"), 1),
        (("email_event.ingestion", "repeated"), 2),
    ],
    "meeting_event": [
        (("meeting_event.ingestion", "not JSON"), 1),
        (("meeting_event.ingestion", "repeated"), 1),
        (("meeting_event.mutation", "not JSON"), 1),
    ],
    "voice_insight": [
        (("voice_insight.ingestion", "not JSON"), 1),
        (("voice_insight.ingestion", "repeated"), 1),
    ],
}
"""Lake → topic and reason → its dead letters."""


def test_open_batches_are_finished_once(unpack: Unpack, spark_server: str) -> None:
    lake = unpack("engagement", LAKE_SPARK_REMOTE=spark_server, LAKE_LAKES="email_event,meeting_event,voice_insight")
    turn(lake, "ingest", "email_event")
    assert people(lake, "email_event") == "e0:w0 e1:w1 e2:w2 e3:w0 e4:w1 e5:w2 e6:w1 e7:w9"
    turn(lake, "mutate", "meeting_event")
    assert people(lake, "meeting_event") == "e0:w0 e1:c1 e2:w0 e3:w0 e4:c1 e5:w0"
    turn(lake, "retain", "voice_insight")
    assert people(lake, "voice_insight") == "e0:w0 e1:w1 e3:w0 e4:w1"
    letters = {name: Counter(delta(lake, name, "dead_letter", "topic, reason")) for name in LETTERS}
    assert letters == {name: Counter(dict(right)) for name, right in LETTERS.items()}
    assert delta(lake, "meeting_event", "mutation_request", "request_id, status, attempts") == [
        ("convert-w1", "applied", 1),
        ("convert-w9", "parked", 1),
        ("merge-w2", "applied", 1),
    ]


COUNTED = "select number, count(*) as n, cast(sum(id) as bigint) as ids from {} group by number"
WHOLE = 40, sum(range(40))
"""Rows and sum of the ids of each snapshot."""


def test_a_half_push_is_repeated_or_reverted(unpack: Unpack) -> None:
    lake = unpack("serving")

    def seen(table: str) -> Any:
        return lake.json("serving", "query", table, COUNTED.format(table))["rows"]

    assert [seen(table) for table in ("numbers", "other_numbers", "whole_numbers")] == [[[2, *WHOLE]]] * 3
    file = lake.folder / "rows.parquet"
    pq.write_table(pa.table({"id": range(40), "number": [4] * 40}), file)
    lake.refused("serving", "push", "numbers", "--file", file)
    lake("serving", "push", "numbers", "--file", file, "--force")
    assert seen("numbers") == [[4, *WHOLE]]

    half, second = lake.json("serving", "lineage", "other_numbers")[:2]
    assert (half["state"], second["state"]) == ("IN_PROGRESS", "COMPLETED")
    lake("serving", "revert", "other_numbers", half["id"], "--force")
    assert seen("other_numbers") == [[2, *WHOLE]]

    second = lake.json("serving", "lineage", "whole_numbers")[0]
    lake("serving", "revert", "whole_numbers", second["id"])
    assert seen("whole_numbers") == [[1, *WHOLE]]
    lake("serving", "verify")
