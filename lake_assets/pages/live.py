"""A page that is built when it is asked for, as an ASGI application: `lake report --serve` and others.

A page is kept for a few seconds, so several tabs cost one reading. What goes wrong becomes a page that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from lake_assets.errors.described import describe
from lake_assets.errors.texts import ErrorText
from lake_assets.pages.page import marked, render_plain

CACHE_SECONDS = 5.0
"""How long a page is shown again without reading anything."""

UNAVAILABLE = 503
ERROR_TEMPLATE = "problem.html"
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}


@dataclass
class CachedPage:
    """A page that is built at most once in `CACHE_SECONDS`. A failure is not kept.

    Attributes:
        build: Builds the page.
        clock: Gives seconds that never go back.
    """

    build: Callable[[], str]
    clock: Callable[[], float]
    _lock: Lock = field(default_factory=Lock)
    _page: str = ""
    _until: float | None = None

    def read(self) -> str:
        """Return the page. Requests that come meanwhile wait for it and get the same one."""
        with self._lock:
            if self._until is None or self.clock() >= self._until:
                self._until = None
                self._page = self.build()
                self._until = self.clock() + CACHE_SECONDS
            return self._page


def application(
    build: Callable[[], str], *, name: str, clock: Callable[[], float], log: Callable[[Exception], object]
) -> Starlette:
    """Return the application. It answers GET /, and nothing else.

    Args:
        build: Builds the page.
        name: Heading of the page that says what is wrong.
        clock: Gives seconds that never go back.
        log: Is given each error that a request met.
    """
    cached = CachedPage(build, clock)

    def show(_: Request) -> HTMLResponse:  # no coroutine: it runs in a thread, because it reads files and services
        try:
            return HTMLResponse(cached.read(), headers=HEADERS)
        except Exception as error:  # of any library that reading a lake uses
            log(error)
            return HTMLResponse(problem_page(name, describe(error)), UNAVAILABLE, HEADERS)

    return Starlette(routes=[Route("/", show, methods=["GET"])])


def problem_page(name: str, text: ErrorText) -> str:
    """Return a page that says what is wrong and what to do."""
    return render_plain(ERROR_TEMPLATE, {"marked": marked}, name=name, text=text)
