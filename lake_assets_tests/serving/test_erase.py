"""After an erasure: what nobody may go back to is deleted, what readers see is told, and a push takes it away."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lake_assets.incremental.erasure.certificate import certify
from lake_assets.serving.lineage import Retention
from lake_assets.serving.store import read_at, segment_name
from lake_assets.serving.upkeep import OutdatedSegments, delete_replaced, segment_folders, stored_before
from lake_assets_tests.serving.child import start
from lake_assets_tests.serving.scenario import AT_ONCE, SEGMENTS, World, now

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

DAY = timedelta(hours=24)
GONE = "account-to-be-erased"


def old(served: World, erased_at: datetime) -> list[OutdatedSegments]:
    return delete_replaced(served.writer, retention=Retention(DAY, DAY), erased_at=erased_at)


def test_what_was_replaced_goes_and_what_readers_see_is_told_until_a_push_replaces_it(served: World) -> None:
    for number in (1, 2):
        served.push(number)
    assert old(served, now() - DAY) == []
    erased_at = now()
    assert list(stored_before(served.files, erased_at=erased_at)) == [
        OutdatedSegments(served.table, 0, None, 2 * SEGMENTS)
    ]
    for deleted in (SEGMENTS, 0):
        told = old(served, erased_at)
        assert told == [OutdatedSegments(served.table, deleted, SEGMENTS, 0)]
        assert (served.seen(), served.stored()) == ([2], SEGMENTS)
    served.push(3)
    assert old(served, erased_at) == [OutdatedSegments(served.table, SEGMENTS, 0, 0)]
    assert old(served, erased_at) == []
    assert served.seen() == [3]


def test_what_a_push_left_that_died_is_told(served: World) -> None:
    start(served, "push", "1", point="push-registered").end()
    assert old(served, now()) == [OutdatedSegments(served.table, 0, 0, SEGMENTS)]


def test_drafts_of_a_push_that_died_go_with_an_erasure_with_their_age_or_with_the_next_push(served: World) -> None:
    def die() -> None:
        start(served, "push", "2", point="push-drafted").end()
        assert len(served.files.drafts(served.table)) == SEGMENTS

    served.push(1)
    die()
    served.writer.clean_up(served.table, retention=Retention(timedelta(hours=1), timedelta(hours=1)))
    assert len(served.files.drafts(served.table)) == SEGMENTS
    (found,) = stored_before(served.files, erased_at=now())
    assert found.left == 2 * SEGMENTS
    assert old(served, now()) == [OutdatedSegments(served.table, SEGMENTS, SEGMENTS, 0)]
    die()
    served.writer.clean_up(served.table, retention=AT_ONCE)
    assert len(served.files.drafts(served.table)) == SEGMENTS  # of a push that may run
    served.writer.clock = lambda: now() + DAY
    served.writer.clean_up(served.table, retention=AT_ONCE)
    assert served.files.drafts(served.table) == []
    die()
    served.push(3, force=True)
    assert (served.files.drafts(served.table), served.seen()) == ([], [3])


def test_segments_and_drafts_are_searched_and_named(
    served: World, catalog: Catalog, bare_home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = served.files.folder
    home = bare_home.model_copy(update={"serving_folder": folder})
    for number in (1, 2):
        rows = pa.table({"account_id": [GONE, f"b{number}"]})
        served.writer.push({served.table: rows}, push_id=f"{number:08d}", as_of=now())
    left = folder.parent / "lake-push-died"
    left.mkdir()
    (left / "draft.parquet").write_bytes(next((folder / served.table).glob("*.parquet")).read_bytes())
    (folder / served.table / "stray.partial").write_bytes(b"half of " + GONE.encode())
    (folder / "note.txt").write_text(GONE)
    (folder / ".drafts" / served.table / "t_1.parquet").write_bytes((left / "draft.parquet").read_bytes())
    monkeypatch.setattr("tempfile.tempdir", str(folder.parent))
    states = served.registry.read(served.table)
    found = certify(catalog, "account", GONE, beside=list(segment_folders(home, states))).findings
    (note,) = [f for f in found if f.path == str(folder / "note.txt")]
    assert (note.table, note.kind, note.referenced) == (None, "other", "nothing")
    table = f"{served.table}, served"
    assert sorted((f.table, f.kind, f.referenced) for f in found if f.table) == sorted(
        [("a push", "draft", "nothing")] * 2 + [*((table, "segment", by) for by in ("main", "history", "nothing"))]
    )
    unknown = certify(catalog, "account", GONE, beside=list(segment_folders(home, None))).findings
    assert {f.referenced for f in unknown if f.kind == "segment"} == {"not known"}


def test_the_name_of_a_segment_tells_when_its_rows_were_read() -> None:
    at = now().replace(microsecond=123_000)
    assert read_at(segment_name("account_state", "0123456789ab", at, 7)) == at
    assert read_at("account_state_99999999T999999999Z_0123456789ab_0007") is None
    assert read_at("somebody_elses") is None
