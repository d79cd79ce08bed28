"""A line to a ZooKeeper server that can be cut, or lose a reply: the request arrives, then the connection breaks."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Types of requests, as ZooKeeper's protocol numbers them (ZooDefs.OpCode).
CREATE, DELETE, EXISTS, TRANSACTION = 1, 2, 3, 14


class LossyLine:
    """Listens on loopback, and passes everything on. lose_reply: to the next request of a type."""

    def __init__(self, server: str) -> None:
        host, port = server.split(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._armed: int | None = None
        self.lost = 0
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_reply(self, kind: int) -> None:
        self._armed = kind

    def close(self) -> None:
        with suppress(OSError):  # closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait for a connection, which would still be accepted
        self._listener.close()

    def cut(self) -> None:
        """Break all connections, and take no new one."""
        self.close()
        hang_up(*self._ends)

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._server)
                self._ends += (client, server)
                doomed: set[int] = set()
                for work in (self._requests, self._replies):
                    threading.Thread(target=work, args=(client, server, doomed), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, doomed: set[int]) -> None:
        for number, frame in enumerate(frames(client)):
            number_of_request, kind = struct.unpack(">ii", frame[4:12])
            if number and kind == self._armed:  # the first frame opens the session, and has no type
                self._armed = None
                doomed.add(number_of_request)
            server.sendall(frame)
        hang_up(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, doomed: set[int]) -> None:
        for number, frame in enumerate(frames(server)):
            if number and struct.unpack(">i", frame[4:8])[0] in doomed:
                self.lost += 1
                break
            client.sendall(frame)
        hang_up(client, server)


def frames(source: socket.socket) -> Iterator[bytes]:
    """Requests or replies with their four bytes of length, until the connection ends."""
    with suppress(OSError), source.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            yield head + stream.read(struct.unpack(">i", head)[0])


def hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def lossy_line(server: str) -> Iterator[LossyLine]:
    line = LossyLine(server)
    try:
        yield line
    finally:
        line.close()
