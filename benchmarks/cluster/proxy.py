"""A proxy in front of a server of this machine, which disturbs what passes: slow, refused, lost or cut off.

It runs in the process of whoever plays faults. It passes bytes and knows of HTTP only where a request begins, so it
stands before any server. An answer is lost after the server has done what was asked.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lake_assets.connections.addresses import LOOPBACK

PART_BYTES = 1 << 16
POLL_SECONDS = 0.1
REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) ")
INTERIM = b"HTTP/1.1 100"
"""The answer to `Expect: 100-continue`: it comes before the request is done."""

REFUSAL = "HTTP/1.1 {status} Fault\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Disturbance:
    """What happens to requests and answers on their way.

    Attributes:
        status: A request is answered by this status of HTTP, and does not reach the server; None: it is passed on.
        delay_seconds: How long each part of a request waits.
        is_lost: Whether the connection ends in place of an answer.
        is_cut: Whether nothing passes. Connections on which something waits then end with the disturbance.
        share: Part of the requests or answers that `status` and `is_lost` concern.
    """

    status: int | None = None
    delay_seconds: float = 0
    is_lost: bool = False
    is_cut: bool = False
    share: float = 1


CALM = Disturbance()
"""Everything passes."""


class Proxy:
    """A port that leads to another one.

    Args:
        target: Port of the server, on loopback.
        chance: Chooses the requests and answers of a disturbance that has a share.

    Attributes:
        disturbance: What happens to what passes from now on.
        port: Where clients connect; 0 before it serves.
        held: Number of requests and answers that a cut holds back.
    """

    def __init__(self, target: int, chance: random.Random) -> None:
        self.disturbance = CALM
        self.port = 0
        self.held = 0
        self._target = target
        self._chance = chance
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()

    @contextmanager
    def serving(self) -> Iterator[Proxy]:
        """Pass on what comes to `port` until the block ends."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        self._listening.wait()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, LOOPBACK, 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(POLL_SECONDS))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):  # cancelled at the end: a task of streams must not be
            upstream = await asyncio.open_connection(LOOPBACK, self._target)
            ways = [self._pass_requests(reader, upstream[1], writer), self._pass_answers(upstream[0], writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                upstream[1].close()
        writer.close()

    async def _pass_requests(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while part := await source.read(PART_BYTES):
                found = self.disturbance
                if await self._is_cut_off():
                    return
                if found.status is not None and REQUEST.match(part) and self._concerns(found):
                    await _refuse(found.status, source, client)
                    return
                await asyncio.sleep(found.delay_seconds)
                target.write(part)
                await target.drain()

    async def _pass_answers(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while part := await source.read(PART_BYTES):
                found = self.disturbance
                is_lost = found.is_lost and not part.startswith(INTERIM) and self._concerns(found)
                if is_lost or await self._is_cut_off():
                    return
                target.write(part)
                await target.drain()

    async def _is_cut_off(self) -> bool:
        """Return False at once if everything passes, and otherwise True when the cut has ended."""
        was_cut = self.disturbance.is_cut
        self.held += was_cut
        while self.disturbance.is_cut:
            await asyncio.sleep(POLL_SECONDS)
        self.held -= was_cut
        return was_cut

    def _concerns(self, found: Disturbance) -> bool:
        return self._chance.random() < found.share


async def _refuse(status: int, source: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    client.write(REFUSAL.format(status=status).encode())
    client.write_eof()
    while await source.read(PART_BYTES):  # a connection that ends with unread bytes may end without the answer
        pass
