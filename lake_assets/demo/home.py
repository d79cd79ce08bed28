"""What all demos share: a data directory of their own, the services that they start, and what they print.

A demo refuses the data directory of somebody else, and clears its last one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from lake_assets.connections.addresses import make_private
from lake_assets.connections.catalog import TABLES_FILE
from lake_assets.errors import LakeError, ServiceError, UsageError
from lake_assets.services import lifecycle
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.settings import Settings

console = Console(highlight=False, soft_wrap=True)


def headline(title: str, text: str) -> None:
    """Print the headline of a scene."""
    console.print(f"\n[bold]{title}[/]\n[dim]{escape(text)}[/]")


def check(what: str, found: object, expected: object) -> None:
    """Print that a result is as expected.

    Args:
        what: What is expected, in words.
        found: The result.
        expected: What it must be equal to.

    Raises:
        LakeError: It is not.
    """
    if found != expected:
        raise LakeError(
            f"Expected: {what}. Found {found!r} instead of {expected!r}.",
            remedy="Read the logs in LAKE_HOME/logs.",
        )
    console.print(f"  [green]✓[/] {what}")


START, END = "2026-01-01-00:00", "2026-01-02-00:00"
MARKER = "demo"
"""A file that a demo leaves in its data directory."""

OTHERS_DATA = (
    "catalog_uri",
    "warehouse",
    "kafka",
    "landing",
    "landing_zones",
    "landing_manifest_uri",
    "landing_prefix",
)
"""Settings that would let a demo write to tables, topics or files that it did not make."""

PATIENCE_SECONDS = 240
"""Time limit of a scene. After it, the demo fails and names the logs."""

PATIENCE_ON_SERVERS = 900
"""The same on servers that the settings name: each job of a cluster takes longer."""

CLEARED_FOLDERS = (
    "warehouse",
    "dagster",
    "logs",
    "spark-warehouse",
    "kafka",
    "zookeeper",
    "serving",
    "landing",
)


def prepare_home(*, on_servers: bool = False, fixed: Mapping[str, str] | None = None) -> Settings:
    """Clear the data directory of a demo, except jars and settings, and return its settings.

    Args:
        on_servers: Whether the settings name a catalog, topics and folders, all of them made for this demo.
        fixed: `LAKE_*` settings of the demo, in addition to those of all demos.

    Raises:
        UsageError: The settings name data of others, or the directory holds tables that no demo made.
    """
    found = settings()
    if not on_servers:
        _check_settings(found)
    if (found.home / MARKER).exists():
        lifecycle.down(found, report=lambda line: None)
        _clear(found)
    elif (found.home / "catalog.db").exists():
        raise UsageError(
            f"{found.home} holds tables that the demo did not make.",
            remedy="Give the demo its own folder: LAKE_HOME=.lake-demo make demo",
        )
    make_private(found.home)
    (found.home / MARKER).touch()
    _write_settings(found, PATIENCE_ON_SERVERS if on_servers else PATIENCE_SECONDS, fixed or {})
    settings.cache_clear()
    return settings()


def _check_settings(found: Settings) -> None:
    named = [f"LAKE_{name.upper()}" for name in OTHERS_DATA if getattr(found, name)]
    if named:
        raise UsageError(
            f"The demo fills its own catalog, topics and folders, but these settings name others: {', '.join(named)}.",
            remedy="Unset them for `make demo`.",
        )


def _write_settings(found: Settings, patience: int, more: Mapping[str, str]) -> None:
    """Write the settings of the demo into the directory. They replace those of the environment."""
    fixed = {
        "LAKE_START": START,
        "LAKE_END": END,
        "LAKE_LAKES": "",  # Dagster shows what is declared, and a demo without engagement lakes uses none
        # The scenes expect exact sessions, even if the machine is so busy that a run takes minutes.
        "LAKE_SETTLE_SECONDS": str(patience),
        **more,
    }
    lines = [f"{name}={value}\n" for name, value in fixed.items()]
    file = found.home / "lake.env"
    file.touch(mode=0o600)
    file.write_text("".join(lines))
    for name in fixed:
        os.environ.pop(name, None)


def _clear(found: Settings) -> None:
    for name in CLEARED_FOLDERS:
        shutil.rmtree(found.home / name, ignore_errors=True)
    for pattern in ("*.db*", "*.html", TABLES_FILE):
        for file in found.home.glob(pattern):
            file.unlink()


POLL_SECONDS = 0.5
START_PATIENCE = 3
"""How many times longer than usual services may take to start: a demo is often the first thing that a machine does."""


def play_on_services(home: Settings, play: Callable[[Settings], None], *, keep_up: bool) -> None:
    """Start the services of a data directory, play a demo on them, and stop them.

    Args:
        play: Raises if anything is not as it should be.
        keep_up: If all is, leave the services running at the end.

    Raises:
        ServiceError: A service did not start.
    """
    began = time.monotonic()
    leave_up = False
    try:
        lifecycle.up(home, report=_print_dim, patience=START_PATIENCE)
        play(home)
        memory_mb = sum(service.memory_mb for service in lifecycle.status(home))
        seconds = time.monotonic() - began
        console.print(f"\n{seconds:.0f} s in all; the services hold {memory_mb / 1024:.1f} GB.")
        leave_up = keep_up
    finally:
        if not leave_up:
            lifecycle.down(home, report=_print_dim)
    if leave_up:
        console.print(f"Look around: [bold]{lifecycle.ui_address(home)}[/]   ([bold]make down[/] stops it)")


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
        LakeError: It ended with another exit code.
    """
    ended = run_command(home, *arguments, **variables)
    if ended.returncode != exit_code:
        raise LakeError(
            f"`lake {' '.join(arguments)}` ended with {ended.returncode} instead of {exit_code}.",
            remedy="Read what it printed above.",
        )
    return ended.stdout


def _print_dim(line: str) -> None:
    console.print(f"[dim]{escape(line)}[/]")
