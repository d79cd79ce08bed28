"""What Spark finds in queries, without rows: each mistake is two lines that name file, line and table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.sql.files import read_columns
from lake_assets_tests.incremental.sql.folders import BALANCES, PAYMENTS, check_all, payments, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

START = "2026-01-01-00:00"
KEYS = "SELECT payment_id, account_id, event_ts AS paid_at"
TYPES = "Convert its values with CAST(... AS type)."
NEAR = "Correct it there, or in the words before it."
TIMESTAMP = "Make it a timestamp with a time zone: CAST(... AS timestamp) AS paid_at."

REFUSED = {
    f"{KEYS},\n  amuont\nFROM payments": (
        "2: core.payment_fact: the column 'amuont' does not exist.",
        "Did you mean 'amount'? There are also: account_id, event_ts, batch_id, landed_at.",
    ),
    f"{KEYS}\nFROM payments p\nWHERE q.amount > 1": (
        "3: core.payment_fact: the column 'q.amount' does not exist.",
        "Did you mean 'p.amount'? There are also: p.account_id, p.event_ts, p.batch_id, p.landed_at.",
    ),
    f"{KEYS},\n  summ(amount) AS amount\nFROM payments": (
        "2: core.payment_fact: there is no function 'summ'.",
        "Did you mean 'sum'?",
    ),
    f"{KEYS},\n  amount + array(1) AS amount\nFROM payments": (
        '2: core.payment_fact: Spark refuses the query: Cannot resolve "(amount + array(1))" due to data type mismatch:'
        ' the left and right operands of the binary operator have incompatible types ("BIGINT" and "ARRAY<INT>").',
        TYPES,
    ),
    f"{KEYS},\n  account_id / payment_id AS amount\nFROM payments": (
        '2: core.payment_fact: Spark refuses the query: Cannot resolve "(account_id / payment_id)" due to data type'
        ' mismatch: the binary operator requires the input type ("DOUBLE" or "DECIMAL"), not "STRING".',
        TYPES,
    ),
    f"{KEYS} FROM payments WHERE amount": (
        "1: core.payment_fact: the condition amount is BIGINT and not BOOLEAN.",
        "Compare it with a value.",
    ),
    "SELECT payments.payment_id,\n  amount\nFROM payments JOIN payments p ON p.payment_id = payments.payment_id": (
        "2: core.payment_fact: the column 'amount' is in more than one table.",
        "Write which one: p.amount, payments.amount.",
    ),
    f"{KEYS},\n  sum(amount) AS amount\nFROM payments": (
        "1: core.payment_fact: there is an aggregate beside other columns, and no GROUP BY.",
        "Add GROUP BY ALL, or OVER (...) after the aggregate.",
    ),
    "SELECT sum(amount) AS amount,\n  account_id\nFROM payments\nGROUP BY payment_id": (
        "2: core.payment_fact: account_id is neither aggregated nor in GROUP BY.",
        "Add it to GROUP BY, or select any_value(account_id).",
    ),
    f"{KEYS}\nFROM payments\nGROUP BY 9": (
        "3: core.payment_fact: GROUP BY 9 counts columns of the query, which has 3.",
        "Use a number up to 3, or the names of columns.",
    ),
    f"{KEYS} FROM payments WHERE sum(amount) > 1": (
        "1: core.payment_fact: the condition (sum(amount) > 1) has an aggregate or a window function.",
        "Use HAVING for aggregates, and QUALIFY or a subquery for window functions.",
    ),
    f"{KEYS}, row_number() AS number FROM payments": (
        "1: core.payment_fact: row_number() has no OVER clause.",
        "Add OVER (... ORDER BY ...).",
    ),
    f"{KEYS} FROM payments\nUNION ALL\nSELECT payment_id FROM payments": (
        "1: core.payment_fact: the parts of UNION have 3 and 1 columns.",
        "Select the same columns in each part, in the same order.",
    ),
    f"{KEYS}, substr(amount, 1, 2, 3) AS part FROM payments": (
        "1: core.payment_fact: the function 'substr' is called with 4 arguments; possible: 2, 3.",
        "Correct the call.",
    ),
    f"{KEYS}, CAST(amount AS moneyy) AS amount FROM payments": (
        "1: core.payment_fact: there is no type MONEYY.",
        "Use a type of Spark SQL, such as bigint or string.",
    ),
    f"{KEYS}, :amount AS amount FROM payments": (
        "1: core.payment_fact: there is a parameter, such as :name or ?.",
        "Write its value: a query has no parameters.",
    ),
    f"{KEYS},\nFROM payments": (
        "2: core.payment_fact: there is a comma after the last column.",
        "Remove it.",
    ),
    f"{KEYS}\nFROM payments\nWHERE amount > > 1": ("3: core.payment_fact: the syntax is wrong near '>'.", NEAR),
    f"{KEYS}\nFORM payments": ("2: core.payment_fact: the syntax is wrong near 'FORM'.", NEAR),
    f"{KEYS}\nFROM payments\nWHERE amount >": (
        "3: core.payment_fact: the query ends where more must follow.",
        "Complete it: an expression, or a closing bracket.",
    ),
    f"{KEYS}\nFROM payments)": (
        "2: core.payment_fact: the query closes a bracket that it has not opened.",
        "Remove one ')'.",
    ),
    "SELECT\nFROM payments": (
        "1: core.payment_fact: the query selects no column.",
        "Name its columns after SELECT.",
    ),
    "-- rows\nDELETE FROM payments": (
        "2: core.payment_fact: the query is no SELECT: it begins with 'DELETE'.",
        "Write one SELECT, which may begin with WITH.",
    ),
    f"{KEYS} FROM payments;\nSELECT 1": (
        "1: core.payment_fact: the query has more than one statement.",
        "Write one SELECT, without ';'.",
    ),
    f"{KEYS},\n  NULL AS note\nFROM payments": (
        "2: the column 'note' of core.payment_fact is an untyped NULL.",
        "Give it a type: CAST(NULL AS string) AS note.",
    ),
    f"{KEYS},\n  array(1) AS parts\nFROM payments": (
        "2: the column 'parts' of core.payment_fact is array<int>, which a table of SQL cannot store.",
        "Select its parts, or its text: to_json(parts) AS parts, or CAST(parts AS string).",
    ),
    f"{KEYS}, amount * 2 FROM payments": (
        "1: column 4 of the query of core.payment_fact is called '(amount * 2)'.",
        "Give it a name of lower-case letters, digits and _: add AS name.",
    ),
    f"{KEYS},\n  amount AS Paid_at\nFROM payments": (
        "2: the query of core.payment_fact selects the column 'paid_at' more than once.",
        "Give the others another name, or remove them.",
    ),
    "SELECT payment_id, account_id,\n  CAST(event_ts AS string) AS paid_at\nFROM payments": (
        "2: the time column 'paid_at' of core.payment_fact is string.",
        TIMESTAMP,
    ),
    "SELECT payment_id, account_id,\n  CAST(event_ts AS timestamp_ntz) AS paid_at\nFROM payments": (
        "2: the time column 'paid_at' of core.payment_fact is timestamp.",
        TIMESTAMP,
    ),
}
MISSING = {
    "SELECT account_id, event_ts AS paid_at FROM payments": (
        "line 11: core.payment_fact has the key 'payment_id', which the query at {sql}:1 does not select.",
        "Select it, or name another column. Did you mean 'account_id'? Otherwise name one of: account_id, paid_at.",
    ),
    "SELECT payment_id, account_id, event_ts FROM payments": (
        "line 12: core.payment_fact has the time column 'paid_at', which the query at {sql}:1 does not select.",
        "Select it, or name another column. Name one of: payment_id, account_id, event_ts.",
    ),
}
EVERY_RUN = "the value changes with every run, so a rebuilt hour never equals the published one"


def test_mistakes_in_a_query_name_the_line(tmp_path: Path, spark: SparkSession) -> None:
    file = tmp_path / "payment_fact" / "defs.yaml"
    sql = file.with_name("payment_fact.sql")
    expected = {query: (f"{sql}:{problem}", remedy) for query, (problem, remedy) in REFUSED.items()}
    for query, (problem, remedy) in MISSING.items():
        expected[query] = (f"{file}, {problem.format(sql=sql)}", remedy)
    for query, (problem, remedy) in expected.items():
        payments(tmp_path, sql=query)
        with pytest.raises(ConfigurationError) as refused:
            check_all(tmp_path, lambda: spark, start=START)
        assert str(refused.value).splitlines() == [problem, f"  → {remedy}"], query
        assert not file.with_name("payment_fact.columns.json").exists()

    payments(tmp_path, declaration=PAYMENTS.replace("amount < 0", "amuont < 0"))
    with pytest.raises(ConfigurationError) as refused:
        check_all(tmp_path, lambda: spark, start=START)
    assert refused.value.problem == (
        f"{file}, line 9: in the rule 'amount is negative' of raw.payments, the column 'amuont' does not exist."
    )

    uncataloged = PAYMENTS.replace("      columns: {payment_id: string", "      # {payment_id: string")
    payments(tmp_path, declaration=uncataloged)
    with pytest.raises(ConfigurationError, match=r"line 6: .* reads raw.payments, which is neither declared nor in"):
        check_all(tmp_path, lambda: spark, start=START)


def test_what_works_and_may_not_be_meant_is_a_warning(tmp_path: Path, spark: SparkSession) -> None:
    local = "CAST('2026-01-01' AS timestamp_ntz) AS local"
    payments(tmp_path, sql=f"{KEYS}, amount, {local}, uuid() AS kind FROM payments WHERE event_ts < now(); -- the end")
    write(tmp_path, "balance_dim", BALANCES.replace("balance: long", "balance: int"))
    with pytest.raises(ConfigurationError, match=r"'balance' of core.balance_dim is long, and declared as int"):
        check_all(tmp_path, lambda: spark, start=START)
    stored = read_columns(tmp_path / "payment_fact" / "payment_fact.columns.json")
    assert stored is not None
    assert stored.columns == {
        "payment_id": "string",
        "account_id": "string",
        "paid_at": "timestamptz",
        "amount": "long",
        "local": "timestamp",
        "kind": "string",
    }
    assert (stored.lineage["paid_at"], stored.lineage["kind"]) == (("raw.payments.event_ts",), ())
    write(tmp_path, "balance_dim", "type: other.Component\n")
    (checked,), _ = check_all(tmp_path, lambda: spark, start=START)
    without_zone = "local is TIMESTAMP_NTZ, which has no time zone; to_timestamp_ltz or CAST gives it one"
    assert checked.warnings == (f"now(), uuid(): {EVERY_RUN}", without_zone)
