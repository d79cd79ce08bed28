"""A runner: a thread that stands still at each step of a session until it is told to go on, or to die.

Only one of them runs at a time, so a schedule is played the same way again. Each has a catalog of its own, as another
process has. It stands still before and after each commit by pyiceberg, before each look at a table, and at the
failpoints of a session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Semaphore, Thread, current_thread
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitStateUnknownException

from lake_assets.base import failpoints

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

LOOK, COMMIT, COMMITTED, POINT = "look", "commit", "committed", "point"
EVERY = (LOOK, COMMIT, COMMITTED, POINT)
LONGEST = 300
"""Seconds that a step may take."""


class Died(BaseException):
    """The runner's process ended. No `except Exception` takes it for an error."""


class Runner(Thread):
    """Work that is done step by step."""

    def __init__(self, name: str, work: Callable[[], object]) -> None:
        super().__init__(name=name, daemon=True)
        self.work = work
        self.at = "start"
        self.over = self.doomed = False
        self.error: BaseException | None = None
        self.result: object = None
        self.lost: list[str] = []
        """Replies that are lost from here on: `done`, if the commit happens all the same, else `undone`."""
        self.has_lost = False
        self._until: Collection[str] = EVERY
        self._go, self._stands = Semaphore(0), Semaphore(0)
        self.start()

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self.doomed:
                self.result = self.work()
        except Died:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._stands.release()

    def go_on(self, until: Collection[str] = ()) -> None:
        """Go on to the next step of some kinds; by default, to the end."""
        self._until = until
        self._go.release()
        assert self._stands.acquire(timeout=LONGEST), f"{self.name} hangs at {self.at}"

    def die(self) -> None:
        self.doomed = True
        self.go_on()

    def reach(self, kind: str, what: str) -> None:
        """Called in the runner's thread."""
        if not self.doomed:
            self.at = f"{kind} {what}"
            if kind in self._until:
                self._stands.release()
                self._go.acquire()
        if self.doomed:  # also in a `finally`: a dead process tidies nothing up
            raise Died


def reach(kind: str, what: str) -> None:
    """Stand still, in a runner's thread; elsewhere, go on."""
    thread = current_thread()
    if isinstance(thread, Runner):
        thread.reach(kind, what)


def watched(catalog: Catalog, on_commit: Callable[[str, Any], None]) -> Catalog:
    """The catalog, at whose calls a runner stands still, and whose replies may be lost.

    Args:
        catalog: A catalog that nobody else uses.
        on_commit: Called after each commit, with the table's name and the updates.
    """
    load_table, commit_table = catalog.load_table, catalog.commit_table

    def look(identifier: Any) -> Table:
        reach(LOOK, str(identifier))
        return load_table(identifier)

    def commit(table: Table, requirements: Any, updates: Any) -> Any:
        name = ".".join(table.name()[-2:])
        reach(COMMIT, name)
        thread = current_thread()
        lost = thread.lost.pop() if isinstance(thread, Runner) and thread.lost else None
        if lost is not None and isinstance(thread, Runner):
            thread.has_lost = True
        if lost == "undone":
            raise CommitStateUnknownException("the reply was lost")
        response = commit_table(table, requirements, updates)
        on_commit(name, updates)
        if lost == "done":
            raise CommitStateUnknownException("the reply was lost")
        reach(COMMITTED, name)
        return response

    catalog.load_table, catalog.commit_table = look, commit  # type: ignore[method-assign]
    return catalog


@contextmanager
def at_failpoints() -> Iterator[None]:
    """Within the block, a runner stands still at the failpoints."""
    strike = failpoints._strike
    failpoints._strike = lambda point: reach(POINT, point)
    try:
        yield
    finally:
        failpoints._strike = strike
