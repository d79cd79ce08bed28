"""The job coordinator: jobs take turns in a declared order, under a lock with fencing tokens.

    lock → register → (claim → work → checkpoint) → done → unlock

docs/coordination.md describes the guarantees and the assumptions behind them.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kazoo.protocol.states import KazooState

from lake_assets.connections.addresses import required, zookeeper_address
from lake_assets.connections.zookeeper import zookeeper_client
from lake_assets.coordination.lock import LockHandle, acquire, holder, in_background, repeat_until_done
from lake_assets.coordination.registry import Registry
from lake_assets.coordination.rules import ANY, Refused, Turn, checked_name, decide, stream
from lake_assets.errors import ConfigurationError, CoordinationError, LockLost, LockNotFree, TurnRefused, not_holder
from lake_assets.settings import settings

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

PREFIX = "job.coordinator."
SPARK = "spark."
"""Before the prefix, in a configuration of Spark, which drops other properties."""

LOCK_NAME, NAME, PREDECESSOR = KEYS = (f"{PREFIX}lock.name", f"{PREFIX}name", f"{PREFIX}predecessor")
ANY_WORD = "any"
"""As a predecessor: after any stream, like `ANY`."""

_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)")
"""A line of a properties file: a key, and behind `=`, `:` or white space its value."""

_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


@dataclass(frozen=True)
class TurnProperties:
    """What `KEYS` say. predecessor: names, or `ANY` among them."""

    lock_name: str
    name: str
    predecessor: frozenset[str]

    @classmethod
    def read(cls, source: Mapping[str, str] | str | Path | SparkSession | SparkConf) -> Self:
        """Return what a mapping, a properties file or a configuration of Spark says.

        Raises:
            ConfigurationError: A property is missing, empty, unknown or invalid; the message names it.
        """
        where = f"{source}: " if isinstance(source, str | Path) else ""
        found = _own(_entries(source), where)
        for key in KEYS:
            if not found.get(key):
                state = "empty" if key in found else "missing"
                raise ConfigurationError(
                    f"{where}The property {key} is {state}.", remedy=f"Set {key}: {_MEANING[key]}."
                )
        predecessors = [name.strip() for name in found[PREDECESSOR].split(",")]
        names = {LOCK_NAME: [found[LOCK_NAME]], NAME: [found[NAME]], PREDECESSOR: predecessors}
        for key, values in names.items():
            for value in values:
                if key != PREDECESSOR or value not in (ANY, ANY_WORD):
                    _check_name(value, f"{where}The property {key} is {found[key]!r}")
        accepted = frozenset(ANY if name == ANY_WORD else name for name in predecessors)
        return cls(found[LOCK_NAME], found[NAME], accepted)


_MEANING = {
    LOCK_NAME: "the name of what the streams share",
    NAME: "the name of this stream",
    PREDECESSOR: f"the stream after which it may run, several with commas, or `{ANY_WORD}`",
}


def _check_name(name: str, where: str) -> None:
    try:
        checked_name(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}, and {error.problem}", remedy=error.remedy) from None


def _own(entries: Iterator[tuple[str, object]], where: str) -> dict[str, str]:
    """Return those of `KEYS` that are given, stripped."""
    found: dict[str, str] = {}
    for given, value in entries:
        key = given.removeprefix(SPARK)
        if not key.startswith(PREFIX):
            continue
        if key not in KEYS:
            raise ConfigurationError(f"{where}The property {given} is unknown.", remedy=f"Name {', '.join(KEYS)}.")
        if not isinstance(value, str):
            raise ConfigurationError(
                f"{where}The property {given} is {value!r}, which is no text.", remedy=f"Write {_MEANING[key]}."
            )
        if found.setdefault(key, value.strip()) != value.strip():
            raise ConfigurationError(
                f"{where}The property {key} is {found[key]!r} and, with or without {SPARK}, {value.strip()!r}.",
                remedy="Remove one of them.",
            )
    return found


def _entries(source: Mapping[str, str] | str | Path | SparkSession | SparkConf) -> Iterator[tuple[str, object]]:
    if isinstance(source, Mapping):
        yield from source.items()
    elif isinstance(source, str | Path):
        yield from _of_file(Path(source))
    else:
        configuration: Any = getattr(source, "conf", source)  # of a session, or a SparkConf
        entries = configuration.getAll
        yield from dict(entries() if callable(entries) else entries).items()


def _of_file(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the entries of a properties file; of a key that is written twice, the last one."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}.", remedy="Name a properties file.") from None
    found: dict[str, str] = {}
    begun = ""
    for written in [*text.splitlines(), ""]:
        line = written.lstrip()
        if not begun and line.startswith(("#", "!")):
            continue
        line = begun + line
        if (len(line) - len(line.rstrip("\\"))) % 2:  # it goes on in the next line
            begun = line[:-1]
            continue
        begun = ""
        key, value = _ENTRY.fullmatch(line).groups()  # type: ignore[union-attr]  # it matches every line
        if key:
            found[_unescaped(key)] = _unescaped(value)
    yield from found.items()


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else _LETTERS.get(found[2], found[2]), text)


LOCK_SECONDS = 60.0
"""How long `lock()` waits, unless a program says how long."""

RETRY_SECONDS = 1.0
"""Between a refusal and the next try."""

HOLDER_SECONDS = 5.0
"""How long an error waits for the name of the stream that holds the lock, if ZooKeeper is slow to answer."""

Claim = Callable[[int], None]
"""Writes the token to the guarded resource. It must refuse (`check_claim`) if the resource has a greater token."""


class JobCoordinator:
    """One stream's access to one lock.

    Several threads may call `turn()`; the other methods are for one thread. As a context manager, it is closed at the
    end of the block. A stream that has ended starts again with a new coordinator.
    """

    def __init__(
        self,
        lock_name: str,
        name: str,
        predecessor: str | Collection[str],
        zk: KazooClient,
        timeout: float,
        *,
        first: bool = False,
        claim: Claim | None = None,
        may_begin: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write nothing yet.

        Args:
            lock_name: The guarded resource.
            name: This stream.
            predecessor: The stream or streams after which it may run, or `ANY`.
            zk: A started client. Its session timeout is how long a killed holder keeps the lock.
            timeout: Seconds that `lock()` waits; more than 0.
            first: Whether it may run when no stream has run yet. A stream with predecessor `ANY` always may.
            claim: What `claim()` calls.
            may_begin: Called under the lock before a turn begins. If it raises, no turn begins, and the lock is free.
            clock: Monotonic seconds.

        Raises:
            ConfigurationError: A name or the timeout is invalid.
        """
        if timeout <= 0:
            raise ConfigurationError(f"The lock timeout of {name} is {timeout:g} s.", remedy="Set more than 0 s.")
        self.stream = stream(name, predecessor, first=first)
        self._zk = zk
        self._timeout = timeout
        self._claim = claim
        self._may_begin = may_begin
        self._clock = clock
        self._registry = Registry(zk, lock_name)
        self._handle: LockHandle | None = None
        self._turn: Turn | None = None
        self._own_client = ExitStack()
        self._one_turn = threading.Lock()

    @classmethod
    def from_properties(
        cls,
        properties: Mapping[str, str] | str | Path | SparkSession | SparkConf,
        *,
        zookeeper: str | KazooClient | None = None,
        timeout: float = LOCK_SECONDS,
        first: bool = False,
        claim: Claim | None = None,
    ) -> Self:
        """Return the coordinator that properties describe.

        `job.coordinator.lock.name` is the guarded resource, `job.coordinator.name` this stream, and
        `job.coordinator.predecessor` the stream after which it may run: one name, several with commas, or `any`. Each
        may have the prefix `spark.`. Properties of other names are ignored.

        Args:
            properties: A mapping, the path of a properties file as Java and Spark read it, or a configuration of Spark.
            zookeeper: `host:port,...` of the ensemble, with which a session begins that `close()` ends; or a started
                client, which stays open. None: LAKE_ZOOKEEPER, or the one of `lake up`.
            timeout: Seconds that `lock()` waits; more than 0.
            first: Whether it may run when no stream has run yet. A stream with predecessor `any` always may.
            claim: What `claim()` calls.

        Raises:
            ConfigurationError: A property is missing, empty, unknown or invalid; the message names it.
            ServiceError: No ZooKeeper is known, or none answers.
        """
        found = TurnProperties.read(properties)
        with ExitStack() as own:
            if zookeeper is None or isinstance(zookeeper, str):
                hosts = required(zookeeper_address(settings()), "ZooKeeper") if zookeeper is None else zookeeper
                zookeeper = own.enter_context(zookeeper_client(hosts))
            coordinator = cls(
                found.lock_name, found.name, found.predecessor, zookeeper, timeout, first=first, claim=claim
            )
            coordinator._own_client = own.pop_all()
        return coordinator

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock, stop waiting, and end the session that `from_properties` began. Safe to repeat."""
        self._own_client.close()
        self.unlock()
        self.give_up()

    @property
    def token(self) -> int:
        """The fencing token of the lock; a later holder's token is greater. `CoordinationError` without the lock."""
        return self._required_handle().token

    def lock(self, timeout: float | None = None) -> bool:
        """Acquire the lock if this coordinator does not hold it yet.

        Args:
            timeout: Seconds to wait; None: the coordinator's timeout.

        Returns:
            Whether the lock is held now. If not, no contender is left behind.
        """
        if self._handle and self._handle.is_lost:
            self.unlock()
        if self._handle is None:
            seconds = self._timeout if timeout is None else timeout
            self._handle = acquire(self._zk, self._registry.lock_path, self.stream.name, seconds, self._clock)
        return self._handle is not None

    def register(self) -> str | None:
        """Begin a turn, or resume an interrupted turn of this stream. The turn is recorded as running.

        Returns:
            The stream that ran before; None if there was none. A second call returns the same.

        Raises:
            TurnRefused: It is not this stream's turn. The lock is released, and the stream is noted as waiting until
                it is granted a turn, gives up, or ends.
            CoordinationError: The lock is not held.
            LockLost: The lock is released.
            CoordinationError: The registry is damaged. The lock is released.
            Exception: What `may_begin` raises. The lock is released.
        """
        handle = self._required_handle()
        if self._turn is None:
            try:
                self._may_begin()
                self._turn = self._begin(handle)
            except Exception:
                self.unlock()
                raise
        return self._turn.predecessor

    def _begin(self, handle: LockHandle) -> Turn:
        last = self._registry.last(handle)
        waiting = self._registry.waiting(handle)
        verdict = decide(self.stream, last, waiting)
        if isinstance(verdict, Refused):
            self._registry.leave_waiting(handle, self.stream)
            raise TurnRefused(self.stream.name, verdict.reason)
        turn = Turn(self.stream.name, "running", handle.token, verdict.predecessor)
        self._registry.write(handle, turn)
        return turn

    def claim(self) -> int:
        """Write the token to the guarded resource.

        Call it in a registered turn, before the first read that the work depends on. Idle turns need no claim.

        Returns:
            The token.

        Raises:
            LockLost: Another stream may hold the lock.
            Exception: What the claim function raises.
        """
        self._required_turn()
        if self._claim is None:
            raise ConfigurationError(f"{self.stream.name} has no claim function.", remedy="Pass claim=... to it.")
        self.confirm()
        self._claim(self.token)
        return self.token

    def confirm(self) -> None:
        """Return if the lock is still held; block while there is no connection. Call it before each commit.

        Raises:
            LockLost: Another stream may hold the lock.
        """
        handle = self._required_handle()
        try:
            handle.write()
        except LockLost:
            self.unlock()
            raise

    def explain(self, note: str) -> None:
        """Record why the turn is not done. Streams that are refused because of it name the reason.

        Raises:
            LockLost: Another stream may hold the lock.
        """
        self._turn = replace(self._required_turn(), note=note)
        self._registry.write(self._required_handle(), self._turn)

    def done(self) -> None:
        """End the turn after its work is checkpointed. A second call changes nothing.

        Raises:
            LockLost: Another stream may hold the lock.
        """
        turn = self._required_turn()
        handle = self._required_handle()
        try:
            self._registry.write(handle, Turn(turn.name, "done", turn.token, turn.predecessor))
        except CoordinationError:
            self.unlock()
            raise

    def unlock(self) -> bool:
        """Release the lock if this coordinator holds it.

        A turn that is not done stays *running*: only this stream can resume it.

        Returns:
            Whether the lock was held until now.
        """
        handle = self._handle
        self._handle = None
        self._turn = None
        return handle is not None and handle.release(self._timeout)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock around work that is not a turn.

        Yields:
            The token.

        Raises:
            LockNotFree: The lock was not free within the coordinator's timeout.
        """
        if not self.lock():
            raise self._not_free(self._timeout)
        try:
            yield self.token
        finally:
            self.unlock()

    def give_turn(self, name: str) -> None:
        """Record a turn of the stream `name` as running, whichever stream ran last. Only that stream can then run.

        It repairs a registry that was lost before the stream's work was done.

        Raises:
            CoordinationError: The lock is not held.
            LockLost: Another stream may hold the lock.
        """
        handle = self._required_handle()
        self._registry.write(handle, Turn(checked_name(name), "running", handle.token))

    def give_up(self) -> None:
        """Stop waiting: streams that accept any predecessor no longer yield to this one."""

        def withdraw() -> bool:
            repeat_until_done(self._zk, lambda: self._registry.withdraw(self.stream.name))
            return True

        in_background(self._zk, withdraw, self._timeout)

    @contextmanager
    def turn(self, *, max_wait: float, sleep: Callable[[float], None] = time.sleep) -> Iterator[str | None]:
        """Run the block as a whole turn: `lock()` and `register()`, repeated each second, then `done()` and `unlock()`.

        If the block raises, the turn stays running. Turns of several threads come one after the other.

        Args:
            max_wait: Seconds to wait for the turn.
            sleep: Waits between two tries.

        Yields:
            What `register()` returns.

        Raises:
            TurnRefused: It was not this stream's turn within `max_wait` seconds. No node of the attempt is left.
            LockNotFree: The lock was not free within `max_wait` seconds. No node of the attempt is left.
            LockLost: Another stream may hold the lock, so the turn is not recorded as done.
        """
        end = self._clock() + max_wait
        if not self._one_turn.acquire(timeout=max_wait):
            raise self._not_free(max_wait)
        try:
            predecessor = self._wait_for_turn(max_wait, end, sleep)
            try:
                yield predecessor
                self.done()
            finally:
                self.unlock()
        finally:
            self._one_turn.release()

    def _wait_for_turn(self, max_wait: float, end: float, sleep: Callable[[float], None]) -> str | None:
        try:
            while True:
                refused: CoordinationError | None = None
                seconds_left = end - self._clock()
                try:
                    if self.lock(max(RETRY_SECONDS, min(self._timeout, seconds_left))):
                        return self.register()
                except (TurnRefused, LockLost) as error:
                    refused = error
                if self._clock() + RETRY_SECONDS > end:
                    raise refused or self._not_free(max_wait)
                sleep(RETRY_SECONDS)
        except BaseException:
            self.give_up()
            raise

    def _not_free(self, seconds: float) -> LockNotFree:
        path = self._registry.lock_path
        answers = self._zk.state == KazooState.CONNECTED
        held_by = holder(self._zk, path, HOLDER_SECONDS) if answers else None
        return LockNotFree(path, seconds=seconds, stream=self.stream.name, holder=held_by, answers=answers)

    def _required_handle(self) -> LockHandle:
        if self._handle is None:
            raise not_holder(self.stream.name, needs="lock()")
        return self._handle

    def _required_turn(self) -> Turn:
        if self._turn is None:
            raise not_holder(self.stream.name, needs="lock() and register()")
        return self._turn
