"""The services of a demo: start them, wait for what they do, run commands against them, and leave them running."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from lake_assets.demo.output import UnexpectedResult, console
from lake_assets.errors import ServiceError
from lake_assets.services import lifecycle

if TYPE_CHECKING:
    from lake_assets.settings import Settings

POLL_SECONDS = 0.5
START_PATIENCE = 3
"""How many times longer than usual services may take to start: a demo is often the first thing that a machine does."""


def play_on_services(home: Settings, play: Callable[[Settings], bool], *, keep_up: bool) -> bool:
    """Start the services of a data directory, play a demo on them, and stop them.

    Args:
        play: Returns whether everything is as it should be.
        keep_up: If it is, leave the services running at the end.

    Returns:
        What `play` returned.

    Raises:
        ServiceError: A service did not start.
    """
    began = time.monotonic()
    succeeded = False
    try:
        lifecycle.up(home, report=_print_dim, patience=START_PATIENCE)
        succeeded = play(home)
        memory_mb = sum(service.memory_mb for service in lifecycle.status(home))
        seconds = time.monotonic() - began
        console.print(f"\n{seconds:.0f} s in all; the services hold {memory_mb / 1024:.1f} GB.")
    finally:
        leave_up = succeeded and keep_up
        if not leave_up:
            lifecycle.down(home, report=_print_dim)
    if leave_up:
        console.print(f"Look around: [bold]{lifecycle.ui_address(home)}[/]   ([bold]make down[/] stops it)")
    return succeeded


def wait_until_idle(
    home: Settings, busy: Callable[[], Sequence[str]], show: Callable[[], None], *, poll_seconds: float = POLL_SECONDS
) -> None:
    """Wait until nothing is at work.

    Args:
        busy: Returns what is still at work, each in a few words.
        show: Prints what was done since it was called last. It is called again at the end.
        poll_seconds: Seconds between two looks.

    Raises:
        ServiceError: There is still work after the time limit of a scene, `settle_seconds`.
    """
    began = time.monotonic()
    patience = home.settle_seconds
    while True:
        show()
        found = busy()
        seconds = time.monotonic() - began
        if not found:
            break
        if seconds > patience:
            raise ServiceError(
                f"After {patience} s these still have work: {', '.join(found)}.",
                remedy=f"Look at the runs in {lifecycle.ui_address(home)} and at the logs in {home.home / 'logs'}.",
            )
        time.sleep(poll_seconds)
    # Something may have ended after it was shown last.
    show()
    console.print(f"  [dim]idle after {seconds:.0f} s[/]")


def run_command(home: Settings, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `lake` as a person would, with these variables, and print it with its output."""
    console.print(f"  [cyan]$[/] lake {' '.join(arguments)}")
    ran = subprocess.run(
        [sys.executable, "-m", "lake_assets.cli.main", *arguments],
        env={**os.environ, "LAKE_HOME": str(home.home), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    for line in (ran.stdout + ran.stderr).splitlines():
        console.print(f"      [dim]{escape(line)}[/]")
    return ran


def expect_command(home: Settings, exit_code: int, *arguments: str, **variables: str) -> str:
    """Run a command of `lake` as `run_command` does, and return its output.

    Raises:
        UnexpectedResult: It ended with another exit code.
    """
    ended = run_command(home, *arguments, **variables)
    if ended.returncode != exit_code:
        raise UnexpectedResult(
            f"`lake {' '.join(arguments)}` ended with {ended.returncode} instead of {exit_code}.",
            remedy="Read what it printed above.",
        )
    return ended.stdout


def _print_dim(line: str) -> None:
    console.print(f"[dim]{escape(line)}[/]")
