"""The page draws each file where its offsets lie, and escapes what it is told."""

from __future__ import annotations

from datetime import UTC, datetime

from lake_assets.landing.manifest import Entry, Verdict
from lake_assets.landing.records import Checksum, DataFile, file_name
from lake_assets.pages.landing_files import MOST_FILES, page, pictures

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOTHING: frozenset[str] = frozenset()


def entry(
    zone: str, first: int, last: int, *, shard: str = "t/0-of-1", verdict: Verdict = "verified", reason: str = ""
) -> Entry:
    ranges = {0: (first, last)}
    name = file_name(shard, ranges, NOTHING, "append")
    file = DataFile(name, 1, shard, ranges, NOTHING, last + 1 - first, Checksum(last + 1 - first), zone)
    return Entry(file, verdict, "live", 1, NOON, None, reason)


def test_each_file_lies_where_its_offsets_do() -> None:
    found = [
        entry("a", 10, 19),
        entry("b", 10, 19),
        entry("a", 20, 49, verdict="provisional"),
        entry("a", 20, 49, shard="t/dead-letters", verdict="provisional"),
    ]
    (topic,) = pictures(found, {"t": {0: 20}})
    assert [topic.count(verdict) for verdict in ("verified", "provisional", "quarantined")] == [2, 2, 0]
    assert topic.dead_letters == 30
    (partition,) = topic.partitions
    assert (partition.first, partition.last, partition.loaded) == (10, 49, 25.0)
    drawn = {zone: [(b.left, b.width, b.dead) for b in lane] for zone, lane in partition.lanes.items()}
    assert drawn == {"a": [(0.0, 25.0, False), (25.0, 75.0, False), (25.0, 75.0, True)], "b": [(0.0, 25.0, False)]}


def test_the_newest_files_are_drawn_when_there_are_too_many() -> None:
    ((partition,),) = [topic.partitions for topic in pictures([entry("a", n, n) for n in range(MOST_FILES + 5)], {})]
    assert (partition.first, partition.last, len(partition.lanes["a"])) == (5, MOST_FILES + 4, MOST_FILES)


def test_each_verdict_has_its_colour_and_dead_letters_theirs() -> None:
    found = [
        entry("a", 0, 9),
        entry("a", 10, 19, verdict="provisional"),
        entry("a", 20, 29, verdict="quarantined"),
        entry("a", 0, 9, shard="t/dead-letters"),
    ]
    text = page(pictures(found, {}), now=NOON)
    drawn = [f'<i class="{kind}" ' for kind in ("verified", "provisional", "quarantined", "verified dead")]
    assert [text.count(block) for block in drawn] == [1, 1, 1, 1]


def test_what_is_told_is_escaped_and_nothing_is_loaded() -> None:
    text = page(pictures([entry("a", 0, 9, verdict="quarantined", reason="<script>x</script>")], {}), now=NOON)
    assert "<script" not in text
    assert "&lt;script&gt;x" in text
    assert "src=" not in text
    assert "No file has landed yet." in page([], now=NOON)
