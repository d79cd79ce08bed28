"""What a zone lacks of what the other has, against looking at each record's place by itself."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from lake_assets.landing.manifest import ALL_STAGES, ALL_VERDICTS, Entry
from lake_assets.landing.records import NOTHING, DataFile, Shard, parse_shard
from lake_assets.landing.zone_tailer import gaps

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SHARDS = st.sampled_from(
    [Shard("t"), Shard("t", 0, 2), Shard("t", 1, 2), Shard("t", 3, 4), Shard("t", dead_letters=True)]
)
RANGES = st.dictionaries(
    st.integers(0, 1),
    st.tuples(st.integers(0, 12), st.integers(0, 3)).map(lambda r: (r[0], r[0] + r[1])),
    min_size=1,
)
FILES = st.builds(lambda shard, ranges: DataFile("", 1, str(shard), ranges, frozenset(), 0, NOTHING), SHARDS, RANGES)
ENTRIES = st.builds(
    lambda file, verdict, stage: Entry(file, verdict, stage, 1, NOON, None, ""),
    FILES,
    st.sampled_from(ALL_VERDICTS),
    st.sampled_from(ALL_STAGES),
)


def places(file: DataFile) -> set[tuple[int, int, int]]:
    """Partition, offset and place among four shards, or that of dead letters."""
    shard = parse_shard(file.shard)
    among = {-1} if shard.dead_letters else {n for n in range(4) if n % shard.of == shard.number}
    return {(p, o, n) for p, (first, last) in file.ranges.items() for o in range(first, last + 1) for n in among}


@given(st.lists(FILES, max_size=6), st.lists(ENTRIES, max_size=6))
def test_a_zone_lacks_what_is_below_its_ends_and_in_no_file_of_it(own: list[DataFile], others: list[Entry]) -> None:
    has = {place for file in own for place in places(file)}
    ends = {p: max((o for q, o, n in has if q == p and n >= 0), default=-1) for p in range(2)}
    expected = [
        e.file
        for e in others
        if (e.stage, e.verdict == "quarantined") == ("live", False)
        and not places(e.file) & has
        and all(offset <= ends[p] for p, offset, _ in places(e.file))
    ]
    assert gaps(own, others) == expected
