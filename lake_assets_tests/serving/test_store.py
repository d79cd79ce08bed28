"""Files are listed before the lineage is read, so what another writer begins in between is not taken for garbage."""

from __future__ import annotations

from collections.abc import Callable

from lake_assets.connections.zookeeper import COMMAND_SECONDS
from lake_assets.serving.lineage import Change, start_replace
from lake_assets.serving.registry import Registry, States
from lake_assets.serving.store import Store
from lake_assets_tests.serving.scenario import World, now


class Followed(Registry):
    """Something happens right after the first read."""

    def __init__(self, found: World, happens: Callable[[], None]) -> None:
        super().__init__(found.zk)
        self._happens = [happens]

    def read(self, *tables: str, seconds: float = COMMAND_SECONDS) -> States:
        states = super().read(*tables, seconds=seconds)
        while self._happens:
            self._happens.pop()()
        return states


def test_an_upload_that_begins_during_a_clean_up_is_left_alone(served: World) -> None:
    served.push(1)
    path = served.files.path(served.table, "garbage")
    path.write_bytes(b"?")
    upload = served.files.path(served.table, "upload")

    def begin() -> None:
        """What a push of another process does first: an entry, then a file."""

        def decide(states: States) -> dict[str, Change]:
            state = states[served.table]
            return {
                served.table: start_replace(
                    state.lineage,
                    segments_from=state.routed,
                    segments_to=["upload"],
                    routed=state.routed,
                    now=now(),
                )
            }

        served.registry.update(decide, served.table)
        upload.write_bytes(b"rows")

    store = Store(Followed(served, begin), served.files, served.leases, clock=now)
    assert store.remove_unreferenced(served.table, wait=True) == ("garbage",)
    assert upload.exists()
    assert served.writer.remove_unreferenced(served.table, wait=True) == ()
    assert not path.exists()
