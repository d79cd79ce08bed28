"""What comes of a session whose process dies, at each point at which it can: played on real tables, and written down.

    python -m lake_assets_tests.incremental.crash_matrix

plays all and writes docs/crash-matrix.md. The tests play the same, and hold the page to what they see.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import EXIT_CODE, PAUSE, SESSION_POINTS, TICK_POINTS
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.demo.membership_simulator import Arrival, Population, Simulation, generate
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import HIGH_WATERMARK, SESSION
from lake_assets.incremental.engine.model import NoSession, SessionReport
from lake_assets.services.servers import spark as spark_service
from lake_assets.services.service import free_port, running
from lake_assets.settings import PROJECT, Settings
from lake_assets_tests.incremental.child import run
from lake_assets_tests.incremental.scenario import Lake
from lake_assets_tests.incremental.tick_matrix import TICK_SCENARIOS, clicks_daemon
from lake_assets_tests.outcomes import Outcomes, columns, table
from lake_assets_tests.processes import Child, environment

if TYPE_CHECKING:
    from lake_assets.demo.membership_simulator import Landing

PAGE = PROJECT / "docs" / "crash-matrix.md"
SMALL = Simulation(
    Population(accounts=40, hours=len(SESSION_POINTS) + 2, seed=3, request=0.3, involuntary_cancel=0.3),
    Arrival(tail=0.1, twice=0.05, again=0.05, bad=0.1),
)


def append(lake: Lake, home: Settings) -> Outcomes:
    """An append (signup_fact) dies; then more rows land; then the next attempt."""
    landings, outcomes = generate(SMALL), {}
    for point in SESSION_POINTS:
        land_until_due(lake, "signup_fact", landings, ["raw.signups"])
        before = lake.state("signup_fact").n
        die(home, "signup_fact", point)
        left = lake.state("signup_fact").n
        lake.land(next(landings), ["raw.signups"])
        outcomes[point] = outcome(before, left, lake.session("signup_fact"))
        lake.assert_true("signup_fact", note=point)
        assert_settled(lake, "signup_fact", "raw.signups")
    return outcomes


def overwrite(lake: Lake, home: Settings) -> Outcomes:
    """An overwrite (cancel_fact) dies; then another writer compacts the target; then the next attempt."""
    outcomes = {}
    all_landings = list(generate(SMALL))
    for landing in all_landings:
        lake.land(landing, ["raw.cancel_requests"])
    lake.catch_up("cancel_request_fact")
    landings = iter(all_landings)
    for point in SESSION_POINTS:
        land_until_due(lake, "cancel_fact", landings, ["raw.cancels"])
        before = lake.state("cancel_fact").n
        die(home, "cancel_fact", point)
        left = lake.state("cancel_fact").n
        if lake.main("core.cancel_fact"):
            lake.compact("core.cancel_fact")
        outcomes[point] = outcome(before, left, lake.run("cancel_fact"))
        lake.catch_up("cancel_fact")
        lake.assert_true("cancel_fact", note=point)
        assert_settled(lake, "cancel_fact", "raw.cancels")
    return outcomes


def again_and_again(lake: Lake, home: Settings) -> Outcomes:
    """The dimension's session dies at a point, its next attempt at the next point, and so on; then one session more."""
    first, second, *_ = generate(SMALL)
    lake.land(first)
    lake.land(second)
    lake.catch_up("signup_fact", "plan_fact", "cancel_request_fact", "cancel_fact")
    outcomes = {}
    for point in SESSION_POINTS:
        die(home, "account_state_dim", point)
        outcomes[point] = f"died; committed {lake.state('account_state_dim').n} times"
    assert isinstance(lake.run("account_state_dim"), NoSession)
    lake.assert_true()
    published = lake.published("core.account_state_dim")
    assert len(published) == len(set(published)) == 1
    assert_settled(lake, "account_state_dim", "core.signup_fact")
    return outcomes


def overtaken(lake: Lake, home: Settings) -> Outcomes:
    """An append stops at a point (SIGSTOP), another attempt commits its session, then the first goes on (SIGCONT)."""
    landings, outcomes = generate(SMALL), {}
    for point in SESSION_POINTS:
        land_until_due(lake, "signup_fact", landings, ["raw.signups"])
        child = start(home, "signup_fact", PAUSE + point)
        child.stopped()
        lake.catch_up("signup_fact")
        child.go_on()
        said = child.said()
        outcomes[point] = {"idle": "refused; finds nothing left to do", "committed": "had committed"}.get(said, said)
        lake.assert_true("signup_fact", note=point)
    assert_settled(lake, "signup_fact", "raw.signups")
    return outcomes


SCENARIOS = {
    "append, new rows meanwhile": append,
    "overwrite, compacted meanwhile": overwrite,
    "dimension, dies again at each next point": again_and_again,
    "append, paused and overtaken": overtaken,
}


