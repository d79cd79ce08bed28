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
from lake_assets.incremental.metadata import tables
from lake_assets.incremental.metadata.state_tables import HIGH_WATERMARK
from lake_assets.incremental.planning.session import NoSession, SessionReport
from lake_assets.membership.raw import RAW
from lake_assets.services.service import free_port, running
from lake_assets.services.spark import spark as spark_service
from lake_assets.settings import PROJECT, Settings
from lake_assets_tests.incremental.child import run
from lake_assets_tests.incremental.scenario import START, Lake
from lake_assets_tests.incremental.tick_matrix import TICK_SCENARIOS, clicks_daemon
from lake_assets_tests.outcomes import Outcomes, columns, table
from lake_assets_tests.processes import Child, environment

if TYPE_CHECKING:
    from lake_assets.demo.membership_simulator import Landing
    from lake_assets.incremental.execution.session_log import SessionRecord

PAGE = PROJECT / "docs" / "crash-matrix.md"
SMALL = Simulation(
    Population(accounts=40, hours=len(SESSION_POINTS) + 2, seed=3, request=0.3, involuntary_cancel=0.3),
    Arrival(tail=0.1, twice=0.05, again=0.05, bad=0.1),
)
STAGED = SESSION_POINTS[SESSION_POINTS.index("after-staged") : SESSION_POINTS.index("after-published")]


def append(lake: Lake, home: Settings) -> Outcomes:
    """An append (signup_fact) dies; then more rows land, for the next session; then the next attempt."""
    landings, outcomes = generate(SMALL), {}
    for point in SESSION_POINTS:
        land_until_due(lake, "signup_fact", landings, ["raw.signups"])
        die(home, "signup_fact", point)
        planned = lake.truth()["core.signup_fact"]
        opened = lake.engine.store.state("core.signup_fact").open_session
        lake.land(next(landings), ["raw.signups"])
        outcomes[point] = outcome(opened, lake.session("signup_fact"))
        expected = planned if opened is not None else lake.truth()["core.signup_fact"]
        assert lake.rows("core.signup_fact")["core.signup_fact"] == expected, point
    lake.catch_up("signup_fact")
    lake.assert_true("signup_fact")
    assert_settled(lake, "signup_fact", "raw.signups")
    return outcomes


def overwrite(lake: Lake, home: Settings) -> Outcomes:
    """An overwrite (cancel_fact) dies; then another writer compacts the target, where it has one; then the next."""
    outcomes = {}
    all_landings = list(generate(SMALL))
    for landing in all_landings:
        lake.land(landing, ["raw.cancel_requests"])
    lake.catch_up("cancel_request_fact")
    landings = iter(all_landings)
    for point in SESSION_POINTS:
        land_until_due(lake, "cancel_fact", landings, ["raw.cancels"])
        die(home, "cancel_fact", point)
        opened = lake.engine.store.state("core.cancel_fact").open_session
        if point in STAGED and lake.main("core.cancel_fact"):
            lake.compact("core.cancel_fact")
        outcomes[point] = outcome(opened, lake.run("cancel_fact"))
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
        if point == "after-published-recorded":  # an attempt that finds its session published does not record it
            lake.session("account_state_dim")
            another_hour(lake)
        die(home, "account_state_dim", point)
        outcomes[point] = f"died; published {len(lake.published('core.account_state_dim'))} times"
    assert isinstance(lake.run("account_state_dim"), NoSession)
    lake.assert_true()
    published = lake.published("core.account_state_dim")
    assert len(published) == len(set(published)) == 2
    assert set(moves_of_watermarks(lake, "core.account_state_dim").values()) == {1}
    return outcomes


def overtaken(lake: Lake, home: Settings) -> Outcomes:
    """An append stops at a point (SIGSTOP), another attempt finishes its session, then the first goes on (SIGCONT)."""
    landings, outcomes = generate(SMALL), {}
    for point in SESSION_POINTS:
        land_until_due(lake, "signup_fact", landings, ["raw.signups"])
        child = start(home, "signup_fact", PAUSE + point)
        child.stopped()
        lake.catch_up("signup_fact")
        child.go_on()
        said = child.said()
        outcomes[point] = {"StateMoved": "refused, stops", "committed": "had finished"}.get(said, said)
        lake.assert_true("signup_fact", note=point)
    assert_settled(lake, "signup_fact", "raw.signups")
    return outcomes


