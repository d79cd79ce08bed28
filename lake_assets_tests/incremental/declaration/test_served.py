"""A served table is declared in short, or as Apache Pinot's table configuration says it; in Python and in YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Served, Source, Stateless, incremental_asset

PINOT = {
    "tableName": "sales.orders",
    "tableType": "OFFLINE",
    "segmentsConfig": {"replication": "1", "timeColumnName": "at"},
    "tenants": {},
    "tableIndexConfig": {"loadMode": "MMAP"},
    "ingestionConfig": {
        "batchIngestionConfig": {
            "segmentIngestionType": "REFRESH",
            "segmentIngestionFrequency": "DAILY",
            "consistentDataPush": True,
        }
    },
    "quota": {"storage": "1.5G"},
    "metadata": {},
}
DECLARED = Served("sales.orders", frequency="DAILY", quota="1.5G")


def declared(served: Any) -> Served | None:
    """As a target declares it."""

    def order_fact(session: object, orders: Any) -> Any:
        return orders

    declare = incremental_asset(
        mode=Stateless(),
        sources=[Source("raw.orders", time_column="at")],
        key="order_id",
        time_column="at",
        columns={"order_id": "string", "at": "timestamptz"},
        served=served,
    )
    return declare(order_fact).served


def changed(*path: str, value: object) -> dict[str, Any]:
    """The configuration with another value; None removes it."""
    found: dict[str, Any] = json.loads(json.dumps(PINOT))
    inner = found
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    if value is None:
        del inner[path[-1]]
    return found


def batches(key: str, value: object) -> dict[str, Any]:
    return changed("ingestionConfig", "batchIngestionConfig", key, value=value)


def test_the_short_form_and_pinots_say_the_same(tmp_path: Path) -> None:
    assert declared(True) == Served()
    assert declared(False) is None
    assert declared(DECLARED) == declared(PINOT) == DECLARED
    assert DECLARED.quota_bytes == 1024**3 * 3 // 2
    (tmp_path / "orders.json").write_text(json.dumps(PINOT))
    assert declared(tmp_path / "orders.json") == declared(str(tmp_path / "orders.json")) == DECLARED
    assert declared(changed("tableName", value="sales.orders_OFFLINE")) == DECLARED
    assert declared({"OFFLINE": PINOT}) == DECLARED
    assert declared({"tableName": "orders-eu"}) == Served("orders-eu")
    old = changed("segmentsConfig", value={"segmentPushType": "REFRESH", "segmentPushFrequency": "HOURLY"})
    del old["ingestionConfig"]
    assert declared(old) == Served("sales.orders", frequency="HOURLY", quota="1.5G")


@pytest.mark.parametrize(
    ("quota", "size"), [("1", 1), ("10 B", 10), ("2K", 2048), ("3mb", 3 * 1024**2), ("0.5T", 1024**4 // 2)]
)
def test_quotas_are_written_as_in_pinot(quota: str, size: int) -> None:
    assert Served(quota=quota).quota_bytes == size


@pytest.mark.parametrize(
    ("served", "told", "remedy"),
    [
        (batches("segmentIngestionType", "APPEND"), "of sales.orders has the segmentIngestionType APPEND", "REFRESH"),
        (changed("tableType", value="REALTIME"), "of sales.orders has the tableType REALTIME", "Write OFFLINE"),
        (changed("tableName", value="orders_REALTIME"), "of orders_REALTIME has the tableType REALTIME", "OFFLINE"),
        (batches("consistentDataPush", False), "of sales.orders has consistentDataPush: false", "true"),
        (batches("consistentDataPush", "FALSE"), "consistentDataPush: false", "true"),
        (batches("segmentIngestionFrequency", "WEEKLY"), "frequency 'WEEKLY'", "HOURLY or DAILY"),
        (changed("quota", "storage", value="much"), "quota 'much'", '"10G"'),
        (changed("quota", value="1G"), "has quota: '1G'", "keys of quota"),
        (changed("tableName", value=None), "has no tableName", '"tableName"'),
        (changed("tableName", value="a b"), "is called 'a b'", "letters"),
        ("nowhere.json", "nowhere.json, a table configuration of Pinot, cannot be read", "JSON or YAML"),
        ("yes", "served= of core.order_fact is 'yes'", "served=True"),
        (3, "served= of core.order_fact is 3", "served=True"),
    ],
)
def test_what_is_no_whole_snapshot_is_refused_by_name(served: Any, told: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declared(served)
    assert told in caught.value.problem
    assert remedy in caught.value.remedy