def outcome(before: int, left: int, found: SessionReport | NoSession) -> str:
    """What came of a session that died, and of the next attempt.

    Args:
        before: The number of the target's last session before.
        left: The same, after the process died.
        found: What the next attempt did.
    """
    happened = "had happened; its row in the log is written" if left > before else "had not happened"
    if isinstance(found, NoSession):
        return f"{happened}; nothing left to do"
    return f"{happened}; the next one is planned" if left > before else f"{happened}; is planned anew"


def start(home: Settings, argument: str, failpoint: str = "", *, work: Callable[[str], str] = run) -> Child:
    """One run of a target, or other work, in a process of its own."""
    return Child(work, argument, environment(home, failpoint))


def die(home: Settings, argument: str, point: str, *, work: Callable[[str], str] = run) -> None:
    """Let what `start` begins die at a point."""
    assert start(home, argument, point, work=work).end() == EXIT_CODE, f"the run did not come to {point}"


def land_until_due(lake: Lake, target: str, landings: Iterator[Landing], only: list[str]) -> None:
    """Land until the target has something to do."""
    while isinstance(lake.engine.decide(lake.target(target)), NoSession):
        lake.land(next(landings), only)


def assert_settled(lake: Lake, target: str, source: str) -> None:
    """All is acknowledged, each session is published and logged once, each bad row is quarantined once."""
    state = lake.state(target)
    assert state.watermarks[source].snapshot_id == lake.main(source)
    published = lake.published(state.process)
    assert len(set(published)) == len(published)
    rows = iceberg.load(lake.catalog, SESSION).scan(f"process_name = '{state.process}'").to_arrow().to_pylist()
    committed = [row["revision"] for row in rows if row["state"] == "committed"]
    assert sorted(committed) == list(range(1, state.n + 1))
    moves = moves_of_watermarks(lake, state.process)
    assert set(moves.values()) == {1}, moves
    assert {row["session_id"] for row in rows if row["state"] == "committed"} == set(moves)
    if source.startswith("raw."):
        aside = [row["row_hash"] for row in lake.quarantined(state.process)]
        assert len(set(aside)) == len(aside)
        assert len(aside) == lake.bad_rows(source)


def moves_of_watermarks(lake: Lake, process: str) -> Counter[str]:
    """Session → how many times it has moved the watermarks of a process."""
    rows = iceberg.load(lake.catalog, HIGH_WATERMARK).scan(f"process_name = '{process}'").to_arrow().to_pylist()
    moves = {(row["session_id"], row["revision"]) for row in rows}  # a move has a row for each source
    return Counter(session for session, _ in moves)


def page(found: Mapping[str, Outcomes]) -> str:
    """The page: a row for each point, a column for each scenario; a table for sessions and one for sensors."""
    quoted = {scenario: {f"`{point}`": said for point, said in of.items()} for scenario, of in found.items()}

    def of_points(heading: str, points: Iterable[str], scenarios: Iterable[str]) -> str:
        found = {name: quoted[name] for name in scenarios}
        return table(heading, [f"`{point}`" for point in points], found, between=", ") + "\n"

    sessions = of_points("the process dies", SESSION_POINTS, SCENARIOS)
    return HEAD + sessions + TAIL + of_points("the evaluation dies", TICK_POINTS, TICK_SCENARIOS)


def told(scenario: str) -> Outcomes:
    """What the page says of a scenario."""
    return columns(PAGE.read_text())[scenario]


HEAD = """# The crash matrix

A session's process dies at a named point, and another attempt starts. In every cell, the target afterwards equals a
full rebuild, every session is published once and has one row in the log, and every bad row is quarantined once.
`python -m lake_assets_tests.incremental.crash_matrix` writes this page.

"""
TAIL = """
- **append, new rows meanwhile**: `signup_fact`. Rows that land after the crash come with the next session, once.
- **overwrite, compacted meanwhile**: `cancel_fact`. Another writer compacts the target before the next attempt.
- **dimension, dies again at each next point**: `account_state_dim`. One session, whose attempts die one by one.
- **append, paused and overtaken**: the process is stopped at the point, another attempt commits the session, and then
  it goes on.

## Sensors

The evaluation of the sensor of targets dies at a named point. The next one requests the same session under the same
run key, with the rows that landed since.

"""


def main() -> None:
    """Play all scenarios, each in a home of its own, and write the page."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="lake-crashes-") as folder:
        for number, (name, play_ticks) in enumerate(TICK_SCENARIOS.items()):
            print(f"{name} ...", flush=True)
            catalog = open_catalog(Settings(home=Path(folder) / f"tick-{number}"))
            with clicks_daemon(catalog) as daemon:
                found[name] = play_ticks(daemon, catalog)
        with running(spark_service(Settings(home=Path(folder) / "server"), free_port())) as service:
            for number, (name, play) in enumerate(SCENARIOS.items()):
                print(f"{name} ...", flush=True)
                home = Settings(home=Path(folder) / str(number), spark_remote=f"sc://127.0.0.1:{service.port}")
                spark = open_spark(home)
                found[name] = play(Lake(open_catalog(home), spark), home)
                spark.stop()
    PAGE.write_text(page(found))
    print(f"written: {PAGE.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
