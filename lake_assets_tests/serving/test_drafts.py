"""Cutting rows into segments: none is lost, none is twice, and names are like no other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from lake_assets.connections.storage import Folder, sha256_of
from lake_assets.errors import ServingError, UsageError
from lake_assets.serving import push as drafts
from lake_assets.serving.push import Drafting, Rows, from_parquet
from lake_assets.serving.store import push_of, segment_name

AS_OF = datetime(2026, 1, 1, 5, 6, 7, 89_999, UTC)


def drafting(folder: Path, rows: Rows, *, segment_rows: int = 10) -> Drafting:
    return Drafting(Folder(folder), "t", rows, "push0001", AS_OF, segment_rows)


@given(st.lists(st.integers(0, 7), max_size=6), st.integers(1, 5))
@hypothesis_settings(max_examples=40, deadline=None)
def test_rows_are_cut_in_order_into_full_segments(batches: list[int], segment_rows: int) -> None:
    schema = pa.schema([("n", pa.int64())])
    numbers = iter(range(100))
    cut = [pa.record_batch([pa.array([next(numbers) for _ in range(size)], pa.int64())], schema) for size in batches]
    reader = pa.RecordBatchReader.from_batches(schema, iter(cut))
    with tempfile.TemporaryDirectory() as folder:
        found = drafting(Path(folder), Rows(reader.schema, [lambda: reader]), segment_rows=segment_rows).write()
        paths = [Path(folder) / ".drafts" / "t" / f"{draft.name}.parquet" for draft in found]
        rows = [pq.read_table(path)["n"].to_pylist() for path in paths]
        assert [draft.sha256 for draft in found] == [sha256_of(path) for path in paths]
    assert [n for part in rows for n in part] == list(range(sum(batches)))
    assert [len(part) for part in rows[:-1]] == [segment_rows] * (len(rows) - 1)
    assert [draft.rows for draft in found] == [len(part) for part in rows]
    assert len({draft.name for draft in found}) == len(found) > 0


def test_a_name_bears_table_time_push_and_number() -> None:
    name = segment_name("account_state", "0123abcd", AS_OF, 7)
    assert name == "account_state_20260101T050607089Z_0123abcd_0007"
    assert (push_of(name), push_of("somebody_elses_0007")) == ("0123abcd", None)


@pytest.mark.parametrize(
    ("table", "push_id"), [("a b", "0123abcd"), ("../t", "0123abcd"), ("t", "short"), ("t", "a/../../b")]
)
def test_names_that_could_lead_elsewhere_are_refused(table: str, push_id: str) -> None:
    with pytest.raises(UsageError, match="is not a valid"):
        segment_name(table, push_id, AS_OF, 0)


def test_more_segments_than_a_request_can_give_up_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "MAX_SEGMENTS", 3)
    one, four = (Rows.of(pa.table({"n": range(rows)})) for rows in (1, 4))
    for rows in (four, Rows(one.schema, [*one.parts] * 4)):
        with pytest.raises(UsageError, match="more than 3 segments of 1 rows"):
            drafting(tmp_path, rows, segment_rows=1).write()


def test_a_source_that_cannot_be_read_is_not_taken_for_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "source.parquet"
    pq.write_table(pa.table({"n": range(10)}), file)
    opened = from_parquet(file)
    file.write_bytes(b"?" * file.stat().st_size)
    with pytest.raises(ServingError, match="source of t could not be read"):
        drafting(tmp_path, opened).write()

    def gone() -> Iterator[pa.RecordBatch]:
        yield from ()
        raise FileNotFoundError("data-00001.parquet")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), gone())
    with pytest.raises(ServingError, match=r"data-00001\.parquet"):
        drafting(tmp_path, Rows(reader.schema, [lambda: reader])).write()
    with pytest.raises(ServingError, match=r"could not be written to .*nowhere: .*\n  → .*LAKE_SERVING_FOLDER"):
        drafting(file / "nowhere", Rows.of(pa.table({"n": [1]}))).write()
