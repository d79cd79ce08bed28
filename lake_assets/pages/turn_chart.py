"""The turns that streams took on one lock, as a picture in text: a line for each stream. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 72
"""The number of characters of a line, in addition to its name."""

TAKEN, FREE = "█", "·"


@dataclass(frozen=True)
class TakenTurn:
    """A turn. began, ended: in seconds, by one clock; the end is exclusive."""

    stream: str
    began: float
    ended: float


def turn_lines(turns: Sequence[TakenTurn], names: Sequence[str]) -> list[str]:
    """Return a line for each stream, in which a block stands for the time of its turns, and one with the scale.

    A turn has at least one block, so a short one may seem to touch its neighbours.

    Args:
        turns: At least one.
        names: The streams, in the order of their lines.
    """
    start = min(turn.began for turn in turns)
    length = max(turn.ended for turn in turns) - start
    indent = max(len(name) for name in names)
    lines = []
    for name in names:
        cells = [FREE] * WIDTH
        for turn in turns:
            if turn.stream == name:
                first = _cell(turn.began - start, length)
                last = max(first, _cell(turn.ended - start, length) - 1)
                cells[first : last + 1] = TAKEN * (last + 1 - first)
        lines.append(f"{name:<{indent}} {''.join(cells)}")
    return [*lines, f"{'':<{indent}} 0 s{f'{length:.0f} s':>{WIDTH - 3}}"]


def _cell(seconds: float, length: float) -> int:
    if not length:
        return 0
    return min(int(seconds / length * WIDTH), WIDTH - 1) if seconds < length else WIDTH
