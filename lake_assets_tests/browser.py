"""A real browser without a window, driven by its DevTools protocol: what a page looks like, in numbers.

`BROWSER` is the first Chromium on the path. Without one, tests that look at pages are skipped, except where CI is set,
where `make test` installs one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), "")
LONGEST = 240
"""Seconds that the browser may take to start, or to answer, on a busy machine."""

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)

MEASURE = Path(__file__).with_name("browser_measure.js").read_text()


def require_browser() -> None:
    """Skip the test without a browser; fail where CI is set, because nobody would notice there."""
    if BROWSER:
        return
    reason = f"none of these browsers is on the path: {', '.join(NAMES)}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass(frozen=True)
class Look:
    """What a page looks like, and what its console says."""

    measured: dict[str, Any]
    errors: list[str]


@dataclass
class Tab:
    """One tab of a running browser."""

    connection: ClientConnection
    session: str = ""
    errors: list[str] = field(default_factory=list)
    _last: int = 0

    def look(
        self, page: Path, width: int, height: int, *, dark: bool = False, script: str = MEASURE, query: str = ""
    ) -> Look:
        """Open a page in a window of this size, and measure it once it has loaded. query: the end of its address."""
        self.errors.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.wait("Page.loadEventFired")
        self.call("Page.navigate", url=f"{page.as_uri()}{query}")
        self.wait("Page.loadEventFired")
        measured = self.value(script)
        return Look(measured, list(self.errors))

    def value(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.connection.send(json.dumps(message))
        while (heard := self._hear()).get("id") != self._last:
            pass
        assert "error" not in heard, heard
        result: dict[str, Any] = heard["result"]
        return result

    def wait(self, event: str) -> None:
        """Wait for an event that has not happened yet."""
        while self._hear().get("method") != event:
            pass

    def _hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(self.connection.recv(timeout=LONGEST))
        said = heard.get("params", {})
        match heard.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(said["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                self.errors.append(str(said["args"]))
            case "Log.entryAdded" if said["entry"]["level"] == "error":
                self.errors.append(said["entry"]["text"])
        return heard


@contextmanager
def open_tab(folder: Path) -> Iterator[Tab]:
    """Yield a tab of a new browser, whose processes end with the block. folder: for its profile."""
    profile = folder / "profile"
    command = [BROWSER, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(_address(profile), max_size=None, open_timeout=LONGEST) as connection:
            tab = Tab(connection)
            target = tab.call("Target.createTarget", url="about:blank")["targetId"]
            tab.session = tab.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                tab.call(f"{domain}.enable")
            yield tab
            tab.session = ""
            tab.call("Browser.close")
        process.wait(LONGEST)
    finally:
        process.kill()
        process.wait()


def _address(profile: Path) -> str:
    """Wait until the browser has written where it listens."""
    for attempt in Retrying(
        retry=retry_if_exception_type((FileNotFoundError, ValueError)),
        wait=wait_fixed(0.1),
        stop=stop_after_delay(LONGEST),
        reraise=True,
    ):
        with attempt:
            port, path = (profile / "DevToolsActivePort").read_text().split()
    return f"ws://127.0.0.1:{port}{path}"
