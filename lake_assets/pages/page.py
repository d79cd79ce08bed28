"""A page that needs nothing else: one HTML file, plotly itself within. It loads nothing from anywhere.

Every value goes through Jinja's escaping, into tables and into the JSON of the charts alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs


def render(template: str, filters: Mapping[str, Callable[..., str]] | None = None, **values: object) -> str:
    """The whole page. template: a file of this folder, which puts `plotly` and the values where they belong."""
    loader = FileSystemLoader(Path(__file__).parent)
    jinja = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    jinja.filters |= filters or {}
    return jinja.get_template(template).render(plotly=Markup(get_plotlyjs()), **values)


def write(page: str, file: Path) -> Path:
    """Write a page; its absolute path. Its folder is made when missing; an older page is replaced."""
    file = file.expanduser().absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file
