"""Which hours of a target a day's verification compares: some each day, so that all hours come round. Pure."""

from __future__ import annotations

from collections.abc import Collection

from lake_assets.base.grain import Grain

GOLDEN_RATIO = 2_654_435_769
TURN = 2**32
"""Steps of `GOLDEN_RATIO / TURN` of a circle visit its arcs evenly, also while the number of arcs changes (D. Knuth,
The Art of Computer Programming, volume 3, section 6.4): n arcs take fewer than 2 n steps. If a table grows by more
hours a day than are compared, no choice reaches all of them."""


def hours_of_day(candidates: Collection[int], *, day: int, limit: int, grain: Grain) -> tuple[int, ...]:
    """Return the hours to compare on a day, ascending: the candidates in one chunk of consecutive hours.

    Args:
        candidates: Hours that can be compared.
        day: Number of the day; any origin.
        limit: Most hours of a chunk. A chunk has one partition of the grain at least.
        grain: Chunks contain whole partitions.
    """
    size = max(1, limit // grain.hours)
    chunks = sorted({grain.number(hour) // size for hour in candidates})
    if not chunks:
        return ()
    angle = day * GOLDEN_RATIO % TURN
    chosen = chunks[angle * len(chunks) // TURN]
    return tuple(sorted(hour for hour in candidates if grain.number(hour) // size == chosen))
