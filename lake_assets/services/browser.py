"""The browser that tests of pages look with: a Chromium on the path, which CI installs where there is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGE = "chromium"
"""Debian's package of it."""

APT = ("apt-get", "--quiet", "--option", "Acquire::Retries=3")
COMMANDS = ((*APT, "update"), (*APT, "install", "--yes", "--no-install-recommends", PACKAGE))


def browser() -> str:
    """Return the path of the first Chromium on the path; empty if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), "")


def install_browser(say: Callable[[str], None], run: Callable[[Sequence[str]], None]) -> None:
    """Install a browser in CI, as root of a Debian; anywhere else say what is not tested without one."""
    if browser():
        return
    if os.environ.get("CI") and os.geteuid() == 0 and shutil.which(APT[0]):
        say(f"Installing the system's package {PACKAGE}, for tests of pages")
        for command in COMMANDS:
            run(command)
    else:
        say(f"No Chromium is on the path, so pages are not looked at in a browser. Install {PACKAGE} to test them.")
