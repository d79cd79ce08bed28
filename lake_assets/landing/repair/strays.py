"""Files that the manifest does not name: added to it if their names prove what they are, else put in quarantine."""

from __future__ import annotations

from datetime import datetime

from lake_assets.errors import LandingError
from lake_assets.landing.files import formats
from lake_assets.landing.files.checked_reading import digest_of
from lake_assets.landing.files.checksum import Tally
from lake_assets.landing.files.entries import NAME, SUFFIXES, DataFile, Kind, file_name
from lake_assets.landing.files.sharding import Shard
from lake_assets.landing.files.zone_folder import Zone
from lake_assets.landing.manifest.zone_writer import ZoneWriter

KINDS: dict[str, Kind] = {suffix: kind for kind, suffix in SUFFIXES.items()}


def adopt(writer: ZoneWriter, name: str, *, now: datetime) -> bool:
    """Add a file of the zone's folder to the manifest, or put it in quarantine.

    Args:
        writer: Of the zone.
        name: Of a file that the manifest does not name.
        now: The present time.

    Returns:
        Whether it was added.
    """
    file = describe(writer.zone, name)
    if file is not None:
        try:
            writer.manifest.add(file, now=now)
        except LandingError:  # other files have its offsets, or hold other records
            file = None
    if file is None and NAME.fullmatch(name):
        writer.zone.quarantine(name)
    return file is not None


def describe(zone: Zone, name: str) -> DataFile | None:
    """Return the description of a file if its name, which is a hash of shard and offsets, proves it; else None."""
    named = NAME.fullmatch(name)
    if named is None:
        return None
    kind = KINDS[f".{named[2]}"]
    tally = Tally()
    spans: dict[int, tuple[int, int]] = {}
    try:
        with zone.path(name).open("rb") as opened:
            for record in tally.of(formats.read(kind, opened)):
                first, last = spans.get(record.partition, (record.offset, record.offset))
                spans[record.partition] = (min(first, record.offset), max(last, record.offset))
    except Exception:  # fastavro and pyarrow raise many types for a damaged file
        return None
    shard = _shard(name[: named.start(1) - 1], named[1])
    if not spans or file_name(str(shard), spans, (), kind) != name:
        return None
    return DataFile(
        name=name,
        size=tally.size,
        shard=str(shard),
        ranges=dict(sorted(spans.items())),
        deletions=frozenset(),
        count=tally.count,
        checksum=tally.checksum,
        zone=zone.name,
        kind=kind,
        digest=digest_of(zone.path(name)),
    )


def _shard(topic: str, number: str) -> Shard:
    if number == "dead-letters":
        return Shard(topic, dead_letters=True)
    at, of = number.split("-of-")
    return Shard(topic, int(at), int(of))
