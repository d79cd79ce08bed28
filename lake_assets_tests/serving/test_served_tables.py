"""Served tables on a real ZooKeeper and a real folder: pushes, reverts and clean-ups, with others in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kazoo.exceptions import KazooException
from kazoo.retry import RetryFailedError
from pydantic import ValidationError

from lake_assets.coordination import zookeeper_client
from lake_assets.errors import EntryEnded, SegmentDamaged, ServingError, UsageError
from lake_assets.serving.lineage import Change, Retention, State, end_replace, start_replace
from lake_assets.serving.push import Writer
from lake_assets.serving.query import query
from lake_assets.serving.registry import LINEAGE, Registry, SegmentInfo, States
from lake_assets.serving.registry import SEGMENTS as SEGMENT_NODES
from lake_assets.serving.served_tables import open_serving
from lake_assets.serving.store import Policy, SegmentFiles, lineage_status, push_of, switched_with
from lake_assets.settings import Settings
from lake_assets_tests.coordination.conftest import Ensemble
from lake_assets_tests.coordination.lossy import CREATE, EXISTS, TRANSACTION, lossy_line
from lake_assets_tests.serving import full_disk
from lake_assets_tests.serving.child import start
from lake_assets_tests.serving.scenario import AT_ONCE, LIMITS, ROWS, SEGMENTS, World, fresh_name, now, snapshot, world

DAY = timedelta(hours=24)


def started(found: World, *targets: str) -> str:
    """An entry in progress that replaces what is routed, as a push leaves it that died."""

    def decide(states: States) -> dict[str, Change]:
        state = states[found.table]
        change = start_replace(
            state.lineage, segments_from=state.routed, segments_to=targets, routed=state.routed, now=now()
        )
        begun.append(change.entry_id)
        return {found.table: change}

    begun: list[str] = []
    found.registry.update(decide, found.table)
    return begun[-1]


def end(found: World, entry_id: str) -> None:
    def decide(states: States) -> dict[str, Change]:
        state = states[found.table]
        return {found.table: end_replace(state.lineage, entry_id, ready=state.segments, now=now())}

    found.registry.update(decide, found.table)


def test_a_push_is_seen_as_a_whole_and_taken_back_as_a_whole(served: World) -> None:
    with pytest.raises(ServingError, match="is served"):
        served.seen()
    first, second = served.push(1), served.push(2)
    assert (first.rows, len(first.segments), first.replaced) == (ROWS, SEGMENTS, ())
    assert second.replaced == tuple(sorted(first.segments))
    assert served.seen() == [2]
    served.writer.revert(served.table, second.entry_id)
    assert served.seen() == [1]
    assert served.stored() == SEGMENTS
    with pytest.raises(EntryEnded, match="was reverted"):
        served.writer.revert(served.table, second.entry_id)


def test_the_third_push_removes_the_first(served: World) -> None:
    first = served.push(1)
    served.push(2)
    assert served.push(3).removed == tuple(sorted(first.segments))
    assert served.stored() == 2 * SEGMENTS
    served.writer.revert(served.table, served.entries[-1])
    with pytest.raises(ServingError, match="no longer exists"):
        served.writer.revert(served.table, served.entries[-2])


@pytest.mark.parametrize("point", ["push-started", "push-half-uploaded", "push-registered"])
def test_a_push_that_dies_has_deleted_nothing_to_go_back_to(served: World, point: str) -> None:
    served.push(1)
    second = served.push(2)
    start(served, "push", "3", point=point).end()
    served.writer.revert(served.table, served.entries[-1], force=True)
    served.writer.revert(served.table, second.entry_id)
    assert (served.seen(), served.stored()) == ([1], SEGMENTS)


def test_a_quota_makes_room_before_the_upload(zookeeper: str, tmp_path: Path) -> None:
    """Of three snapshots only two fit; the first then goes before the third is uploaded."""
    with world(zookeeper, tmp_path, fresh_name()) as found:
        found.push(1)
        bytes_of_one = sum(found.files.stored(found.table).values())
    with world(zookeeper, tmp_path, found.table, quota=bytes_of_one * 5 // 2) as found:
        found.push(2)
        start_removed = found.push(3).removed
        assert (len(start_removed), found.seen(), found.stored()) == (SEGMENTS, [3], 2 * SEGMENTS)


def test_other_columns_are_refused_unless_the_push_says_so(served: World) -> None:
    served.push(1)

    def push(rows: pa.Table, *, new_schema: bool = False) -> None:
        push_id = f"push{len(served.entries):04d}"
        served.writer.push({served.table: rows}, push_id=push_id, as_of=now(), new_schema=new_schema)

    other = pa.table({"id": pa.array([1.5]), "total": [1]})
    with pytest.raises(ServingError, match=r"number is gone, total is new, id is DOUBLE instead of INT64\."):
        push(other)
    assert (served.seen(), served.states, served.stored()) == ([1], [State.COMPLETED], SEGMENTS)
    assert "other columns" in served.registry.failures()[served.table].problem
    push(snapshot(2).select(["number", "id"]))  # the same columns in another order
    assert served.seen() == [2]
    assert served.table not in served.registry.failures()
    push(pa.table({"id": pa.array([1]), "number": pa.nulls(1)}))  # without a value, so of no type
    push(snapshot(2))
    push(other, new_schema=True)
    assert query(served.broker, f"select total from {served.table}", LIMITS).rows == [(1,)]


def test_two_clusters_on_one_ensemble_do_not_meet(zookeeper: str, tmp_path: Path) -> None:
    table = fresh_name()
    with ExitStack() as stack:
        zk = stack.enter_context(zookeeper_client(zookeeper))
        east, west = (
            open_serving(zk, Settings(serving_folder=tmp_path / name, serving_cluster=f"{table}-{name}"), clock=now)
            for name in ("east", "west")
        )
        east.writer.push({table: snapshot(1)}, push_id="push0001", as_of=now())
        assert (east.registry.tables(), west.registry.tables()) == ([table], [])
        west.writer.push({table: snapshot(2)}, push_id="push0002", as_of=now())
        for serving, number in ((east, 1), (west, 2)):
            assert query(serving.broker, f"select any_value(number) from {table}", LIMITS).rows == [(number,)]
        assert zk.get_children(f"/{table}-east/PROPERTYSTORE/SEGMENT_LINEAGE") == [table]


@pytest.mark.parametrize("cluster", ["", "..", "a/b", "../a", "a b", "é"])
def test_the_name_of_a_cluster_is_one_folder_of_zookeeper(cluster: str) -> None:
    with pytest.raises(ValidationError, match="serving_cluster"):
        Settings(serving_cluster=cluster)


@pytest.mark.parametrize("name", ["orders-eu", "sales.orders", "1a"])
def test_names_that_pinot_allows_are_pushed_queried_and_taken_back(served: World, name: str) -> None:
    table = f"{name}_{served.table}"
    entries = [served.writer.push({table: snapshot(n)}, push_id=f"push{n:04d}", as_of=now())[0] for n in (1, 2)]
    spellings = [f'"{table}"']
    if "." in name:
        spellings += [table, table.upper()]
    for spelling in spellings:
        assert served.seen(spelling) == [2]
    if "." in name:
        both = query(served.broker, f"with orders as (select 7 as id) select count(*) from orders, {table}", LIMITS)
        assert both.rows == [(ROWS,)]
    served.writer.revert(table, entries[1].entry_id)
    assert served.seen(f'"{table}"') == [1]
    assert push_of(entries[0].segments[0]) == "push0001"


def test_more_snapshots_go_back_more_steps_at_once(zookeeper: str, tmp_path: Path) -> None:
    with world(zookeeper, tmp_path, fresh_name(), snapshots=3) as found:
        reports = [found.push(number) for number in range(4)]
        assert found.stored() == 3 * SEGMENTS
        found.writer.revert(found.table, reports[2].entry_id, later=True)
        assert found.seen() == [1]


def test_a_name_is_found_in_any_case_and_used_in_one(served: World) -> None:
    table = f"airlineStats_{fresh_name()}"
    report = served.writer.push({table: snapshot(1)}, push_id="push0001", as_of=now())[0]
    assert served.files.tables() == [table]
    assert {push_of(name) for name in report.segments} == {"push0001"}
    for spelling in (table, table.lower(), table.upper(), f'"{table}"'):
        assert served.seen(spelling) == [1]
    assert query(served.broker, f"with x as (from {table}) select count(*) from X", LIMITS).rows == [(ROWS,)]
    for name in (table.lower(), table.upper()):
        with pytest.raises(ServingError, match=f"{table} is served already"):
            served.writer.push({name: snapshot(2)}, push_id="push0002", as_of=now())
    with pytest.raises(ServingError, match="is served already"):
        served.writer.push({"a_new_One": snapshot(2), "a_new_one": snapshot(2)}, push_id="push0002", as_of=now())
    served.writer.push({table: snapshot(3)}, push_id="push0003", as_of=now())
    assert served.seen(table.upper()) == [3]


def test_a_push_group_is_switched_at_once_for_who_pins_it(served: World) -> None:
    """A reader that asks while groups are pushed never sees two tables of different pushes."""
    other = fresh_name()

    def push(number: int) -> None:
        tables = {served.table: snapshot(number), other: snapshot(number)}
        served.writer.push(tables, push_id=f"group{number:04d}", as_of=now())

    def push_all() -> None:
        for number in range(1, 8):
            push(number)

    push(0)
    writer = threading.Thread(target=push_all)
    writer.start()
    seen = set()
    while writer.is_alive():
        with served.broker.pin(served.table, other, seconds=5) as pinned:
            names = [{path.stem.split("_")[-2] for path in files} for files in pinned.files.values()]
            assert names[0] == names[1]
            seen |= names[0]
    writer.join()
    assert len(seen) > 1


class Meddled(Registry):
    """Something happens between a decision and its write: the first write, or a later one. A push has three."""

    def __init__(self, found: World, happens: Callable[[], object], *, write: int = 1) -> None:
        super().__init__(found.zk)
        self._happens, self._left = happens, write

    def _commit(self, states: States, changes: Mapping[str, Change]) -> bool:
        self._meddle()
        return super()._commit(states, changes)

    def register(self, table: str, entry_id: str, infos: Sequence[SegmentInfo], **options: Any) -> None:
        self._meddle()
        super().register(table, entry_id, infos, **options)

    def _meddle(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._happens()


def meddled(found: World, happens: Callable[[], object], *, write: int = 1, files: SegmentFiles | None = None) -> World:
    """The same table, with a writer to whom something happens."""
    registry = Meddled(found, happens, write=write)
    policy = Policy(segment_rows=ROWS // SEGMENTS)
    return replace(found, writer=Writer(registry, files or found.files, found.leases, clock=now, policy=policy))


def test_z7_two_first_writers_both_survive(served: World) -> None:
    """Both entries are in the lineage; a forced push then reverts both."""
    barrier = threading.Barrier(2, timeout=10)

    def first(name: str) -> str:
        barrier.wait()
        return started(served, name)

    with ThreadPoolExecutor(2) as pool:
        ids = list(pool.map(first, ["a", "b"]))
    assert sorted(served.entries) == sorted(ids)
    served.push(1, force=True)
    assert served.seen() == [1]
    assert served.states.count(State.REVERTED) == 2


def test_a_push_that_was_overtaken_reverts_itself(served: World) -> None:
    """Of two pushes that began from nothing, the second to end would be seen beside the first."""
    with pytest.raises(ServingError, match="was changed by another push"):
        meddled(served, lambda: served.push(2), write=3).push(1)
    assert served.seen() == [2]
    assert served.stored() == SEGMENTS


def test_z8_what_a_lost_compare_and_set_would_have_deleted_is_decided_anew(served: World) -> None:
    """Clean-up is about to delete what a killed push left, when that push ends after all, and is served."""
    served.push(1)
    report = []
    slow = meddled(served, lambda: report.append(cleaned()), write=3)

    def cleaned() -> frozenset[str]:
        return (
            meddled(served, lambda: end(served, served.entries[-1]))
            .writer.clean_up(served.table, retention=AT_ONCE)
            .deletions
        )

    slow.push(2)
    assert report == [frozenset()]
    assert served.seen() == [2]


def test_z8_what_is_registered_before_the_write_that_gives_it_up_goes_with_it(served: World) -> None:
    served.push(1)
    entry_id = started(served, "late")
    late = SegmentInfo("late", 1, 1, "0" * 64, now(), entry_id)
    meddled(served, lambda: served.registry.register(served.table, entry_id, [late])).push(2, force=True)
    assert "late" not in served.registry.read(served.table)[served.table].segments
    assert served.seen() == [2]


def test_an_end_against_a_revert_leaves_one_of_both(served: World) -> None:
    served.push(1)
    with pytest.raises(EntryEnded, match="was reverted"):
        meddled(served, lambda: served.writer.revert(served.table, served.entries[-1], force=True), write=3).push(2)
    assert served.seen() == [1]
    assert served.stored() == SEGMENTS


def test_a_file_that_went_before_the_end_is_noticed(served: World) -> None:
    served.push(1)

    def lose() -> None:
        newest = served.registry.read(served.table)[served.table].lineage.entry(served.entries[-1])
        served.files.remove(served.table, newest.segments_to[:1])

    with pytest.raises(ServingError, match="was not uploaded"):
        meddled(served, lose, write=2).push(2)
    assert (served.seen(), served.stored()) == ([1], SEGMENTS)


def test_nobody_goes_back_to_files_that_are_gone_and_a_push_heals_what_readers_see(served: World) -> None:
    first, second = served.push(1), served.push(2)
    served.files.remove(served.table, first.segments[:1])
    with pytest.raises(ServingError, match=first.segments[0]):
        served.writer.revert(served.table, second.entry_id)
    assert served.seen() == [2]
    served.files.remove(served.table, second.segments[:1])
    third = served.push(3)
    assert served.seen() == [3]
    with pytest.raises(ServingError, match="no longer exists"):
        served.writer.revert(served.table, third.entry_id)


def test_files_of_others_are_left_alone(served: World) -> None:
    """As a person or a file system leaves them in a table's folder."""
    served.push(1)
    strangers = [served.files.folder / served.table / name for name in ("._x.parquet", "x (1).parquet", "y z.partial")]
    for file in strangers:
        file.write_bytes(b"?")
    served.push(2)
    served.writer.revert(served.table, served.entries[-1])
    served.writer.clean_up(served.table, retention=AT_ONCE)
    assert (served.seen(), served.stored()) == ([1], SEGMENTS)
    assert all(file.exists() for file in strangers)


