"""Folders of YAML without Spark: what they declare, what is stored of a query, and mistakes with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lake_assets.base.described import Refusal
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration import Defer, Rule, Sequential, Served, Stateful, Subject
from lake_assets.incremental.declaration.model import Audit
from lake_assets.incremental.engine import audits
from lake_assets.incremental.from_settings import open_pipeline
from lake_assets.incremental.sql.files import SqlText, StoredColumns, columns_file, fingerprint, write_columns
from lake_assets.incremental.sql.folder import declared_audit, open_folder
from lake_assets.incremental.sql.query import place_in_query, query_text
from lake_assets.settings import Settings
from lake_assets_tests.incremental.sql.folders import (
    BALANCES,
    PAYMENTS,
    PAYMENTS_SQL,
    TOTALS,
    check_all,
    open_all,
    payments,
    pipeline_of,
    write,
)

START = "2026-01-01-00:00"

OF_QUERY = {
    "core.payment_fact": {
        "payment_id": "string",
        "account_id": "string",
        "amount": "long",
        "paid_at": "timestamptz",
    },
    "core.balance_dim": {"balance_hour": "timestamptz", "account_id": "string", "balance": "long"},
    "core.payments_hourly": {"paid_hour": "timestamptz", "account_id": "string", "payments": "long"},
}


def store(folder: Path) -> None:
    """Store the columns of the queries, as Spark would have found them."""
    opened = open_all(folder)
    schemas = opened.raw_schemas() | OF_QUERY
    for table in opened.tables:
        found = fingerprint(table.sql, table.attributes, table.source_schemas(schemas))
        write_columns(columns_file(table.declaration), StoredColumns(found, OF_QUERY[table.table], {}))


def no_spark() -> None:
    raise AssertionError("needs no Spark")


def test_a_folder_is_a_pipeline(tmp_path: Path, bare_home: Settings) -> None:
    folder = tmp_path / "tables"
    late = "  late: {older_than: 6 hours, at_most: 1 day, or_rows: 10}\n"
    subjects = PAYMENTS + late + "  subjects: {account: [account_id]}\n"
    payments(folder, declaration=f"type: other.Component\n---\n{subjects}---\n{TOTALS}")
    write(folder, "balance_dim", BALANCES)
    store(folder)
    settings = bare_home.model_copy(update={"pipelines": str(folder), "start": START})
    pipeline = open_pipeline(settings)
    assert pipeline.in_order()[0].table == "core.payment_fact"
    fact = pipeline.target("payment_fact")
    assert [audit.name for audit in fact.audits] == [
        "source_target_counts",
        "no_missing_events",
        "unique_key",
        "not_null_account_id",
    ]
    assert fact.late == Defer("6 hours", "1 day", 10)
    assert fact.sources[0].rules == (Rule("amount is negative", "amount < 0"),)
    assert (fact.key, fact.time_column, fact.columns) == (("payment_id",), "paid_at", OF_QUERY["core.payment_fact"])
    assert pipeline.target("balance_dim").mode == Sequential(chunk_hours=24)
    assert pipeline.target("payments_hourly").mode == Stateful(load="changed")
    assert pipeline.subjects == (Subject("account", ("account_id",)),)
    assert [raw.table for raw in pipeline.raw] == ["raw.payments"]


def test_hidden_folders_and_virtual_environments_declare_nothing(tmp_path: Path, bare_home: Settings) -> None:
    payments(tmp_path)
    store(tmp_path)
    for place in (".github/workflows", "env/lib", ".venv/lib", "tables/.hidden"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "broken.yaml").write_text("type: [")
    (tmp_path / "env" / "pyvenv.cfg").write_text("home = /usr/bin")
    settings = bare_home.model_copy(update={"pipelines": str(tmp_path), "start": START})
    assert [target.table for target in open_pipeline(settings).targets] == ["core.payment_fact"]


def test_a_relative_folder_is_meant_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tables").mkdir()
    monkeypatch.chdir(tmp_path)
    found = Settings(home=tmp_path, pipelines="tables, some.module:PIPELINE")
    assert found.pipelines == f"{tmp_path / 'tables'},some.module:PIPELINE"


def test_what_is_stored_of_a_query_is_current_until_query_or_source_changes(tmp_path: Path) -> None:
    file = payments(tmp_path)
    with pytest.raises(ConfigurationError, match=r"are not known: there is no .*\n  → Run `lake check "):
        pipeline_of(tmp_path, start=START)
    store(tmp_path)
    pipeline_of(tmp_path, start=START)
    wider = PAYMENTS.replace("amount: long", "amount: long, note: string")
    for declaration, sql in ((wider, PAYMENTS_SQL), (PAYMENTS, PAYMENTS_SQL.replace("amount", "amount + 1 AS amount"))):
        payments(tmp_path, declaration=declaration, sql=sql)
        with pytest.raises(ConfigurationError, match=r"(?s)payment_fact.sql:1: .* has changed since .*Run `lake check"):
            pipeline_of(tmp_path, start=START)
    payments(tmp_path, sql=PAYMENTS_SQL.replace("amount", "amuont"))
    with pytest.raises(
        ConfigurationError, match=r"sql:1: core.payment_fact: the column 'amuont' does not exist.\n  → Did you mean"
    ):
        pipeline_of(tmp_path, start=START)
    payments(tmp_path)
    stored = file.with_name("payment_fact.columns.json")
    document = json.loads(stored.read_text())
    stored.write_text(json.dumps({**document, "format": 2}))
    with pytest.raises(ConfigurationError, match="lake check"):
        pipeline_of(tmp_path, start=START)
    del document["unknown_lineage"]  # as a version that has no such entry wrote it
    stored.write_text(json.dumps({**document, "added later": 1}))
    pipeline_of(tmp_path, start=START)


def test_a_table_is_served_as_pinots_configuration_says_in_the_file_or_beside_it(tmp_path: Path) -> None:
    pinot = (
        "tableName: sales.payments\ntableType: OFFLINE\nsegmentsConfig: {replication: 1}\nquota: {storage: 10M}\n"
        "ingestionConfig: {batchIngestionConfig: {segmentIngestionType: REFRESH, segmentIngestionFrequency: HOURLY}}\n"
    )
    expected = Served("sales.payments", frequency="HOURLY", quota="10M")
    short = "{name: sales.payments, frequency: HOURLY, quota: 10M}"
    within = "\n    " + pinot.replace("\n", "\n    ").rstrip()
    beside = payments(tmp_path).with_name("pinot.json")
    beside.write_text(json.dumps(yaml.safe_load(pinot)))
    store(tmp_path)
    for served in (short, within, beside.name):
        payments(tmp_path, declaration=f"{PAYMENTS}  served: {served}\n")
        (target,) = pipeline_of(tmp_path, start=START).targets
        assert target.served == expected


MISTAKES = {
    "unique_key, {not_null": (
        "uniqe_key, {not_null",
        14,
        "there is no audit 'uniqe_key'",
        "Did you mean 'unique_key'?",
    ),
    "not_null: [account_id]": ("not_null: [acount_id]", 14, "names the column 'acount_id'", "'account_id'"),
    "{not_null: [account_id]}": (
        "{accepted_values: {column: a}}",
        14,
        "missing a required argument: 'values'",
        "column",
    ),
    "mode: stateless": ("mode: stateles", 4, "has the mode 'stateles'", "Did you mean 'stateless'?"),
    "mode: stateless\n": ("mode: {stateful: {chunk: 1}}\n", 4, "has no option 'chunk'", "'chunk_hours'"),
    "sql: payment_fact.sql": (
        "sql: other.sql",
        13,
        "names the file 'other.sql', which does not exist",
        "Write the query",
    ),
    "  key: payment_id\n  time": ("  key: id\n  time", 11, "has the key 'id'", "Select it"),
    "time_column: paid_at": ("time_column: paid", 12, "has the time column 'paid'", "Did you mean 'paid_at'?"),
    "  audits:": ("  audit:", 14, "there is no attribute 'audit'", "Did you mean 'audits'?"),
    "time_column: event_ts": (
        "time_col: event_ts",
        7,
        "no attribute 'sources.0.time_col'",
        "Did you mean 'time_column'?",
    ),
    "      time_column: event_ts\n": ("", 6, "'sources.0.time_column' is missing", "Add `time_column:`"),
    "  sources:": ("  source:", 6, "there is no attribute 'source'", "Did you mean 'sources'?"),
    "columns: {payment": ("colums: {payment", 10, "no attribute 'sources.0.colums'", "Did you mean 'columns'?"),
    "attributes:": ("atributes:", 1, "has no `attributes:`", "It has type, atributes."),
    "payment_fact.sql": ("payment_fact.slq", 13, "neither a file that ends in .sql nor a query", "Name the file"),
    ": stateless": (": [stateless]", 4, "the attribute 'mode' is ['stateless']", "docs/sql-tables.md"),
    " stateless": (" {stateful: {chunk_hours: a}}", 4, "The chunk is 'a' hours.", "1 or more"),
    "rules: {amount is negative: amount < 0}": ("rules: [amount < 0]", 9, "'sources.0.rules' is ['amount", "Correct"),
    "\n  key: payment_id": ("\n  key: a\n  key: payment_id", 12, "'key' is there twice", "Remove one."),
    "key: payment_id\n  time": ("key: 5\n  time", 11, "the attribute 'key' is 5", "in quotes"),
    "  audits": ("  grain: week\n  audits", 14, "'grain' is 'week': Input should be 'hour' or 'day'", "Correct it"),
    "audits: [": ("owners: weather\n  audits: [", 14, "'owners' is 'weather': Input should be a valid list", "Correct"),
    "audits:": ("owners: [weather]\n  audits:", 3, "has the owner 'weather'", "'team:weather'"),
    "event_ts\n": ("event_t\n", 6, "raw.payments has the time column 'event_t'", "name one of: payment_id"),
    "event_ts: timestamptz": ("event_ts: string", 6, "the time column 'event_ts', which is string", "timestamptz"),
    "raw.payments": ("payments", 6, "The raw table is called 'payments'", "namespace.name"),
    "amount: long": ("amount: lnog", 6, "raw.payments.amount is declared as 'lnog'", "Use a type"),
    "IncrementalTable": ("IncrementalTabel", 1, "there is no type 'lake_assets.IncrementalTabel'", "Did you mean"),
    "table: core.payment_fact": ("table: [", 5, "the file is no YAML", "Correct the line"),
    "time_column: paid_at\n": (
        "time_column: paid_at\n  grain: day\n  timezone: America/New_Yrok\n",
        14,
        "has the timezone 'America/New_Yrok', which is no IANA time zone",
        "Did you mean 'America/New_York'?",
    ),
    "\n  sql: payment_fact": (
        "\n  late: {older_than: 6 hours, at_most: soon}\n  sql: payment_fact",
        13,
        "at_most of Defer is 'soon', which is no duration",
        "Write a whole number and a unit",
    ),
    "\n  sql: payment": ("\n  served: {nam: x}\n  sql: payment", 13, "no attribute 'served.nam'", "'name'"),
    "  sql: payment": (
        "  served: {tableName: payments, tableType: REALTIME}\n  sql: payment",
        13,
        "payments has the tableType REALTIME",
        "Write OFFLINE",
    ),
    " sql: payment": (" served: payments.json\n  sql: payment", 13, "payments.json, a table configuration", "JSON"),
    "table: core.payment_fact\n": ("table: core.Payment\n", 3, "is called 'core.Payment'", "lower-case"),
}


@pytest.mark.parametrize("right", MISTAKES)
def test_a_mistake_in_the_file_is_two_lines(right: str, tmp_path: Path) -> None:
    wrong, line, problem, remedy = MISTAKES[right]
    file = payments(tmp_path)
    store(tmp_path)
    assert right in PAYMENTS
    file.write_text(PAYMENTS.replace(right, wrong, 1))
    with pytest.raises(ConfigurationError) as refused:
        pipeline_of(tmp_path, start=START)
    found = refused.value
    assert found.problem.startswith(f"{file}, line {line}: "), found
    assert problem in found.problem
    assert remedy in found.remedy
    assert len(str(found).splitlines()) == 2


def test_a_query_reads_its_sources_only(tmp_path: Path) -> None:
    file = payments(tmp_path, sql="SELECT *\nFROM payments p JOIN lake.core.signup_fact USING (account_id)\n")
    with pytest.raises(ConfigurationError, match=r"payment_fact.sql:2: .* reads 'lake.core.signup_fact', which is no"):
        check_all(tmp_path, no_spark, start=START)
    file.unlink()
    write(tmp_path, "balance_dim", BALANCES.replace("  columns:", "  descriptions:"))
    with pytest.raises(ConfigurationError, match=r"reads `previous`, its own rows, whose types are not known"):
        check_all(tmp_path, no_spark, start=START)


def test_declarations_that_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No YAML file in"):
        open_all(tmp_path)
    payments(tmp_path)
    again = write(tmp_path, "twice", PAYMENTS.replace("payment_fact.sql", "SELECT 1"))
    with pytest.raises(ConfigurationError, match=r"core.payment_fact is also declared at .*payment_fact/defs.yaml"):
        open_all(tmp_path)
    again.write_text(
        PAYMENTS.replace("core.payment_fact", "core.x").replace("payment_fact.sql", "SELECT 1").replace("long", "int")
    )
    with pytest.raises(ConfigurationError, match=r"raw.payments has other columns than at"):
        open_all(tmp_path)
    circle = TOTALS.replace("core.payment_fact", "core.payments_hourly")
    again.write_text(circle)
    with pytest.raises(ConfigurationError, match="line 5: tables are built from each other in a circle"):
        open_all(tmp_path)
    again.write_text(TOTALS)
    store(tmp_path)
    again.write_text(TOTALS.replace("name: p", "name: p AS x"))
    with pytest.raises(ConfigurationError, match=r"line 5: The name of core.payment_fact in the SQL is called 'p"):
        check_all(tmp_path, no_spark, start=START, only_changed=True)
    again.write_text(TOTALS.replace("name: p", "name: session_hours"))
    with pytest.raises(ConfigurationError, match=r"line 5: core.payment_fact is called 'session_hours' in the SQL"):
        check_all(tmp_path, no_spark, start=START, only_changed=True)


def test_every_audit_of_python_can_be_written() -> None:
    written: list[tuple[Any, Audit]] = [
        ("unique_key", audits.unique_key()),
        ({"not_null": {"columns": ["a", "b"], "blocking": False}}, audits.not_null("a", "b", blocking=False)),
        ({"not_null": "a"}, audits.not_null("a")),
        ({"accepted_values": ["a", ["x", "y"]]}, audits.accepted_values("a", ("x", "y"))),
        (
            {"referential": {"column": "a", "to": "core.b", "ref_column": "c"}},
            audits.referential("a", to="core.b", ref_column="c"),
        ),
        ("row_count_like_earlier", audits.row_count_like_earlier()),
        ({"row_count_like_earlier": {"days": 3, "factor": 2}}, audits.row_count_like_earlier(days=3, factor=2)),
        ({"sql": {"name": "n", "query": "select 1 from {staged}"}}, audits.sql("n", "select 1 from {staged}")),
    ]
    for found, expected in written:
        audit = declared_audit(found, "here")
        assert (audit.name, audit.description, audit.blocking, audit.columns) == (
            expected.name,
            expected.description,
            expected.blocking,
            expected.columns,
        )
    for wrong, problem in (
        ({"not_null": ["a"], "unique_key": None}, "here: an audit has the names not_null, unique_key"),
        ({"row_count_like_earlier": {"days": "many"}}, "here: the arguments of the audit 'row_count_like_earlier' are"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            declared_audit(wrong, "here")


def test_braces_of_a_query_are_left_alone() -> None:
    text = query_text("SELECT '{p}' FROM p", ("p",), (5, 6, 9))
    assert text.format(rows_0="v").endswith("SELECT * FROM (\nSELECT '{p}' FROM p\n\n)")
    assert text.startswith("WITH `p` AS (SELECT * FROM {rows_0}), session_hours AS (")
    assert "sequence(5L, 6L)" in text
    assert "sequence(9L, 9L)" in text


def test_an_expression_that_failed_is_found_in_its_query_and_in_no_other() -> None:
    sql = SqlText("SELECT a,\n  CAST(b AS int) AS b\nFROM p", Path("p.sql"), 4)
    expected = {
        "line 3: CAST(b AS int) AS b": "p.sql:5",
        "line 3: … AS int) AS b": "p.sql:5",
        "line 3: CAST(b AS int) AS c": None,  # of a rule or an audit
        "line 1: a < 0": None,
        "line 9: FROM p": None,
    }
    assert {text: place_in_query(sql, Refusal("CAST_INVALID_INPUT", "", sql=text)) for text in expected} == expected
    assert place_in_query(sql, Refusal("CAST_INVALID_INPUT", "")) is None


RAW_BY_VARIABLE = """\
type: lake_assets.SourceTable
attributes:
  table: "{{ env.SHOP }}.payments"
  time_column: at
  columns: {id: string, at: timestamptz, kind: string}
  description: Of {{env.SHOP}} and {{ env.%s }}.
"""


def test_a_text_has_variables_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP", "shop")
    (tmp_path / "one.yaml").write_text(RAW_BY_VARIABLE % "SHOP")
    (tmp_path / "two.yaml").write_text(RAW_BY_VARIABLE % "NO_SUCH_SHOP")
    found = open_folder(tmp_path)
    (raw,) = found.raw
    assert (raw.table, raw.description) == ("shop.payments", "Of shop and shop.")
    assert "the attribute 'description' is 'Of {{env.SHOP}} and {{ env.NO_SUCH_SHOP }}.'" in str(found.broken[0].error)
    assert "line 6" in str(found.broken[0].error)
    assert "the environment has no variable NO_SUCH_SHOP" in str(found.broken[0].error)
