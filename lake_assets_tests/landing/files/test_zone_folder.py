"""Files of both formats: what is written is read, any other byte is noticed, and names lead nowhere else."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake_assets.connections.storage import Folder
from lake_assets.errors import ConfigurationError, FileDamaged, LandingError, UsageError
from lake_assets.landing import formats
from lake_assets.landing.files import DRAFT, Zone, read_checked
from lake_assets.landing.records import SUFFIXES, Kind, Record, Shard, parse_shard, shards
from lake_assets_tests.landing.files.test_checksum import MESSAGES
from lake_assets_tests.landing.made import record
from lake_assets_tests.landing.scenario import EVER

KINDS = list(SUFFIXES)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(records=st.lists(MESSAGES, max_size=4))
def test_what_is_written_is_read_and_always_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, kind: Kind, records: list[Record]
) -> None:
    path = tmp_path_factory.mktemp("formats") / "file"
    written = []
    for _ in range(2):
        with path.open("wb") as opened:
            formats.write(kind, opened, iter(records))
        written.append(path.read_bytes())
    with path.open("rb") as opened:
        assert list(formats.read(kind, opened)) == records
    assert written[0] == written[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path: Path, kind: Kind) -> None:
    draft = Zone("a", Folder(tmp_path)).draft("t/0-of-1", {0: (0, 1)}, [record(0), record(1)], kind=kind)
    sound = draft.path.read_bytes()
    damaged = [
        sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :] for place in range(len(sound))
    ]
    for found in (*damaged, sound[:-1], b""):
        draft.path.write_bytes(found)
        with pytest.raises(FileDamaged):
            deque(read_checked(lambda: draft.path.open("rb"), draft.file), maxlen=0)


def test_no_row_group_holds_more_than_fits_in_memory(tmp_path: Path) -> None:
    def groups(records: Iterable[Record]) -> list[int]:
        path = Zone("a", Folder(tmp_path)).draft("t/0-of-1", {0: (0, 1 << 20)}, records, kind="columnar").path
        metadata = pq.read_metadata(path)
        return [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]

    large = bytes(formats.GROUP_BYTES // 2)
    assert groups(record(n, value=large) for n in range(3)) == [2, 1]
    assert groups(record(n) for n in range(formats.ROWS + 1)) == [formats.ROWS, 1]


def test_a_draft_that_does_not_hold_what_it_should_is_gone(tmp_path: Path) -> None:
    with pytest.raises(LandingError, match="holds offset 9 of partition 0, outside its own"):
        Zone("a", Folder(tmp_path)).draft("t/0-of-1", {0: (0, 1)}, [record(9)])
    with pytest.raises(ZeroDivisionError):
        Zone("a", Folder(tmp_path)).draft("t/0-of-1", {0: (0, 1)}, (record(1 // n) for n in (1, 0)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../manifest.db", "/etc/passwd", "t-0-of-1-00.avro", "", "t/0-of-1.avro"])
def test_a_name_leads_to_no_other_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(LandingError, match="is not the name of a landed file"):
        Zone("a", Folder(tmp_path)).open(name)


@pytest.mark.parametrize("text", ["t", "t/4-of-4", "t/0-of-0", "a b/0-of-1", "../0-of-1", "./0-of-1", "t/dead"])
def test_an_unknown_shard_is_refused(text: str) -> None:
    with pytest.raises((UsageError, ConfigurationError)):
        parse_shard(text)


@given(st.text(), st.integers(1, 9))
def test_each_id_is_in_one_shard_and_nobody_is_in_the_first(distinct_id: str, of: int) -> None:
    takes = [shard for shard in shards("t", of) if shard.takes(distinct_id)]
    assert len(takes) == 1
    assert shards("t", of)[0].takes(None)
    assert parse_shard(str(takes[0])) == takes[0]
    assert parse_shard(str(Shard("t", dead_letters=True))) == Shard("t", dead_letters=True)


FULL = """
import resource, sys
from pathlib import Path
from lake_assets.errors import DiskFull
from lake_assets.connections.storage import Folder
from lake_assets.landing.files import Zone
from lake_assets.landing.kafka import Place
from lake_assets.landing.manifest import open_manifest
from lake_assets.landing.tail import Closed, Delivery
from lake_assets.landing.zones import ZoneWriter
from lake_assets.settings import Settings
from lake_assets_tests.landing.made import record
from lake_assets_tests.landing.scenario import NOW

zone = Zone("a", Folder(Path(sys.argv[1])))
large = "x" * (1 << 20)
closed = Closed(Place("t", 0), 0, 1, records=[record(0, value=large.encode())], dead=[record(1)])
delivery = Delivery(ZoneWriter(zone, open_manifest(Settings(home=zone.storage.path.parent))), lambda: NOW)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
for write in (lambda: delivery.take(closed), lambda: zone.publish("p", {"files": large}, replaces=())):
    try:
        write()
    except DiskFull as error:
        print(error, list(zone.storage.path.iterdir()), sep="\\n")
"""


def test_a_full_disk_is_one_clear_message_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: the error has another number, and comes from the same call.

    Of a file, the dead letters fit and the rows do not; then a publication does not.
    """
    command = [sys.executable, "-c", FULL, str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    for problem, remedy, left in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        assert problem == f"{tmp_path / 'a'} cannot be written: File too large."
        assert remedy.startswith("  → Free space")
        assert left == "[]"
    assert len(lines) == 6


def test_what_a_death_leaves_of_a_publication_is_removed_as_any_draft(tmp_path: Path) -> None:
    class Watched(Folder):
        def put(self, name: str, source: Path, *, moved: bool = False) -> None:
            seen.append([each[: len(DRAFT)] for each in zone.names(EVER)])
            raise KeyboardInterrupt

    seen: list[list[str]] = []
    zone = Zone("a", Watched(tmp_path / "a"))
    with pytest.raises(KeyboardInterrupt):
        zone.publish("p", {}, replaces=())
    with pytest.raises(KeyboardInterrupt):
        zone.mark("id")
    assert seen == [[DRAFT], [DRAFT]]
    assert zone.names(EVER) == []