def test_ending_twice_is_written_once(served: World) -> None:
    report = served.push(1)
    version = served.registry.read(served.table)[served.table].version
    end(served, report.entry_id)
    assert served.registry.read(served.table)[served.table].version == version


def test_a_running_query_keeps_its_files_and_clean_up_and_push_wait_for_it(served: World) -> None:
    served.push(1)
    served.push(2)
    with ThreadPoolExecutor(2) as pool, ExitStack() as reading:
        pinned = reading.enter_context(served.broker.pin(served.table, seconds=10))
        served.writer.revert(served.table, served.entries[-1])
        waiting: list[Future[Any]] = [
            pool.submit(served.writer.clean_up, served.table, retention=AT_ONCE),
            pool.submit(served.push, 3),
        ]
        with pytest.raises(TimeoutError):
            waiting[0].result(timeout=0.5)
        assert all(path.exists() for path in pinned.files[served.table])
        pinned.lease.confirm()
        reading.close()
        for result in waiting:
            result.result(timeout=10)
    assert not any(path.exists() for path in pinned.files[served.table])


def test_a_lease_ends_with_the_query_limit_for_who_waits_and_for_who_reads(served: World) -> None:
    served.push(1)
    with served.broker.pin(served.table, seconds=0.01) as pinned:
        served.leases.drain(served.table)
        with pytest.raises(ServingError, match="lease ended"):
            pinned.lease.confirm()
    with served.broker.pin(served.table, seconds=10) as pinned:
        pinned.lease.confirm()
        for node in served.leases.active(served.table):  # as the end of its session does
            served.zk.delete(node)
        with pytest.raises(ServingError, match="lease ended"):
            pinned.lease.confirm()


