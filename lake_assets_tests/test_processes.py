"""A forked process is one of its own: it has its own settings, dies, stops and is killed alone."""

from __future__ import annotations

import os
import signal
import time

from lake_assets.base.failpoints import EXIT_CODE, PAUSE, reach
from lake_assets.settings import Settings, settings
from lake_assets_tests.processes import Child, environment

POINT = "after-staged"


def go_past_the_point(argument: str) -> str:
    reach(POINT)
    return f"{argument} in {settings().home.name} as {os.getpid()}"


def sleep(argument: str) -> str:
    time.sleep(float(argument))
    return "awake"


def test_it_has_settings_of_its_own_and_says_what_its_function_returned(bare_home: Settings) -> None:
    before = settings()
    said = [Child(go_past_the_point, "past", environment(bare_home)).said() for _ in range(2)]
    assert all(words.startswith(f"past in {bare_home.home.name} as ") for words in said)
    assert len({*said, f"past in {bare_home.home.name} as {os.getpid()}"}) == 3
    assert settings() == before


def test_it_dies_where_it_is_told_to(bare_home: Settings) -> None:
    child = Child(go_past_the_point, "past", environment(bare_home, POINT))
    assert (child.end(), child.said()) == (EXIT_CODE, "")


def test_it_stops_where_it_is_told_to_until_it_may_go_on(bare_home: Settings) -> None:
    child = Child(go_past_the_point, "past", environment(bare_home, PAUSE + POINT))
    child.stopped()
    assert child.runs
    child.go_on()
    assert child.said().startswith("past")


def test_it_is_killed(bare_home: Settings) -> None:
    child = Child(sleep, "600", environment(bare_home))
    child.kill()
    assert not child.runs
    assert (child.end(), child.said()) == (-signal.SIGKILL, "")
