"""How a step over many tables shows how far it is. Who calls the step decides whether anything is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")


class Progress(Protocol):
    """Yields the items in their order, and may show how many of them are done."""

    def __call__(self, items: Sequence[Item], /) -> Iterable[Item]:
        """Return the items."""


def unseen(items: Sequence[Item], /) -> Iterable[Item]:
    """Return the items, and show nothing."""
    return items
