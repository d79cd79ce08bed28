"""The values that were kept last, up to a total weight. Threads may share them."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Keeps values by key, for all threads. When they weigh more than allowed, those that were kept first go.

    Attributes:
        most: The greatest total weight. A single value stays, however heavy it is.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._weight = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Key) -> Value | None:
        """Return the value of a key; None if it is not kept."""
        with self._lock:
            found = self._values.get(key)
        return None if found is None else found[0]

    def keep(self, key: Key, value: Value, *, weight: int = 1) -> None:
        """Keep a value in the place of an earlier one of the same key."""
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = value, weight
            self._weight += weight - before
            while self._weight > self.most and len(self._values) > 1:
                _, (_, gone) = self._values.popitem(last=False)
                self._weight -= gone

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._values.clear()
            self._weight = 0
