"""A self-contained HTML page: one file that includes plotly and loads nothing from elsewhere; and its server.

Jinja escapes every value, in tables and in the JSON of the charts. The server reads the page anew at each request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from lake_assets.base.described import describe
from lake_assets.errors import ErrorText

_COMMAND = re.compile(r"`([^`]+)`")

Filters = Mapping[str, Callable[..., str]]


def render(template: str, filters: Filters | None = None, **values: object) -> str:
    """Return the HTML of a template, with the plotly library in `plotly`.

    Args:
        template: A template of this folder.
        filters: Additional Jinja filters by name.
        **values: The variables of the template.
    """
    return render_plain(template, filters, plotly=Markup(get_plotlyjs()), **values)


def render_plain(template: str, filters: Filters | None = None, **values: object) -> str:
    """Return the HTML of a template without the plotly library. The arguments are those of `render`."""
    jinja = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= filters or {}
    return jinja.get_template(template).render(**values)


def marked(text: str) -> Markup:
    """Return a text as HTML, escaped, with commands between backticks as code."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(text))))


def write(page: str, file: Path) -> Path:
    """Write a page, and replace an older one. A missing folder is created.

    Returns:
        The absolute path of the page.
    """
    file = file.expanduser().absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file


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
