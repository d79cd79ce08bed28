"""Pictures in SVG, line by line. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape


def picture(width: float, height: float, lines: Iterable[str]) -> str:
    """Return a picture with a white ground and these lines in it. Lengths are in pixels."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([f'{head} font-size="12">', ground, *lines, "</svg>", ""])


def words(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = "black") -> str:
    """Return the line of a text. x, y: where its base line starts, ends or has its middle, as `anchor` says."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(text)}</text>'
