"""Which step detects each fault of a landed file, on real files and a real manifest.

    python -m lake_assets_tests.landing.faults

runs all faults and writes docs/landing-faults.md. The tests run the same and compare the page with their results.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import sqlalchemy as sa

from lake_assets.errors import LakeError
from lake_assets.landing.manifest import RANGES, FileRows
from lake_assets.landing.operations import sweep
from lake_assets.landing.records import DataFile
from lake_assets.settings import PROJECT, Settings
from lake_assets_tests.landing.made import path_of
from lake_assets_tests.landing.scenario import DEADLINE, NOW, WHOLE, Landed, change_commands, sent
from lake_assets_tests.outcomes import Outcomes, table

PAGE = PROJECT / "docs" / "landing-faults.md"
HERE = [sent(0, offset) for offset in range(3)]
NEXT, OTHER = sent(0, 3), sent(1, 0)
QUIET = "nothing"


class Played:
    """Zones that have landed files of partitions 0 and 1; in zone b the first of partition 0 is still to come."""

    def __init__(self, landed: Landed) -> None:
        self.landed = landed
        landed.land("a", 0, 0)
        for zone in "ab":
            landed.land(zone, 1, 0)
            landed.land(zone, 1, 3)
        self.readers_list: list[DataFile] | None = None

    def land_rest(self) -> None:
        """The file that is missing, as it should be."""
        self.landed.land("b", 0, 0)

    def columnar(self) -> None:
        self.land_rest()
        for zone in "ab":
            self.landed.run("columns", zone)

    def path(self, zone: str = "b") -> Path:
        """A file of partition 0."""
        (file,) = [f for f in self.landed.files(zone) if 0 in f.ranges]
        return path_of(self.landed.writers[zone].zone, file.name)

    def change(self, place: Callable[[bytes], int]) -> None:
        """Flip a bit of a file of zone b, at a place in its bytes."""
        found = bytearray(self.path().read_bytes())
        found[place(bytes(found))] ^= 1
        self.path().write_bytes(found)

    def read(self) -> None:
        """As a reader does, who has looked at the manifest now, or before."""
        for file in self.readers_list or self.landed.files("b"):
            deque(self.landed.writers["b"].records(file), maxlen=0)


def missing(played: Played) -> None:
    played.landed.land("b", 0, 0, HERE[:2])


def doubled(played: Played) -> None:
    played.landed.land("b", 0, 0, [*HERE, HERE[1]])


def changed(played: Played) -> None:
    played.landed.land("b", 0, 0, [*HERE[:2], HERE[2]._replace(value=b"message 2 of O")])


def neighbour(played: Played) -> None:
    played.landed.land("b", 0, 0, [*HERE, NEXT])


def swapped(played: Played) -> None:
    played.landed.land("b", 0, 0, [OTHER, *HERE[1:]])


def swapped_unseen(played: Played) -> None:
    played.landed.land("b", 0, 0, [OTHER._replace(partition=0), *HERE[1:]])


def cut_elsewhere(played: Played) -> None:
    played.land_rest()
    played.landed.land("b", 0, 2)


def row_bit(played: Played) -> None:
    played.land_rest()
    played.change(lambda found: found.index(b"message 1"))


def page_bit(played: Played) -> None:
    played.columnar()
    played.change(lambda found: 40)


def footer_bit(played: Played) -> None:
    played.columnar()
    played.change(lambda found: len(found) - 40)


def truncated(played: Played) -> None:
    played.land_rest()
    played.path().write_bytes(played.path().read_bytes()[:-20])


def removed(played: Played) -> None:
    played.land_rest()
    played.path().unlink()


def exchanged(played: Played) -> None:
    played.land_rest()
    other = next(f for f in played.landed.files("b") if 1 in f.ranges)
    played.path().write_bytes(path_of(played.landed.writers["b"].zone, other.name).read_bytes())


def lost_write(played: Played) -> None:
    writer = played.landed.writers["b"]
    draft = writer.zone.draft(str(WHOLE), {0: (0, 2)}, HERE)
    place = path_of(writer.zone, draft.file.name)
    writer.zone.put(draft)
    os.utime(place, times=(NOW.timestamp(), NOW.timestamp()))
    played.landed.clock += 2 * DEADLINE


def late_write(played: Played) -> None:
    played.landed.clock += 2 * DEADLINE


def bad_compaction(played: Played) -> None:
    played.land_rest()
    writer = played.landed.writers["b"]
    taken = [f for f in played.landed.files("b") if 0 in f.ranges]
    draft = writer.zone.draft(str(WHOLE), taken[0].ranges, HERE[1:], kind="columnar")
    writer.replace("compaction", taken, draft, now=played.landed.clock)


def stale_reader(played: Played) -> None:
    played.land_rest()
    played.readers_list = played.landed.files("b")
    for zone in "ab":
        played.landed.run("columns", zone)


def swept_reader(played: Played) -> None:
    stale_reader(played)
    for writer in played.landed.writers.values():
        sweep(writer.manifest, writer.zone, retired_before=played.landed.clock + DEADLINE)


def twice(played: Played) -> None:
    played.land_rest()
    played.land_rest()


def scrubs(played: Played) -> None:
    played.land_rest()
    played.landed.ask("person 1", "r1", 2_000)
    played.landed.run("scrub", "a")
    played.landed.ask("person 2", "r2", 2_000)
    for zone in "ba":
        played.landed.run("scrub", zone)


def scrub_before_landing(played: Played) -> None:
    played.landed.ask("person 1", "r1", 2_000)
    played.landed.run("scrub", "a")
    played.land_rest()
    played.landed.run("scrub", "b")


def future(played: Played) -> None:
    played.landed.ask("person 1", "r1", 10**15)


def half_a_reshard(played: Played) -> None:
    played.land_rest()
    played.landed.die("reshard", "b", "landing-added")
    for zone in "aba":
        played.landed.run("reshard", zone)


def lose_row(played: Played, zones: str = "b", partition: int = 0) -> None:
    """The manifest loses the first file of a partition; the file itself stays."""
    played.land_rest()
    for zone in zones:
        file = min((f for f in played.landed.files(zone) if partition in f.ranges), key=lambda f: f.ranges[partition])
        with played.landed.writers[zone].manifest.change() as (connection, _):
            FileRows(connection).remove(zone, file.name)


def lose_rows_of_both(played: Played) -> None:
    lose_row(played, "ab", partition=1)


def lose_last_rows_of_both(played: Played) -> None:
    lose_row(played, "ab")


def set_columns(played: Played, **values: object) -> None:
    """Columns of the file of partition 0 in zone b are changed by hand."""
    played.land_rest()
    with played.landed.writers["b"].manifest.change() as (connection, _):
        FileRows(connection).change("b", played.path().name, **values)


def lose_ranges(played: Played) -> None:
    played.land_rest()
    with played.landed.writers["b"].manifest.change() as (connection, _):
        connection.execute(sa.delete(RANGES).where(RANGES.c.zone == "b"))


def lose_request(played: Played) -> None:
    scrubs(played)
    change_commands(
        played.landed.settings, "deletion", lambda request: None if request["request_id"] == "r2" else request
    )


def revive(played: Played) -> None:
    half_a_reshard(played)
    old = played.landed.manifest.entries("b", stages=("retired",))[0].file.name
    with played.landed.writers["b"].manifest.change() as (connection, _):
        FileRows(connection).change("b", old, stage="live")


FAULTS: Mapping[str, Callable[[Played], None]] = {
    "a record is missing": missing,
    "a record is doubled": doubled,
    "a record is changed": changed,
    "a record moved to the neighbour file": neighbour,
    "a record swapped between partitions": swapped,
    "the same, and it bears the wrong partition": swapped_unseen,
    "a zone cuts elsewhere": cut_elsewhere,
    "a compaction loses a record": bad_compaction,
    "a flipped bit in a row": row_bit,
    "a flipped bit in a page": page_bit,
    "a flipped bit in a footer": footer_bit,
    "a truncated file": truncated,
    "a file is gone": removed,
    "a file has the bytes of another": exchanged,
    "a lost manifest write": lost_write,
    "a zone that writes nothing": late_write,
    "a stale reader": stale_reader,
    "a stale reader, after the sweep": swept_reader,
    "the same file twice": twice,
    "scrubs in different order": scrubs,
    "a scrub that a zone lands after": scrub_before_landing,
    "a request from the future": future,
    "a reshard killed half way, run again": half_a_reshard,
    "a lost row of a file": lose_row,
    "lost rows of a file in both zones": lose_rows_of_both,
    "lost rows of the last file in both zones": lose_last_rows_of_both,
    "lost rows of ranges": lose_ranges,
    "a lost request": lose_request,
    "a row with other offsets": lambda played: set_columns(played, ranges='{"0": [0, 1]}'),
    "a row with another identity": lambda played: set_columns(played, identity="0" * 32),
    "a row with another sum": lambda played: set_columns(played, sum="0" * 64),
    "a file that is retired by hand": lambda played: set_columns(played, stage="retired"),
    "a file that is live again by hand": revive,
}
STEPS = ("write or add", "reading", "`verify`")


def play(fault: str, home: Path) -> Outcomes:
    """What notices a fault: step → the error, or nothing."""
    played = Played(Landed(Settings(home=home)))
    steps: tuple[Callable[[], str], ...] = (
        lambda: _error(lambda: FAULTS[fault](played)),
        lambda: _error(played.read),
        lambda: "; ".join(sorted({_kind(f.problem) for f in played.landed.findings()})) or QUIET,
    )
    return dict(zip(STEPS, (step() for step in steps), strict=True))


def _error(act: Callable[[], None]) -> str:
    try:
        act()
    except LakeError as error:
        return type(error).__name__
    return QUIET


def _kind(problem: str) -> str:
    """A finding without names and numbers."""
    kinds = {
        "is quarantined": "quarantined",
        "has waited": "waits too long",
        "other bytes": "other bytes",
        "not where": "gone",
        "not in the manifest": "not in the manifest",
        "is missing here": "missing",
        "is in no file": "missing offsets",
        "nothing there any more": "lost a verified file",
        "is not found by its offsets": "rows do not fit",
        "has a name that is not": "name does not fit",
        "which the manifest does not have": "unknown request",
        "files of other shards hold": "held twice",
        "outside its own": "other offsets",
        "holds records with": "other records",
        "that of zone": "differs from the other zone",
    }
    return next((kind for words, kind in kinds.items() if words in problem), problem)


def play_all(folder: Path) -> dict[str, Outcomes]:
    """All faults, each with a home of its own: step → what came of each."""
    played = {fault: play(fault, folder / str(number)) for number, fault in enumerate(FAULTS)}
    return {step: {fault: outcomes[step] for fault, outcomes in played.items()} for step in STEPS}


def page(found: Mapping[str, Outcomes]) -> str:
    """The page: a row for each fault, a column for each step."""
    return HEAD + table("fault", FAULTS, found, between="; ") + "\n" + TAIL


HEAD = """# Faults of landed files

Zone `a` has landed three messages of a partition; zone `b` lands them with a fault, or it occurs later. Which step
detects it: the write, a reader, or `lake landing verify`?
`python -m lake_assets_tests.landing.faults` writes this page.

"""
TAIL = """
With `LandingError` nothing is added; with `FilesDiffer` the file is quarantined. A reader never gets wrong records.
Where no step detects anything, the zones end with equal files.
"""


def main() -> None:
    """Play all and write the page."""
    with tempfile.TemporaryDirectory(prefix="lake-faults-") as folder:
        PAGE.write_text(page(play_all(Path(folder))))
    print(f"written: {PAGE.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
