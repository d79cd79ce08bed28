"""SQL that users write: conditions of sources and queries of audits reach nothing of the text around them."""

from __future__ import annotations

from typing import Any

from lake_assets_tests.doors.lake_door import LakeDoor
from lake_assets_tests.doors.test_first_steps import PAYMENT_FACT

IN_PYTHON = """
from lake_assets import Pipeline, RawTable, Rule, Source, Stateless, audits, incremental_asset

raw = RawTable(
    "raw.payments",
    columns={"payment_id": "string", "note": "string", "amount": "long", "op": "string", "paid_at": "timestamptz"},
    time_column="paid_at",
)


@incremental_asset(
    mode=Stateless(),
    sources=[Source("raw.payments", time_column="paid_at", key="payment_id", keep="last", order_by="amount",
        rules=RULES, deleted=DELETED)],
    key="payment_id",
    time_column="paid_at",
    columns={"payment_id": "string", "note": "string", "paid_at": "timestamptz"},
    audits=[audits.source_target_counts(), audits.no_missing_events(), *AUDITS],
)
def payment_fact(session, payments):
    return payments.select("payment_id", "note", "paid_at")


PIPELINE = Pipeline(raw=(raw,), targets=(payment_fact,), start="2026-01-01-00:00")
"""

RIGHT = r"""
RULES = (
    Rule("no note", "note is null -- nobody reads it \\"),
    Rule("it's {odd} 100%", "note rlike '^[a-z]{3}$' or note = 'a;b)' /* (three */"),
)
DELETED = "op = 'D' -- a tombstone"
AUDITS = [
    audits.sql("two_letters", r"select payment_id, paid_at from {staged} where not note rlike '^\\p{Lu}{2}$' -- {x}"),
    audits.sql("no_{staged}", "select concat(payment_id, '.'), `paid_at` from {staged} where note = '{staged}%'"),
]
"""
ROWS = """payment_id,note,amount,op,paid_at
p1,DE,1,U,2026-01-01T00:05:00Z
p2,abc,1,U,2026-01-01T00:05:00Z
p3,a;b),1,U,2026-01-01T00:05:00Z
p4,FR,1,U,2026-01-01T01:05:00Z
p4,FR,2,D,2026-01-01T01:05:00Z
p5,Spain,1,U,2026-01-01T02:05:00Z
p6,IT,1,U,2026-01-01T03:05:00Z
"""


def test_comments_braces_and_quotes_of_users_stay_theirs(lake: LakeDoor) -> None:
    lake.declare_in_python(f"{IN_PYTHON.replace('raw = ', RIGHT + 'raw = ', 1)}")
    lake("check")
    lake("init")
    lake.land("raw.payments", ROWS, through="2026-01-01-03:00")
    refused = lake.refused("catch-up")
    assert "hour 2026-01-01-02:00 is held back by audit two_letters: 1 offending" in refused, refused
    assert lake.values("core.payment_fact", "payment_id") == ["p1", "p6"]
    assert lake.values("etl.quarantine", "reason") == ["it's {odd} 100%", "it's {odd} 100%"]


def _wrong(rules: str = "()", deleted: str = "None", audits: str = "[]") -> str:
    texts = f"RULES = {rules}\nDELETED = {deleted}\nAUDITS = {audits}\n"
    return IN_PYTHON.replace("raw = ", texts + "raw = ", 1)


def test_wrong_text_is_refused_by_name_before_anything_is_created(lake: LakeDoor) -> None:
    """In Python: by the check and by init, of which Spark is asked about what cannot be understood without it."""
    for number, (text, problem, remedy) in enumerate(
        (
            (
                _wrong(rules='(Rule("is negative", "amount < 0) or (true"),)'),
                "core.payment_fact: in the rule 'is negative' of raw.payments, it closes a bracket that it has not"
                " opened.",
                "Remove one ')'.",
            ),
            (
                _wrong(deleted='"op = \'D"'),
                "core.payment_fact: in deleted= of raw.payments, a quote or a comment is left open.",
                "Close it; a quote inside of a text is written as \\'.",
            ),
            (
                _wrong(audits='[audits.sql("iso2", "select * from {stage}")]'),
                "core.payment_fact: in the audit iso2, there is the placeholder {stage}.",
                "Only {staged} is replaced, by the rows that would be published.",
            ),
        )
    ):
        lake.declare_in_python(text, f"wrong_{number}")
        for command in ("check", "init"):
            assert lake.refused(command).endswith(f"Error: {problem}\n  → {remedy}\n")
    lake.declare_in_python(_wrong(rules='(Rule("is negative", "amout < 0"),)'), "misspelt")
    assert (
        "Error: core.payment_fact: in the rule 'is negative' of raw.payments, the column 'amout' does not exist.\n"
        "  → Did you mean 'amount'? "
    ) in lake.refused("check")
    assert not (lake.home / "warehouse" / "core").exists()


def test_wrong_text_in_yaml_is_refused_with_its_line(lake: LakeDoor) -> None:
    payment_fact: dict[str, Any] = dict(PAYMENT_FACT)
    source = {**payment_fact["sources"][0], "rules": {"is negative": "sum(amount) < 0"}}
    lake.declare({**payment_fact, "sources": [source]})
    refused = lake.refused("check")
    assert "payment_fact.yaml, line " in refused
    assert "in the rule 'is negative' of raw.payments, sum() is an aggregate, which reads other rows.\n  → " in refused
    query = {"sql": {"name": "iso2", "query": "select payment_id from {staged} where contry rlike '^[A-Z]{2}$' -- ("}}
    lake.declare({**PAYMENT_FACT, "audits": [query]})
    refused = lake.refused("check")
    assert "core.payment_fact: in the audit iso2, the column 'contry' does not exist.\n  → Did you mean" in refused
    trailing = {**PAYMENT_FACT, "sql": f"{PAYMENT_FACT['sql']} -- where '{{2}}' \\"}
    lake.declare(trailing)
    assert "core.payment_fact" in lake("check")
