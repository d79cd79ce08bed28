"""Which ids requests connect with given ones, in either direction and at any time. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

Link = tuple[str, str | None]
"""old_id and new_id of a request; the latter is None for a delete."""


def connected_ids(links: Sequence[Link], ids: Iterable[str]) -> set[str]:
    """Return the given ids and all that links connect with them, directly or through others."""
    neighbours: defaultdict[str, list[str]] = defaultdict(list)
    for old_id, new_id in links:
        if new_id is not None:
            neighbours[old_id].append(new_id)
            neighbours[new_id].append(old_id)
    found = set(ids)
    to_visit = list(found)
    while to_visit:
        for neighbour in neighbours.get(to_visit.pop(), ()):
            if neighbour not in found:
                found.add(neighbour)
                to_visit.append(neighbour)
    return found