def test_another_push_in_progress_is_told_with_what_to_do(served: World) -> None:
    served.push(1)
    entry_id = started(served, "x")
    with pytest.raises(ServingError, match=rf"lake serving revert {served.table} {entry_id} --force"):
        served.push(2)
    served.push(3, force=True)
    assert served.seen() == [3]


def test_a_quota_is_refused_before_anything_is_started(zookeeper: str, tmp_path: Path) -> None:
    with world(zookeeper, tmp_path, fresh_name(), quota=9_000) as found:
        found.push(1)
        found.push(2)
        with pytest.raises(ServingError, match=r"may take 9,000 bytes; it takes 3,\d\d\d, and the push adds"):
            found.push(3, rows=4_000)
        assert found.states == [State.COMPLETED] * 2
        assert found.seen() == [2]


class Careless(SegmentFiles):
    """Stores another byte than it was given."""

    def place(self, table: str, segment: str) -> None:
        super().place(table, segment)
        file = self.path(table, segment)
        file.write_bytes(file.read_bytes()[:-1] + b"?")


class Overtaken(SegmentFiles):
    """Somebody else pushes by force before the second file is placed, and a query begins. most: stored from then on."""

    def __init__(self, found: World, queries: ExitStack) -> None:
        super().__init__(found.files.storage)
        self.found, self.queries, self.placed, self.most = found, queries, 0, 0

    def place(self, table: str, segment: str) -> None:
        self.placed += 1
        if self.placed == 2:
            self.found.push(3, force=True)
            self.queries.enter_context(self.found.broker.pin(self.found.table, seconds=10))
        super().place(table, segment)
        self.most = max(self.most, self.found.stored())


