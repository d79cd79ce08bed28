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
            "`lake landing repair`, which writes it again from the other zone.",
        )


class SumsDisagree(LandingError):
    """An operation did not write the records that it read. No file was added."""

    def __init__(self, operation: str, names: str, *, taken: str, given: str) -> None:
        super().__init__(
            f"The {operation} of {names} is wrong: expected {taken}, found {given.removesuffix('.')}.",
            remedy="The existing files are unchanged. Run `lake landing verify`, and report the operation as a bug.",
        )


class ZoneMismatch(LandingError):
    """The folder of a zone and the manifest do not belong together: one of them is gone, new or another one's."""


class TopicRecreated(LandingError):
    """Kafka has another topic (`found`) under the name of one that landed (`expected`). Nothing of it is landed."""

    def __init__(self, topic: str, *, expected: str, found: str) -> None:
        super().__init__(
            f"Topic {topic} was deleted and created again: its id is {found}, but files have landed from the topic "
            f"with the id {expected or 'that was not recorded'}.",
            remedy=f"Restore the former topic. Or run `lake landing accept {topic}`, which records what is lost: the "
            "zones then land the new topic from its first message on.",
        )


class OffsetsGone(LandingError):
    """Kafka has removed the offset at which a zone has to continue. `earliest` is the first one that it has."""

    def __init__(self, topic: str, partition: int, *, expected: int, earliest: int) -> None:
        super().__init__(
            f"The next offset of partition {partition} of {topic} is {expected}, but Kafka holds offsets from "
            f"{earliest} on only.",
            remedy=f"Restore the messages. Or run `lake landing accept {topic}`, which records what is lost: the zones "
            "then continue. Increase the retention.",
        )


class IntakeIncomplete(LandingError):
    """Landing was about to add files that do not hold every message that Kafka gave. Nothing was added."""

    def __init__(self, topic: str, partition: int, span: tuple[int, int], *, given: int, kept: int) -> None:
        first, last = span
        super().__init__(
            f"Kafka gives {given:,} messages of partition {partition} of {topic} from offset {first} to {last}, "
            f"but {kept:,} records and dead letters were to be landed.",
            remedy="Nothing was added. Start the zone again; if it stops again, report landing as a bug.",
        )


class DiskFull(LandingError):
    """A file or the manifest could not be written because there is no space left."""

    def __init__(self, place: object, reason: str) -> None:
        super().__init__(
            f"{place} cannot be written: {reason}.",
            remedy="Free space or enlarge the quota, then run the command again. It continues where it stopped.",
        )
