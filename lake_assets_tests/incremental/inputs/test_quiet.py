"""Which targets are looked at, against a slow and obvious oracle. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.incremental.operations.inputs import FULL_LOOK_SECONDS, STALE_PER_TICK, Quiet, to_look_at

NAMES = ["a", "b", "c", "d", "e", "f"]
VERSIONS = st.integers(0, 2)
NOW = 10_000.0
TIMES = st.sampled_from([NOW, NOW - 1, NOW - FULL_LOOK_SECONDS + 1, NOW - FULL_LOOK_SECONDS, NOW - 5000])
QUIET = st.builds(
    Quiet,
    inputs=VERSIONS,
    runs=st.sampled_from([None, "r1"]),
    at=TIMES,
    again_at=st.sampled_from([None, NOW - 1, NOW, NOW + 1]),
    reason=st.just(""),
)


@given(
    quiet=st.dictionaries(st.sampled_from(NAMES), QUIET),
    inputs=st.fixed_dictionaries(dict.fromkeys(NAMES, VERSIONS)),
    runs=st.dictionaries(st.sampled_from(NAMES), st.just("r1")),
)
def test_who_moved_is_due_or_is_not_known_is_looked_at(
    quiet: dict[str, Quiet], inputs: dict[str, int], runs: dict[str, str]
) -> None:
    looked_at = {name: last.at for name, last in quiet.items()}
    found = to_look_at(NAMES, quiet, inputs=inputs, runs=runs, looked_at=looked_at, now=NOW)

    must: set[str] = set()
    old: set[str] = set()
    for name in NAMES:
        last = quiet.get(name)
        if last is None:
            must.add(name)
            continue
        is_due = last.again_at is not None and last.again_at <= NOW
        is_idle = runs.get(name) is None  # a target with an active run has nothing to request
        if last.runs != runs.get(name) or (is_idle and (is_due or last.inputs != inputs[name])):
            must.add(name)
        elif last.at <= NOW - FULL_LOOK_SECONDS:
            old.add(name)
    assert len(found) == len(set(found))
    assert set(found[: len(must)]) == must
    rest = found[len(must) :]
    assert len(rest) == min(STALE_PER_TICK, len(old))
    assert [quiet[name].at for name in rest] == sorted(quiet[name].at for name in old)[: len(rest)]


def test_the_longest_unseen_of_those_that_moved_comes_first() -> None:
    looked_at = {"a": 30.0, "b": 10.0, "c": 20.0}
    quiet = {name: Quiet("before", None, at, None, "") for name, at in looked_at.items()}
    found = to_look_at(list("abcd"), quiet, inputs={}, runs={}, looked_at=looked_at, now=40.0)
    assert found == ["b", "c", "a", "d"]