def test_a_push_whose_entry_was_taken_stops_and_its_files_go_though_a_query_runs(served: World) -> None:
    served.push(1)
    with ExitStack() as queries:
        files = Overtaken(served, queries)
        with pytest.raises(EntryEnded, match="was reverted"):
            meddled(served, lambda: None, files=files).push(2)
        assert (files.placed, files.most) == (2, 2 * SEGMENTS)
        assert (served.seen(), served.stored()) == ([3], 2 * SEGMENTS)


class Meanwhile(SegmentFiles):
    """While a file is uploaded, another client uploads other rows under the same name."""

    def __init__(self, found: World, file: Path) -> None:
        super().__init__(found.files.storage)
        self.found, self.file = found, file

    def upload(self, table: str, segment: str, source: Path) -> None:
        super().upload(table, segment, source)
        with pytest.raises(ServingError, match="it is being uploaded by another call"):
            self.found.writer.upload(table, segment, self.file)


def test_of_two_uploads_of_one_name_the_first_is_stored(served: World, tmp_path: Path) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    pq.write_table(snapshot(1), first)
    pq.write_table(snapshot(2), second)
    segment = f"{served.table}_one"
    entry_id = served.writer.start_replace(served.table, [], [segment], force=False)
    meddled(served, lambda: None, files=Meanwhile(served, second)).writer.upload(served.table, segment, first)
    with pytest.raises(ServingError, match="a segment with this name is stored"):
        served.writer.upload(served.table, segment, second)
    served.writer.end_replace(served.table, entry_id)
    assert served.seen() == [1]


