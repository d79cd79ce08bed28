"""Validation of files that are added to the manifest, as far as it needs no other entry. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lake_assets.errors import LandingError, SumsDisagree
from lake_assets.landing.files.checksum import Checksum, total
from lake_assets.landing.files.entries import DataFile, check_file_name, compare, names_of, offsets
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.manifest.schema import Entry, Verdict


def validate_file(file: DataFile) -> None:
    """Raise `LandingError` unless name, shard, offsets and zone of a file are valid."""
    check_file_name(file.name)
    parse_shard(file.shard)
    for partition, (first, last) in file.ranges.items():
        if not 0 <= first <= last or partition < 0:
            raise LandingError(
                f"{file.name} has the offsets {first} to {last} of partition {partition}.",
                remedy="Give both inclusive, from 0 on, the lesser first.",
            )
    if not file.zone:
        raise _incomplete(file, "zone")
    if not file.ranges:
        raise _incomplete(file, "offsets")


def validate_sums(operation: str, taken: Sequence[DataFile], given: Sequence[DataFile], removed: Checksum) -> None:
    """Check that an operation wrote exactly the records that it read.

    Args:
        operation: Its name, for the message.
        taken: The files that it read.
        given: The files that it wrote.
        removed: The checksum of the records that it left out.

    Raises:
        SumsDisagree: The checksums do not add up.
    """
    before = total(file.checksum for file in taken)
    after = total(file.checksum for file in given) + removed
    if before != after:
        raise SumsDisagree(operation, ", ".join(names_of(taken)), taken=str(before), given=str(after))


def validate_same_file(existing: Entry, file: DataFile) -> Verdict:
    """Return the verdict of a file that is added again. Raises `LandingError` if it holds other records now."""
    if compare(existing.file, file) == "match":
        return existing.verdict
    raise LandingError(
        f"{file.name} of zone {file.zone} ({offsets(file)}) is there with the checksum {existing.file.checksum}, "
        f"and was now written with {file.checksum}.",
        remedy="The existing file stays. Run `lake landing verify`: the input of the zone has changed.",
    )


def _incomplete(file: DataFile, missing: str) -> LandingError:
    return LandingError(
        f"{file.name} has no {missing}.",
        remedy="Add the files of a zone, as `Zone.draft` makes them.",
    )
