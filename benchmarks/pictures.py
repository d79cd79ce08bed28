"""The pictures of README and docs that show pages: the demos are played, and a real browser looks at what they leave.

    python -m benchmarks.pictures [--to docs/pictures] [--only membership]

It needs a Chromium on the path, and as many minutes as the demos take. Other pictures are drawn by the benchmark that
measures what they show.
"""

from __future__ import annotations

import argparse
import base64
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lake_assets.services import lifecycle
from lake_assets.settings import Settings
from lake_assets_tests.browser import LONGEST, open_tab

if TYPE_CHECKING:
    from lake_assets_tests.browser import Tab

WIDTH = 1440
DEMOS = ("membership", "engagement")
MARKED = "2026-01-01-06:00"
"""A partition of the demo that a late row has built again."""


def main() -> None:
    """Play the demos, and write the pictures of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--only", choices=DEMOS)
    chosen = parser.parse_args()
    for demo in (chosen.only,) if chosen.only else DEMOS:
        look = _of_membership if demo == "membership" else _of_engagement
        with (
            tempfile.TemporaryDirectory(prefix="lake-pictures-") as folder,
            _played(demo, Path(folder)) as home,
            open_tab(Path(folder)) as tab,
        ):
            for name, picture in look(home, tab):
                (chosen.to / name).write_bytes(picture)
                print(f"written: {chosen.to / name}", flush=True)


@contextmanager
def _played(demo: str, folder: Path) -> Iterator[Settings]:
    """The settings of a data directory in which a demo was played, with its services, which end with the block."""
    home = folder / "home"
    environment = {**os.environ, "LAKE_HOME": str(home)}
    lake = (sys.executable, "-m", "lake_assets.cli.main")
    try:
        subprocess.run([*lake, "demo", demo, "--keep-up"], check=True, env=environment)
        yield Settings(home=home)
    finally:
        subprocess.run([*lake, "down"], check=False, env=environment)


def _of_membership(home: Settings, tab: Tab) -> Iterator[tuple[str, bytes]]:
    ui = lifecycle.ui_address(home)
    partition = f"{ui}/assets/core/account_state_dim?view=partitions&partition={MARKED}"
    yield "ui.png", _picture(tab, partition, "why", 900)
    yield "graph.png", _picture(tab, f"{ui}/locations/lake_assets/asset-groups/core/lineage", "signup_fact", 1000)
    yield "backfill.png", _picture(tab, f"{ui}/runs/?view=backfills", "Success", 330)


def _of_engagement(home: Settings, tab: Tab) -> Iterator[tuple[str, bytes]]:
    page = home.home / "email_event.html"
    yield "engagement-dashboard.png", _picture(tab, page.as_uri(), "email_event", 1000)


def _picture(tab: Tab, address: str, text: str, height: int) -> bytes:
    """Return a page as PNG, once it has a text and two looks at it are the same."""
    tab.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False)
    tab.call("Page.navigate", url=address)
    end, last = time.monotonic() + LONGEST, b""
    while time.monotonic() < end:
        time.sleep(2)
        found = base64.b64decode(tab.call("Page.captureScreenshot", format="png")["data"])
        if found == last and tab.value(f"document.body.innerText.includes({text!r})"):
            return found
        last = found
    raise SystemExit(f"{address} does not show {text!r} within {LONGEST} s.")


if __name__ == "__main__":
    main()
