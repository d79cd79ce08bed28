"""A declaration that cannot work is refused where it is made, by the name of what is wrong with it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lake_assets.base.hours import DAY, HOUR, days_in
from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.incremental.declaration import (
    Defer,
    Mode,
    Pipeline,
    RawTable,
    Rule,
    Sequential,
    Source,
    Stateful,
    Stateless,
    Target,
    incremental_asset,
)
from lake_assets.incremental.declaration.decorator import _as_hashed, function_code
from lake_assets.incremental.engine.audits import not_null, unique_key
from lake_assets.incremental.from_settings import declared_pipeline
from lake_assets_tests.incremental import clicks

RAW = RawTable("raw.clicks", {"click_id": "string", "event_ts": "timestamptz"}, time_column="event_ts")
CLICKS = Source("raw.clicks", time_column="event_ts", key="click_id")
LATE = Defer(older_than="6 hours", at_most="4 hours")


def declare(mode: Mode | None = None, sources: tuple[Source, ...] = (CLICKS,), **changed: Any) -> Target:
    arguments: dict[str, Any] = {
        "key": "click_id",
        "time_column": "clicked_at",
        "columns": {"click_id": "string", "clicked_at": "timestamptz"},
        **changed,
    }

    def click_fact(session: Any, *rows: Any) -> Any:
        """Every click, once."""
        return rows[0]

    return incremental_asset(mode=mode or Stateless(), sources=sources, **arguments)(click_fact)


def test_a_declaration_takes_its_name_words_and_code_from_the_function() -> None:
    target = declare()
    assert (target.table, target.name, target.description) == ("core.click_fact", "click_fact", "Every click, once.")
    assert target.key == ("click_id",)
    assert len(target.code_version) == 12
    assert declare(code_version="7").code_version == "7"
    assert (target.grain, declare(grain="day").grain, declare(grain="day", timezone="UTC").grain) == (HOUR, DAY, DAY)
    assert declare(grain="day", timezone="America/New_York").grain == days_in("America/New_York")


def test_a_misspelled_time_zone_is_named_with_the_right_one() -> None:
    with pytest.raises(ConfigurationError) as caught:
        declare(grain="day", timezone="America/New_Yrok")
    assert str(caught.value).splitlines() == [
        "core.click_fact has the timezone 'America/New_Yrok', which is no IANA time zone.",
        "  → Did you mean 'America/New_York'? The names are those of the IANA time zone database.",
    ]
    with pytest.raises(ConfigurationError, match="Write the name as in the IANA time zone database"):
        declare(grain="day", timezone="+05:00")


def test_a_time_zone_has_had_whole_hours_since_the_pipeline_starts() -> None:
    raw = RawTable("raw.clicks", {"click_id": "string", "event_ts": "timestamptz"}, time_column="event_ts")
    by_day = declare(grain="day", timezone="America/Caracas")  # four and a half hours behind, from 2007 to 2016
    assert Pipeline(raw=(raw,), targets=(by_day,), start="2017-01-01-00:00").start == "2017-01-01-00:00"
    with pytest.raises(ConfigurationError, match="'America/Caracas', where the day 2015-01-01 begins within an hour"):
        Pipeline(raw=(raw,), targets=(by_day,), start="2015-01-01-12:00")


def test_a_change_of_rules_audits_or_limit_is_a_change_of_code() -> None:
    ruled = Source("raw.clicks", time_column="event_ts", key="click_id", rules=(Rule("no page", "page is null"),))
    versions = [
        target.code_version
        for target in (
            declare(),
            declare(sources=(ruled,)),
            declare(audits=(unique_key(),)),
            declare(audits=(not_null("click_id"),)),
            declare(audits=(not_null("click_id", blocking=False),)),
            declare(quarantine_limit=7),
        )
    ]
    assert len(set(versions)) == len(versions)
    assert declare().code_version == versions[0]


def test_a_change_of_what_a_transform_calls_in_its_module_is_one_too_and_in_every_process_the_same(
    tmp_path: Path,
) -> None:
    module = Path(inspect.getfile(clicks)).read_text()
    (tmp_path / "same.py").write_text(module)
    (tmp_path / "other.py").write_text(module.replace("event_ts AS clicked_at", "event_ts as clicked_at"))
    prints = "import same, other; print(same.click_fact.code_version, other.click_fact.code_version)"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {prints}", str(tmp_path)]
    same, other = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert same == clicks.click_fact.code_version != other


def test_a_stateless_source_has_the_key_of_its_target() -> None:
    keyless = Source("raw.clicks", time_column="event_ts")
    assert declare(sources=(keyless,)).sources[0].key == "click_id"
    assert declare(Stateful(), sources=(keyless,)).sources[0].trusted


@pytest.mark.parametrize(
    ("bad", "culprit"),
    [
        (lambda: declare(sources=()), r"core\.click_fact has no source"),
        (lambda: declare(key=()), r"core\.click_fact has no key"),
        (lambda: declare(key="clik_id"), r"core\.click_fact has no column 'clik_id'"),
        (lambda: declare(time_column="at"), r"core\.click_fact has no column 'at'"),
        (lambda: declare(time_column="click_id"), r"core\.click_fact\.click_id is string"),
        (lambda: declare(columns={"Click": "string"}), r"A column of core\.click_fact is called 'Click'"),
        (lambda: declare(columns={"a": "text"}), r"core\.click_fact\.a is declared as 'text'"),
        (lambda: declare(sources=(CLICKS, CLICKS)), r"core\.click_fact is stateless and has 2 sources"),
        (lambda: declare(namespace="Core"), r"The target is called 'Core\.click_fact'"),
        (lambda: declare(quarantine_limit=-1), r"core\.click_fact has a quarantine limit of -1"),
        (
            lambda: declare(lineage={"prize": ["raw.clicks.price"]}),
            r"core\.click_fact declares lineage for prize",
        ),
        (lambda: declare(descriptions={"prize": "It."}), r"core\.click_fact describes prize, but has no such column"),
        (
            lambda: RawTable("raw.clicks", {"id": "string"}, time_column="at", descriptions={"prize": "It."}),
            r"raw\.clicks describes prize, but has no such column",
        ),
        (lambda: declare(grain="week"), r"core\.click_fact has the grain 'week'"),
        (lambda: declare(timezone="Asia/Tokyo"), r"the timezone 'Asia/Tokyo' and the grain 'hour': only days depend"),
        (
            lambda: declare(grain="day", timezone="Asia/Kolkata"),
            r"the timezone 'Asia/Kolkata', where the day 2020-01-01 begins within an hour of UTC",
        ),
        (
            lambda: declare(grain="day", timezone="Australia/Lord_Howe"),
            r"the timezone 'Australia/Lord_Howe', where the day 2020-04-06 begins within an hour of UTC",
        ),
        (lambda: Source("clicks", time_column="at"), r"The source table is called 'clicks'"),
        (lambda: Source("raw.clicks", time_column=""), r"The time column of raw\.clicks is ''"),
        (
            lambda: Source("raw.clicks", time_column="at", key="_LAKE_id"),
            r"The key of raw\.clicks is called '_LAKE_id'",
        ),
        (lambda: RawTable("clicks", {}, time_column="at"), r"The raw table is called 'clicks'"),
        (lambda: RawTable("a..clicks", time_column="at"), r"The raw table is called 'a\.\.clicks'"),
        (lambda: RawTable("a.b`c", time_column="at"), r"The raw table is called 'a\.b`c'"),
        (lambda: RawTable("prod.clicks"), r"prod\.clicks has no time column"),
        (lambda: RawTable("prod.clicks", ["id"], time_column="at"), r"columns= of prod\.clicks is \['id'\]"),  # type: ignore[arg-type]
        (lambda: RawTable("prod.clicks", time_column="_lake_at"), r"time column of prod\.clicks is called '_lake_at'"),
        (lambda: Stateful("all"), r"The load type is 'all'"),  # type: ignore[arg-type]
        (lambda: Stateful(entity="Account"), r"The entity is called 'Account'"),
        (lambda: Stateful(catchup_threshold=0), r"The catch-up threshold is 0 hours"),
        (lambda: Stateful(chunk_hours=1.5), r"The chunk is 1\.5 hours"),  # type: ignore[arg-type]
        (lambda: not_null(), r"The audit not_null names no column"),
        (lambda: declare(columns={"a": "decimal(2, 9)"}), r"core\.click_fact\.a is declared as 'decimal\(2, 9\)'"),
        (lambda: Sequential(catchup_threshold=-2), r"The catch-up threshold is -2 hours"),
        (lambda: Sequential(entity="Account"), r"The entity is called 'Account'"),
        (lambda: Sequential(load="changed"), r"The load type of a sequential target is 'changed'"),  # type: ignore[arg-type]
        (lambda: Sequential(load="all"), r"has no catch-up threshold"),
        (lambda: Sequential(load="all", catchup_threshold=2, entity="account_id"), r"the entity 'account_id'"),
        (lambda: Sequential(few_rows=-1), r"few_rows is -1"),
        (lambda: Defer("6 hour s", "4 hours"), r"older_than of Defer is '6 hour s', which is no duration"),
        (lambda: Defer(timedelta(hours=-1), "4 hours"), r"older_than of Defer is -1 day, 23:00:00"),
        (lambda: Defer("6 hours", "0 hours"), r"at_most of Defer is 0 hours, so nothing would wait"),
        (lambda: Defer("6 hours", "4 hours", 0), r"or_rows of Defer is 0"),
        (lambda: declare(late="4 hours"), r"late= of core\.click_fact is '4 hours'"),
        (lambda: declare(Stateful(), late=LATE), r"core\.click_fact has late=Defer\(\.\.\.\), but is stateful"),
        (lambda: declare(Sequential(), late=LATE), r"core\.click_fact has late=Defer\(\.\.\.\), but is sequential"),
        (
            lambda: declare(sources=(replace(CLICKS, keep="last", order_by="event_ts"),), late=LATE),
            r"core\.click_fact has late=Defer\(\.\.\.\), and reads raw\.clicks with keep='last'",
        ),
        (lambda: Pipeline((RAW,), (declare(),), start="yesterday"), r"The pipeline starts at 'yesterday'"),
        (lambda: pipeline(declare(), declare()), r"core\.click_fact is declared 2 times"),
        (lambda: Pipeline((RAW, RAW), (), start="2026-01-01-00:00"), r"raw\.clicks is declared 2 times"),
    ],
)
def test_what_cannot_work_is_named(bad: Callable[[], object], culprit: str) -> None:
    with pytest.raises(ConfigurationError, match=culprit):
        bad()


def test_a_policy_for_late_rows_rounds_an_age_up_to_hours_and_is_no_change_of_rows() -> None:
    policy = Defer(older_than="61 minutes", at_most=timedelta(minutes=90), or_rows=7)
    assert (policy.older_than_hours, policy.longest_wait) == (2, timedelta(minutes=90))
    assert Defer("0 hours", "1 day").older_than_hours == 0
    assert declare(late=policy).late == policy
    assert declare(late=policy).code_version == declare().code_version


def test_a_transform_must_take_the_session_and_each_source() -> None:
    def click_fact(session: Any, clicks: Any) -> Any: ...

    columns = {"click_id": "string", "clicked_at": "timestamptz"}
    decorator = incremental_asset(
        mode=Stateful(), sources=[CLICKS, CLICKS], key="click_id", time_column="clicked_at", columns=columns
    )
    with pytest.raises(ConfigurationError, match=r"core\.click_fact cannot be called with a session and 2 source"):
        decorator(click_fact)


def test_rows_that_others_land_need_a_key_and_declared_columns() -> None:
    keyless = declare(Stateful(), sources=(Source("raw.clicks", time_column="event_ts"),))
    with pytest.raises(ConfigurationError, match=r"core\.click_fact reads raw\.clicks without a key"):
        pipeline(keyless)
    with pytest.raises(ConfigurationError, match=r"core\.click_fact reads 'at' of raw\.clicks"):
        pipeline(declare(sources=(Source("raw.clicks", time_column="at"),)))


def test_an_entity_is_a_column_of_the_target_and_of_all_its_sources_which_are_facts() -> None:
    def by(entity: str, *sources: Source) -> Target:
        columns = {"click_id": "string", "clicked_at": "timestamptz", "account_id": "string"}
        target = declare(Sequential(entity=entity), sources=sources, columns=columns)
        return Target(**{**vars(target), "table": "core.state"})

    fact = Source("core.click_fact", time_column="clicked_at")
    pipeline(declare(), by("click_id", fact))
    with pytest.raises(ConfigurationError, match=r"core\.state has no column 'visitor_id', which is the entity"):
        pipeline(declare(), by("visitor_id", fact))
    with pytest.raises(ConfigurationError, match=r"core\.click_fact has no column 'account_id', which is the entity"):
        pipeline(declare(), by("account_id", fact))
    with pytest.raises(
        ConfigurationError, match=r"core\.state has the entity 'click_id', but validates the rows of raw"
    ):
        pipeline(by("click_id", CLICKS))


def test_an_entity_of_a_stateful_target_is_a_column_of_all_its_sources() -> None:
    pipeline(declare(Stateful(entity="click_id")))
    with pytest.raises(
        ConfigurationError, match=r"raw\.clicks has no column 'visitor_id', which is the entity of core"
    ):
        pipeline(declare(Stateful(entity="visitor_id")))


def named(name: str, *sources: str) -> Target:
    found = tuple(Source(s, time_column="clicked_at") for s in sources)
    target = declare(Stateful(), sources=found)
    return Target(**{**vars(target), "table": name})


def pipeline(*targets: Target) -> Pipeline:
    return Pipeline((RAW,), targets, start="2026-01-01-00:00")


def test_targets_in_a_circle_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"in a circle: .*core\.a.*core\.b"):
        pipeline(named("core.a", "core.b"), named("core.b", "core.a"))


def test_targets_come_in_order_and_know_what_they_are_built_from() -> None:
    a, b, c = named("core.a", "raw.other"), named("core.b", "core.a"), named("core.c", "core.b", "raw.other")
    chain = pipeline(c, b, a)
    assert [t.name for t in chain.in_order()] == ["a", "b", "c"]
    assert [t.name for t in chain.upstream_of(c)] == ["a", "b"]
    assert chain.target("c") is chain.target("core.c") is chain.target("core/c") is c
    with pytest.raises(UsageError, match=r"no target 'd'[\s\S]*c, b, a"):
        chain.target("d")


def test_pipelines_are_merged_from_the_earliest_start_on() -> None:
    early = Pipeline((), (named("core.a", "raw.other"),), start="2025-06-01-00:00")
    both = declared_pipeline([pipeline(declare()), early], start="2026-01-01-00:00")
    assert (both.start, [t.name for t in both.targets]) == ("2025-06-01-00:00", ["click_fact", "a"])


def test_versions_need_a_key_an_order_and_a_mode_that_can_use_them() -> None:
    def versions(keep: Any = "last", order_by: str | None = "event_ts", key: str | None = "click_id") -> Source:
        return Source("raw.clicks", time_column="event_ts", key=key, keep=keep, order_by=order_by)

    pipeline(declare(sources=(versions(),)))
    pipeline(declare(Stateful(), sources=(versions("all"),)))
    with pytest.raises(ConfigurationError, match=r"raw\.clicks has keep='last', but no order_by"):
        versions(order_by=None)
    with pytest.raises(ConfigurationError, match=r"raw\.clicks has keep='newest'"):
        versions("newest")
    with pytest.raises(ConfigurationError, match="has order_by or deleted, but keeps the first"):
        Source("raw.clicks", time_column="event_ts", key="click_id", deleted="op = 'D'")
    with pytest.raises(ConfigurationError, match=r"keeps the last of a key of raw\.clicks, but the source has no key"):
        declare(Stateful(), sources=(versions(key=None),))
    with pytest.raises(ConfigurationError, match="keep='all', but is stateless"):
        declare(sources=(versions("all"),))
    with pytest.raises(ConfigurationError, match=r"reads 'changed_at' of raw\.clicks"):
        pipeline(declare(sources=(versions(order_by="changed_at"),)))


def test_the_code_version_of_a_source_without_versions_is_the_one_of_older_releases() -> None:
    source = Source("raw.clicks", time_column="event_ts", key="click_id", rules=(Rule("bad", where="x < 0"),))
    rule = "Rule(reason='bad', where='x < 0')"
    text = f"Source(table='raw.clicks', time_column='event_ts', key='click_id', rules=({rule},))"
    assert _as_hashed(source) == text
    last = replace(source, keep="last", order_by="event_ts")
    assert _as_hashed(last) != _as_hashed(replace(last, deleted="op = 'D'")) != text


@pytest.mark.parametrize("rules", [{"bad": "x < 0"}, ("x < 0",), "x < 0"])
def test_rules_that_are_none_are_named(rules: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)The rules of raw\.clicks are .*Rule\("):
        Source("raw.clicks", time_column="event_ts", key="click_id", rules=rules)


def test_code_of_this_package_is_no_part_of_the_code_of_a_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_helper.py").write_text("def same(rows):\n    return rows\n")
    (tmp_path / "own_target.py").write_text(
        "from lake_assets import Rule\nfrom own_helper import same\n\n\n"
        "def visit(session, visits):\n    print(Rule)\n    return same(visits)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    code = function_code(import_module("own_target").visit)
    assert [len(re.findall(name, "".join(code))) for name in ("name='visit'", "name='same'")] == [1, 2]
    assert len(code) == 4  # both functions, and the statements that import names of both modules
