"""What can be said of files without looking into the manifest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from lake_assets.errors import LandingError, SumsDisagree
from lake_assets.landing.files.checksum import NOTHING, Checksum
from lake_assets.landing.files.entries import DataFile, check_file_name, compare, offsets
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.manifest.schema import Entry, Verdict


def check(file: DataFile) -> None:
    """What can be said of a file by itself."""
    check_file_name(file.name)
    parse_shard(file.shard)
    for partition, (first, last) in file.ranges.items():
        if not 0 <= first <= last or partition < 0:
            raise LandingError(
                f"{file.name} has the offsets {first} to {last} of partition {partition}.",
                remedy="Give both inclusive, from 0 on, the lesser first.",
            )
    if not file.ranges or not file.zone:
        what = "no offsets" if file.zone else "no zone"
        raise LandingError(f"{file.name} has {what}.", remedy="Add the files of a zone, as `Zone.draft` makes them.")


def conserve(operation: str, taken: Sequence[DataFile], given: Sequence[DataFile], removed: Checksum) -> None:
    """Raise `SumsDisagree` unless what an operation put out and what it removed are all that it took in."""
    before, after = (reduce(add, (f.checksum for f in files), NOTHING) for files in (taken, given))
    if before != after + removed:
        names = ", ".join(f.name for f in taken)
        raise SumsDisagree(operation, names, taken=str(before), given=str(after + removed))


def same_again(found: Entry, file: DataFile) -> Verdict:
    """The verdict of a file that is added again."""
    if compare(found.file, file) == "match":
        return found.verdict
    raise LandingError(
        f"{file.name} of zone {file.zone} ({offsets(file)}) is there with the checksum {found.file.checksum}, "
        f"and was now written with {file.checksum}.",
        remedy="The file that is there stays. Run `lake landing verify`: what the zone reads has changed.",
    )
