"""The verdict says first what is worst, says nothing twice, and is one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.findings import Finding
from lake_assets.errors import ErrorText
from lake_assets.pages.data_path import DataPath, Fact, Stage
from lake_assets.pages.report import SEE_BELOW, verdict

NO_PATH = DataPath(())
FACTS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "late"]), st.booleans()), max_size=5)
LEVELS = st.lists(st.sampled_from(["ok", "warning", "error"]), max_size=5)


def path(*facts: Fact) -> DataPath:
    return DataPath((Stage("Facts and dimensions", facts),))


def test_all_is_well_if_nothing_is_wrong() -> None:
    ok = [Finding("java", "ok", "There is a Java.")]
    assert verdict(ok, NO_PATH).line == "All is well: nothing is wrong, and nothing is pending."
    waits = path(Fact("core.a", "here", "waits for raw.a"), Fact("core.b", "here"))
    assert verdict(ok, waits).line == "All is well: nothing is wrong; 1 part has something pending."


def test_an_error_comes_before_the_data_path_and_both_before_a_warning() -> None:
    findings = [
        Finding("disk", "warning", "The disk is almost full.", "Free 3 GB."),
        Finding("targets", "error", "core.a was dropped.", "Run `lake rebuild core.a --reset`."),
    ]
    late = Fact("core.b", "here", "core.b is 9 h late", bad=True, remedy="See `lake plan b`.")
    broken = Stage("Kafka", instead="Kafka did not answer.", broken=True)
    found = verdict(findings, DataPath((broken, *path(late).stages)))
    assert found.state == "wrong"
    assert found.line == "Not well: core.a was dropped. → Run `lake rebuild core.a --reset`. And 3 more."
    assert found.others == (
        ErrorText("Kafka: Kafka did not answer.", SEE_BELOW),
        ErrorText("core.b is 9 h late", "See `lake plan b`."),
        ErrorText("The disk is almost full.", "Free 3 GB."),
    )
    assert verdict(findings[:1], NO_PATH).line == "Well, with warnings: The disk is almost full. → Free 3 GB."


def test_what_the_checks_have_said_is_not_said_again() -> None:
    findings = [Finding("targets", "error", "core.a was dropped.", "Rebuild it.")]
    again = path(Fact("core.a", "", "core.a was dropped; the session waits", bad=True, remedy="Rebuild it."))
    assert verdict(findings, again).wrong == (ErrorText("core.a was dropped.", "Rebuild it."),)


@given(LEVELS, FACTS)
def test_it_is_as_bad_as_the_worst(levels: list[str], facts: list[tuple[str, str, bool]]) -> None:
    findings = [Finding("check", level, f"finding {n}", "Do.") for n, level in enumerate(levels)]  # type: ignore[arg-type]
    found = verdict(findings, path(*(Fact(what, "", pending, bad=bad) for what, pending, bad in facts)))
    any_bad = any(bad for *_, bad in facts)
    expected = "well"
    if "warning" in levels:
        expected = "attention"
    if "error" in levels or any_bad:
        expected = "wrong"
    assert found.state == expected
    assert found.pending == sum(1 for _, pending, bad in facts if pending and not bad)
    assert "\n" not in found.line
