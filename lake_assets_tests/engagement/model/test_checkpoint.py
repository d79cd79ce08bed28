"""The checkpoint of each stream moves by compare-and-set, and streams do not disturb each other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from lake_assets.engagement.checkpoint import RULES, Batch, Checkpoint, CheckpointStore, OffsetRange, Trouble
from lake_assets.errors import PublishConflict, StoredByNewerVersion, UsageError


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(f"file://{tmp_path / 'checkpoint'}")
    assert store.create()
    assert not store.create()
    return store


def intent(batch_id: int) -> Checkpoint:
    messages = OffsetRange("mail", "t1", {0: 0, 11: 5}, {0: batch_id, 11: 7})
    return Checkpoint(Batch(batch_id, messages, {"org": 3}, {"org": 2}), ("data", "notification"))


def test_a_stream_that_never_ran_has_none(store: CheckpointStore) -> None:
    assert store.read("mail.ingestion") is None


def test_what_was_written_is_read(store: CheckpointStore) -> None:
    intended = store.move("mail.ingestion", None, intent(1))
    half = store.move("mail.ingestion", intended, intended.with_done("data", 4))
    assert store.read("mail.ingestion") == half
    assert not half.finished
    whole = store.move("mail.ingestion", half, half.with_done("notification", None))
    assert store.read("mail.ingestion") == whole
    assert whole.finished


def test_a_table_of_an_earlier_version_goes_on_and_gets_the_columns_of_failed_attempts(tmp_path: Path) -> None:
    store = CheckpointStore(f"file://{tmp_path / 'old'}")
    written = CheckpointStore(f"file://{tmp_path / 'written'}")
    written.create()
    written.move("mail.ingestion", None, intent(1))
    rows = DeltaTable(written.location).to_pyarrow_table().drop_columns(["rejected", "trouble", "rules"])
    write_deltalake(store.location, rows, partition_by="app_name")
    old = replace(intent(1), batch=replace(intent(1).batch, rules=0))
    assert store.read("mail.ingestion") == old
    trouble = Trouble(2, "data", "ValueError", suspects={0: 3, 11: 7}, narrowed={0: 1, 11: 5}, withdrawing=True)
    failed = replace(intent(1), batch=replace(old.batch, rejected="ValueError"), trouble=trouble)
    store.move("mail.ingestion", old, failed)
    assert store.read("mail.ingestion") == failed


def test_a_batch_that_a_later_version_has_begun_is_refused(store: CheckpointStore) -> None:
    later = replace(intent(7), batch=replace(intent(7).batch, rules=RULES + 1))
    store.move("mail.ingestion", None, later)
    store.move("chat.ingestion", None, intent(1))
    with pytest.raises(StoredByNewerVersion, match=r"mail\.ingestion, with the rules of batch 7, has format 7"):
        store.read("mail.ingestion")
    assert store.read("chat.ingestion") == intent(1)


def test_a_move_from_what_is_no_more_is_refused(store: CheckpointStore) -> None:
    intended = store.move("mail.ingestion", None, intent(1))
    store.move("mail.ingestion", intended, intended.with_done("data", 4))
    with pytest.raises(PublishConflict, match=r"mail\.ingestion"):
        store.move("mail.ingestion", intended, intended.with_done("data", 4))
    with pytest.raises(PublishConflict):
        store.move("mail.ingestion", None, intent(1))


def test_streams_that_move_at_once_all_move(store: CheckpointStore) -> None:
    names = [f"mail.s{n}" for n in range(6)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: store.move(name, None, intent(1)), names))
    assert [store.read(name) for name in names] == [intent(1)] * len(names)


def test_of_two_that_begin_a_batch_at_once_one_wins(store: CheckpointStore) -> None:
    def begin(number: int) -> bool:
        try:
            store.move("mail.ingestion", None, intent(number))
        except PublishConflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = [number for number, first in zip(range(1, 5), pool.map(begin, range(1, 5)), strict=True) if first]
    assert [store.read("mail.ingestion")] == [intent(number) for number in won]


def test_a_lake_that_was_not_created_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lake engagement init"):
        CheckpointStore(f"file://{tmp_path / 'nowhere'}").read("mail.ingestion")