def test_a_name_that_no_table_can_have_leaves_no_failed_push(served: World) -> None:
    for name in ("a/b", "../a", "a b"):
        with pytest.raises(UsageError, match="not a valid name for a table"):
            served.writer.push({name: snapshot(1)}, push_id="push0001", as_of=now())
    assert not {"a", "a b"} & set(served.registry.failures())


def test_an_upload_that_fails_is_reverted_and_leaves_nothing(served: World) -> None:
    with pytest.raises(SegmentDamaged, match="its checksum is"):
        meddled(served, lambda: None, files=Careless(served.files.storage)).push(1)
    assert served.states == [State.REVERTED]
    assert served.stored() == 0
    served.push(2)
    assert served.seen() == [2]


def test_a_full_disk_is_told_and_readers_are_undisturbed(zookeeper: str, tmp_path: Path) -> None:
    """A file system of 256 kB really is full; in a process of its own."""
    found = full_disk.play(zookeeper, tmp_path / "segments")
    assert found["said"] == [
        f"{found['table']} could not be written to {tmp_path / 'segments'}: its disk is full.",
        "Free space there, or use another folder (LAKE_SERVING_FOLDER), and push again.",
    ]
    assert (found["seen"], found["left"], found["seen then"]) == ([1], SEGMENTS, [3])


def test_a_group_is_taken_back_at_once_or_not_at_all(served: World) -> None:
    other = fresh_name()
    for number in (1, 2):
        tables = {served.table: snapshot(number), other: snapshot(number)}
        reports = served.writer.push(tables, push_id=f"group{number:04d}", as_of=now())
    entries = {report.table: report.entry_id for report in reports}
    listed = {table: lineage_status(served.registry, table) for table in entries}
    assert switched_with(served.table, listed[served.table][0], listed) == {other: entries[other]}
    with pytest.raises(EntryEnded, match="has no entry"):
        served.writer.revert_all({**entries, other: "nonsense"})
    assert served.seen() == served.seen(other) == [2]
    served.writer.revert_all(entries)
    assert served.seen() == served.seen(other) == [1]


