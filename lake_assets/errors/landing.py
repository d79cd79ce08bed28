"""Errors of landed files."""

from lake_assets.errors.base import LakeError


class LandingError(LakeError):
    """Landing refuses a file. The manifest is unchanged, except that the file may be quarantined."""


class OffsetsOverlap(LandingError):
    """Two files of one shard hold the same offset of a partition."""

    def __init__(self, partition: int, offset: int, *, names: tuple[str, str]) -> None:
        super().__init__(
            f"Offset {offset} of partition {partition} is in two files, {names[0]} and {names[1]}.",
            remedy="Remove the wrong file from the manifest: `lake landing quarantine discard`.",
        )


class FilesDiffer(LandingError):
    """A file does not hold the records of the other zone's file for the same offsets. It is quarantined."""

    def __init__(self, name: str, offsets: str, *, found: str, expected: str, zone: str) -> None:
        super().__init__(
            f"{name} ({offsets}) has the checksum {found}, but the file of zone {zone} has {expected}.",
            remedy="Find out which file is right. `lake landing quarantine release` accepts the quarantined file, "
            "`lake landing quarantine discard` removes it.",
        )


class FileDamaged(LandingError):
    """A file does not match its entry in the manifest. what: how, as the end of a sentence."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            f"{name} {what}.",
            remedy="Look the file up in the manifest again, because it may have been replaced. If not, run "
            "`lake landing quarantine discard` and restart the zone, which lands its offsets again.",
        )


class SumsDisagree(LandingError):
    """An operation did not write the records that it read. No file was added."""

    def __init__(self, operation: str, names: str, *, taken: str, given: str) -> None:
        super().__init__(
            f"The {operation} of {names} is wrong: expected {taken}, found {given.removesuffix('.')}.",
            remedy="The existing files are unchanged. Run `lake landing verify`, and report the operation as a bug.",
        )
