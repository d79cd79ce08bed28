"""Which tables a query reads and where its columns come from, by the query alone."""

from __future__ import annotations

import pytest

from lake_assets.incremental.sql.lineage import column_lineage, tables_read

TABLES = {"p": "raw.payments", "accounts": "core.account_dim"}
SCHEMAS = {
    "p": ["payment_id", "account_id", "amount", "event_ts"],
    "accounts": ["account_id", "name"],
    "previous": ["account_id", "balance"],
    "session_hours": ["hour"],
}
LINEAGE = {
    "SELECT amount + 1 AS x FROM p": ("raw.payments.amount",),
    "SELECT 'a' AS x FROM p": (),
    "SELECT a.name AS x FROM p JOIN accounts a USING (account_id)": ("core.account_dim.name",),
    "WITH q AS (SELECT *, amount * 2 AS x FROM p) SELECT x FROM q": ("raw.payments.amount",),
    "SELECT sum(amount) OVER (PARTITION BY account_id) AS x FROM p": (
        "raw.payments.account_id",
        "raw.payments.amount",
    ),
    "SELECT balance AS x FROM previous UNION ALL SELECT amount FROM p": ("raw.payments.amount",),
    "SELECT h.hour AS x FROM session_hours h": (),
    "SELECT count(*) AS x FROM p": (),
}


@pytest.mark.parametrize("query", LINEAGE)
def test_columns_come_from_source_columns(query: str) -> None:
    found = column_lineage(query, ("x",), TABLES, SCHEMAS)
    assert (found.sources, found.unknown) == ({"x": LINEAGE[query]}, ())


def test_what_cannot_be_told_is_unknown() -> None:
    found = column_lineage("SELECT amount AS x, y FROM p", ("x", "y", "z"), TABLES, SCHEMAS)
    assert found.unknown == ("y", "z")
    assert found.sources == {"x": ("raw.payments.amount",), "y": (), "z": ()}
    assert column_lineage("SELECT FROM WHERE", ("x",), TABLES, SCHEMAS).unknown == ("x",)


def test_tables_that_a_query_reads() -> None:
    query = "WITH a AS (SELECT * FROM p) SELECT * FROM a WHERE x IN (SELECT y FROM lake.core.b) -- FROM c"
    assert tables_read(query) == ("lake.core.b", "p")
    assert tables_read("FROM p |> SELECT amount") == ("p",)
    assert tables_read("SELECT (") is None
