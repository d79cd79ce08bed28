"""Clients with short sessions, closed at the end, and names that no other test uses on the shared server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient

SESSION_SECONDS = 2.0
Connect = Callable[[], KazooClient]


@pytest.fixture
def connect(zookeeper: str) -> Iterator[Connect]:
    """Opens clients on the shared server, each with a session of its own."""
    with ExitStack() as stack:

        def opened() -> KazooClient:
            zk = KazooClient(zookeeper, timeout=SESSION_SECONDS)
            zk.start()
            stack.callback(zk.close)
            stack.callback(zk.stop)
            return zk

        yield opened


@pytest.fixture
def lock_name() -> str:
    return f"lake-{uuid.uuid4().hex[:8]}"
