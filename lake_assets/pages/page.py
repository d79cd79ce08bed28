"""Renders a self-contained HTML page: one file that includes plotly and loads nothing from elsewhere.

Jinja escapes every value, in tables and in the JSON of the charts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

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
