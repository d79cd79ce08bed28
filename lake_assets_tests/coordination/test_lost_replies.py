"""A write arrives and its reply does not: it is neither forgotten nor done twice, and leaves no contender."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lake_assets.coordination import ANY, JobCoordinator, zookeeper_client
from lake_assets_tests.coordination.conftest import Connect
from lake_assets_tests.coordination.lossy import CREATE, DELETE, TRANSACTION, LossyLine, lossy_line


@pytest.fixture
def line(zookeeper: str) -> Iterator[LossyLine]:
    with lossy_line(zookeeper) as found:
        yield found


@pytest.fixture
def coordinator(line: LossyLine, lock_name: str) -> Iterator[JobCoordinator]:
    """One whose client reaches the server over the lossy line alone."""
    with zookeeper_client(line.address, session_seconds=6) as zk:
        yield JobCoordinator(lock_name, "ingestion", ANY, zk, timeout=10)


@pytest.mark.parametrize("step", ["lock", "register", "done", "unlock"])
def test_a_step_whose_reply_is_lost_is_done_once(
    line: LossyLine, coordinator: JobCoordinator, connect: Connect, lock_name: str, step: str
) -> None:
    zk, path = connect(), f"/coordination/{lock_name}"
    zk.ensure_path(f"{path}/lock")
    kinds = {"lock": CREATE, "register": TRANSACTION, "done": TRANSACTION, "unlock": DELETE}
    answers = {}
    for name in ("lock", "register", "done", "unlock"):
        if name == step:
            line.lose_reply(kinds[name])
        answers[name] = getattr(coordinator, name)()
        contenders = zk.get_children(f"{path}/lock")
        assert len(contenders) == (0 if name == "unlock" else 1)
    assert line.lost == 1
    assert answers == {"lock": True, "register": None, "done": None, "unlock": True}
    data, status = zk.get(f"{path}/turn")
    assert b'"done"' in data
    assert status.version == 1  # created running, then set to done
