"""Change data capture as it comes: deletions with nothing but a key, several changes at one time, ties."""

from __future__ import annotations

from typing import Any

from lake_assets_tests.doors.lake_door import LakeDoor

ACCOUNTS = """account_id,city,op,updated_at
a1,Bonn,C,2026-01-01T01:00:00Z
a2,Kiel,C,2026-01-01T01:00:00Z
a3,Ulm,C,2026-01-01T01:00:00Z
"""
DELETED = """account_id,city,op,updated_at
a1,,D,
a3,,D,
"""
AGAIN = """account_id,city,op,updated_at
a3,Mainz,C,2026-01-01T02:00:00Z
"""


def accounts(table: str, raw: str, **source: Any) -> dict[str, Any]:
    """A table that keeps the last version of an account."""
    return {
        "table": f"core.{table}",
        "mode": "stateless",
        "sources": [
            {
                "table": f"raw.{raw}",
                "time_column": "updated_at",
                "key": "account_id",
                "keep": "last",
                "deleted": "op = 'D'",
                "name": "accounts",
                **source,
            }
        ],
        "key": "account_id",
        "time_column": "updated_at",
        "sql": "SELECT account_id, city, updated_at FROM accounts",
        "audits": ["source_target_counts", "no_missing_events", "unique_key"],
    }


COLUMNS = {"account_id": "string", "city": "string", "op": "string", "updated_at": "timestamptz"}


def cities(lake: LakeDoor, table: str) -> dict[str, str]:
    return {row["account_id"]: row["city"] for row in lake.rows(table)}


def test_changes_without_an_order_or_with_the_same(lake: LakeDoor) -> None:
    lake.declare(
        accounts("account", "accounts", columns=COLUMNS, order_by="updated_at"),
        accounts("by_time", "changes", columns={**COLUMNS, "position": "long"}, order_by="updated_at"),
        accounts("by_position", "changes", order_by=["updated_at", "position"]),
    )
    lake("init")
    lake.land("raw.accounts", ACCOUNTS)
    # Two changes of each account at one time: c0 and c1 move, c2 and c3 are deleted.
    changes = ["account_id,city,op,updated_at,position"]
    for number in range(4):
        changes.append(f"c{number},Bonn,C,2026-01-01T01:00:00Z,{number}")
    for number in range(4):
        moved = "Kiel,U" if number < 2 else ",D"
        changes.append(f"c{number},{moved},2026-01-01T01:00:00Z,{number + 4}")
    lake.land("raw.changes", "\n".join(changes) + "\n")
    said = lake("catch-up")
    assert cities(lake, "core.by_position") == {"c0": "Kiel", "c1": "Kiel"}
    assert "ties: 4 tied" in said.partition("core.by_time")[2]
    assert said.count("ties:") == 1, "one table alone has ties"

    lake.land("raw.accounts", DELETED)
    lake("catch-up")
    assert cities(lake, "core.account") == {"a2": "Kiel"}
    assert lake.rows("etl.quarantine") == []
    lake.land("raw.accounts", AGAIN)
    lake("catch-up")
    assert cities(lake, "core.account") == {"a2": "Kiel", "a3": "Mainz"}
    lake("verify")