SCENARIOS = {
    "append, new rows meanwhile": append,
    "overwrite, compacted meanwhile": overwrite,
    "dimension, dies again at each next point": again_and_again,
    "append, paused and overtaken": overtaken,
}


def outcome(opened: SessionRecord | None, found: SessionReport | NoSession) -> str:
    """What an attempt did about the session that was open when it began."""
    if isinstance(found, NoSession):
        return "nothing left to do"
    if opened is None:
        return "plans a session"
    if found.plan.session_id != opened.plan.session_id:
        return "another session"
    return "acknowledges, writes nothing" if found.status == "already_committed" else "finishes the session as planned"


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


def another_hour(lake: Lake) -> None:
    """The dimension has an hour more to build, without an event."""
    through = max(lake.complete_through(raw.table) or 0 for raw in RAW)
    for raw in RAW:
        lake.complete(raw.table, START + through + 1)
    lake.catch_up("signup_fact", "plan_fact", "cancel_request_fact", "cancel_fact")


def assert_settled(lake: Lake, target: str, source: str) -> None:
    """Nothing is open, all is acknowledged, each session is published and moves the watermarks once, each bad row is
    quarantined once.
    """
    table = f"core.{target}"
    state = lake.engine.store.state(table)
    assert state.open_session is None
    assert state.watermarks[source].snapshot_id == lake.main(source)
    published = lake.published(table)
    assert len(set(published)) == len(published)
    moves = moves_of_watermarks(lake, table)
    assert set(moves.values()) == {1}, moves
    aside = [row["row_hash"] for row in lake.quarantined(table)]
    assert len(set(aside)) == len(aside)
    assert len(aside) == lake.bad_rows(source)


def moves_of_watermarks(lake: Lake, process: str) -> Counter[str]:
    """Session → how many times it has moved the watermarks of a process."""
    rows = tables.load(lake.catalog, HIGH_WATERMARK).scan(f"process_name = '{process}'").to_arrow().to_pylist()
    moves = {(row["session_id"], row["revision"]) for row in rows}  # a move has a row for each source
    return Counter(session for session, _ in moves)


def page(found: Mapping[str, Outcomes]) -> str:
    """The page: a row for each point, a column for each scenario; a table for sessions and one for sensors."""
    quoted = {scenario: {f"`{point}`": said for point, said in of.items()} for scenario, of in found.items()}

    def of_points(heading: str, points: Iterable[str], scenarios: Iterable[str]) -> str:
        return table(heading, [f"`{point}`" for point in points], {name: quoted[name] for name in scenarios}) + "\n"

    sessions = of_points("the process dies", SESSION_POINTS, SCENARIOS)
    return HEAD + sessions + TAIL + of_points("the evaluation dies", TICK_POINTS, TICK_SCENARIOS)


def told(scenario: str) -> Outcomes:
    """What the page says of a scenario."""
    return columns(PAGE.read_text())[scenario]


HEAD = """# The crash matrix

A session's process dies at a named point, as a machine does: `os._exit`, nothing tidied up. Then another attempt
starts, and this is what it does. In every cell, the target afterwards equals a full rebuild, every session is published
once and moves the watermarks once, every bad row is quarantined once, and no session is open.

Written by `python -m lake_assets_tests.incremental.crash_matrix`, which plays each cell on real tables; the tests play
them again, and fail if this page says anything else.

"""
TAIL = """
- **append, new rows meanwhile**: `signup_fact`. Rows that land after the crash come with the next session, never with
  the interrupted one, and never twice.
- **overwrite, compacted meanwhile**: `cancel_fact`. Where rows are staged, and not yet published, another writer moves
  main: the rows are staged and audited again.
- **dimension, dies again at each next point**: `account_state_dim`. One session, whose attempts die one by one; at
  `after-published-recorded`, which an attempt that finds its session published does not come to, the next session.
- **append, paused and overtaken**: the process is stopped (SIGSTOP) at the point, another attempt finishes its session,
  and then it goes on (SIGCONT): its next move names a state that is no more.

## Sensors

The evaluation of the sensor of targets dies at a named point, and the sensor is evaluated again. The first evaluation
has changed nothing: the second one requests the same session under the same run key, with the rows that landed since.

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
