"""What comes of a sensor whose evaluation dies, at each point at which it can: played, and told in the crash matrix."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import EXIT_CODE, TICK_POINTS
from lake_assets.base.hours import hour_key
from lake_assets.incremental.dagster.sensors import SensorTiming
from lake_assets.incremental.engine.engine import Engine, utc_now
from lake_assets.incremental.engine.model import SessionPlan
from lake_assets.settings import settings
from lake_assets_tests.incremental.clicks import CLICKS, START, at, click_fact, land_clicks
from lake_assets_tests.incremental.in_process_daemon import InProcessDaemon, in_process_daemon

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.dagster.sensors import Clock
    from lake_assets_tests.outcomes import Outcomes

SENSOR = "click_fact_sensor"


@contextmanager
def clicks_daemon(catalog: Catalog, clock: Clock = utc_now) -> Iterator[InProcessDaemon]:
    """The clicks' tables, empty, and a daemon that looks after them."""
    Engine(catalog, CLICKS, clock=clock).create_tables()
    end, timing = hour_key(START + 20), SensorTiming(settle_seconds=60)
    with in_process_daemon(CLICKS, catalog, clock, end=end, timing=timing) as daemon:
        yield daemon


def once(daemon: InProcessDaemon, catalog: Catalog) -> Outcomes:
    """An evaluation dies, then the next is made."""
    land_clicks(catalog, [0], landing=0)
    return {point: after(daemon, catalog, [point]) for point in TICK_POINTS}


def twice(daemon: InProcessDaemon, catalog: Catalog) -> Outcomes:
    """Two evaluations die one after the other, then the next is made."""
    land_clicks(catalog, [0], landing=0)
    return {point: after(daemon, catalog, [point, point]) for point in TICK_POINTS}


def landing(daemon: InProcessDaemon, catalog: Catalog) -> Outcomes:
    """An evaluation dies, rows land, then the next is made."""
    land_clicks(catalog, [0], landing=0)
    hours = {point: hour for hour, point in enumerate(TICK_POINTS, 1)}
    return {
        point: after(daemon, catalog, [point], partial(land_clicks, catalog, [hour], landing=hour))
        for point, hour in hours.items()
    }


TICK_SCENARIOS: dict[str, Callable[[InProcessDaemon, Catalog], Outcomes]] = {
    "once": once,
    "twice": twice,
    "once, new rows meanwhile": landing,
}


def after(
    daemon: InProcessDaemon, catalog: Catalog, points: list[str], meanwhile: Callable[[], object] = lambda: None
) -> str:
    """What an evaluation requests after others have died, against what was due before and is due now."""
    before = due(catalog)
    for point in points:
        die(daemon, point)
    assert due(catalog) == before, "one that dies changes nothing"
    meanwhile()
    now = due(catalog)
    assert [r.run_key for r in daemon.tick(SENSOR).run_requests or ()] == [f"{now}:1"]
    return "requests the same session" if now == before else "requests one session, with the new rows"


def due(catalog: Catalog) -> str:
    """The session that is due."""
    plan = Engine(catalog, CLICKS, clock=lambda: at(8)).decide(click_fact)
    assert isinstance(plan, SessionPlan)
    return plan.session_id


def die(daemon: InProcessDaemon, point: str) -> None:
    """Let an evaluation die in a process of its own, as Dagster's do."""
    pid = os.fork()
    if not pid:
        os.environ["LAKE_FAILPOINT"] = point
        settings.cache_clear()
        daemon.tick(SENSOR)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == EXIT_CODE, f"the evaluation did not come to {point}"