def test_nobody_goes_back_across_an_erasure_and_what_is_older_does_not_stay(served: World) -> None:
    served.push(1)
    second = served.push(2)
    with pytest.raises(ServingError, match="before a person was erased"):
        served.writer.revert(served.table, second.entry_id, erased_at=now())
    assert served.seen() == [2]
    served.writer.clean_up(served.table, retention=Retention(DAY, DAY), erased_at=now() - DAY)
    assert served.stored() == 2 * SEGMENTS
    served.writer.clean_up(served.table, retention=Retention(DAY, DAY), erased_at=now())
    assert (served.seen(), served.stored()) == ([2], SEGMENTS)
    served.writer.revert(served.table, served.push(3).entry_id, erased_at=now() - DAY)
    assert served.seen() == [2]


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_write_whose_reply_is_lost_is_done_once(zookeeper: str, tmp_path: Path, write: int) -> None:
    with lossy_line(zookeeper) as line, world(line.address, tmp_path, fresh_name()) as found:
        found.push(1)
        meddled(found, lambda: line.lose_reply(TRANSACTION), write=write).push(2)
        assert line.lost == 1
        assert found.states == [State.COMPLETED] * 2
        assert found.seen() == [2]


def test_a_query_whose_lease_is_cut_off_asks_for_another(zookeeper: str, tmp_path: Path) -> None:
    with lossy_line(zookeeper) as line, world(line.address, tmp_path, fresh_name()) as found:
        found.push(1)
        line.lose_reply(CREATE)
        assert found.seen() == [1]
        line.lose_reply(EXISTS)
        with found.broker.pin(found.table, seconds=10) as pinned:
            line.lose_reply(EXISTS)
            pinned.lease.confirm()
        assert line.lost == 3
    with pytest.raises(KazooException):
        found.seen()


def test_a_query_ends_with_its_limit_when_zookeeper_is_gone(zookeeper: str, tmp_path: Path) -> None:
    with lossy_line(zookeeper) as line, world(line.address, tmp_path, fresh_name()) as found:
        found.push(1)
        line.close()
        line.lose_reply(CREATE)
        with pytest.raises(RetryFailedError), found.broker.pin(found.table, seconds=1):
            pytest.fail("nothing is pinned")


def test_a_push_outlives_zookeepers_leader(three: Ensemble, tmp_path: Path) -> None:
    with ExitStack() as stack, world(three.hosts, tmp_path, fresh_name()) as found:
        found.push(1)
        leader = three.servers_in("leader")[0]
        meddled(found, lambda: stack.enter_context(three.without(leader)), write=3).push(2)
        assert found.seen() == [2]


def test_a_node_that_is_no_lineage_is_named(served: World) -> None:
    served.push(1)
    served.zk.set(f"{LINEAGE}/{served.table}", b'{"id": "t", "listFields": {"x": ["a"]}}')
    with pytest.raises(ServingError, match=served.table):
        served.seen()
    served.zk.delete(f"{LINEAGE}/{served.table}")


@pytest.mark.parametrize(
    "act",
    [
        lambda found: found.push(2),
        lambda found: found.writer.clean_up(found.table, retention=AT_ONCE),
        lambda found: found.writer.delete(found.table, ["x"]),
    ],
    ids=["push", "clean-up", "delete"],
)
def test_no_file_goes_where_zookeeper_knows_nothing_of_its_table(served: World, act: Callable[[World], object]) -> None:
    """As after ZooKeeper's folder was removed, or with another one's address."""
    served.push(1)
    for root in (LINEAGE, SEGMENT_NODES):
        served.zk.delete(f"{root}/{served.table}", recursive=True)
    with pytest.raises(ServingError, match=r"LAKE_ZOOKEEPER"):
        act(served)
    assert served.stored() == SEGMENTS
    (served.files.folder / served.table).rename(served.files.folder / "aside")
    served.push(3)
    assert served.seen() == [3]


def test_segments_that_nothing_needs_can_be_deleted(served: World) -> None:
    """As a revert leaves them while a query runs."""
    report, reverted = served.push(1), served.push(2)
    with served.broker.pin(served.table, seconds=10):
        served.writer.revert(served.table, reverted.entry_id)
    assert served.stored() == 2 * SEGMENTS
    with pytest.raises(ServingError, match="cannot be deleted"):
        served.writer.delete(served.table, report.segments)
    with pytest.raises(ServingError, match="has no segment 'typo'"):
        served.writer.delete(served.table, [*reverted.segments, "typo"])
    assert served.stored() == 2 * SEGMENTS
    assert served.writer.delete(served.table, reverted.segments).deletions == set(reverted.segments)
    assert (served.seen(), served.stored()) == ([1], SEGMENTS)
