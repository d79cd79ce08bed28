"""Clients with short sessions, closed at the end; names that no other test uses on a shared server; an ensemble."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from kazoo.client import KazooClient

from lake_assets.coordination import zookeeper_client
from lake_assets_tests.coordination.ensembles import Ensemble, three_servers

SESSION_SECONDS = 10.0
"""No test waits for the end of such a session, and a machine that stalls for some seconds does not end it."""
Connect = Callable[[], KazooClient]


@pytest.fixture
def connect(zookeeper: str) -> Iterator[Connect]:
    """Opens clients on the shared server, each with a session of its own."""
    with ExitStack() as stack:

        def opened() -> KazooClient:
            return stack.enter_context(zookeeper_client(zookeeper, session_seconds=SESSION_SECONDS))

        yield opened


@pytest.fixture
def lock_name() -> str:
    return f"lake-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """An ensemble of three."""
    with three_servers(tmp_path_factory.mktemp("ensemble")) as found:
        yield found
