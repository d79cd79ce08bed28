"""Asset checks on the zones: `zones_equal` compares the files of a topic, `lag` checks that a zone is not late.

`zones_equal` runs on demand; every run of a zone's asset evaluates `lag`. The sensor of `sensors.py` evaluates both.
A new check is also listed in `assets.py`: in `landing_definitions`, or in `check_specs` if a run of an asset evaluates
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg

from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.landing.consume.lag import Lag
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.dagster.resource import LandingResource
from lake_assets.landing.files.entries import offsets
from lake_assets.landing.manifest.schema import CURRENT_STAGES, Entry
from lake_assets.landing.manifest.store import Manifest
from lake_assets.landing.topics.stops import Stop, Stops

ZONES_EQUAL = "zones_equal"
LAG = "lag"
AGREE = "No file of either zone differs or is overdue."
SHOWN = 10
"""The most files that a check names."""


def zone_key(topic: str, zone: str) -> dg.AssetKey:
    """Return the asset key of a topic in a zone: `raw.signups` in zone a → landing/a/raw/signups."""
    return dg.AssetKey(["landing", zone, *topic.split(".")])


def load_key(topic: str) -> dg.AssetKey:
    """Return the asset key of a loaded topic: `raw.signups` → landing/raw/signups."""
    return dg.AssetKey(["landing", *topic.split(".")])


def topic_key(topic: str) -> dg.AssetKey:
    """Return the asset key of a topic in Kafka: `raw.signups` → kafka/raw/signups."""
    return dg.AssetKey(["kafka", *topic.split(".")])


@dataclass(frozen=True)
class ZoneComparison:
    """The comparison of the zones' files of a topic.

    Attributes:
        quarantined: Files that differ from another zone's file.
        overdue: Files that have waited for the other zone's file longer than the deadline.
        provisional: Number of files that wait, including the overdue ones.
        stops: Partitions that a zone does not land any more.
    """

    quarantined: Sequence[Entry]
    overdue: Sequence[Entry]
    provisional: int
    stops: Sequence[Stop] = ()

    @property
    def passed(self) -> bool:
        """Whether no file differs or is overdue, and no partition has stopped."""
        return not (self.quarantined or self.overdue or self.stops)

    @property
    def description(self) -> str:
        """One line for each stop and each file, up to `SHOWN`: name, offsets, checksum, and what is wrong with it."""
        if self.passed:
            return AGREE
        entries = [*self.quarantined, *self.overdue]
        lines = [f"{stop.sentence} {stop.remedy}" for stop in self.stops]
        lines += map(_describe, entries)
        return "\n".join(lines[:SHOWN])

    @property
    def metadata(self) -> dict[str, int]:
        """The number of files of each kind."""
        return {
            "quarantined": len(self.quarantined),
            "overdue": len(self.overdue),
            "provisional": self.provisional,
            "stopped": len(self.stops),
        }


def compare_zones(manifest: Manifest, topic: str, *, now: datetime, deadline: timedelta) -> ZoneComparison:
    """Return the comparison of the zones' files of a topic, according to the manifest."""
    entries = manifest.entries(topic=topic, stages=CURRENT_STAGES, verdicts=("provisional", "quarantined"))
    quarantined = [entry for entry in entries if entry.verdict == "quarantined"]
    return ZoneComparison(
        quarantined=quarantined,
        overdue=[entry for entry in entries if entry.overdue(now, deadline)],
        provisional=len(entries) - len(quarantined),
        stops=Stops(manifest).all(topic),
    )


def zones_equal_check(feed: Feed, clock: Clock, deadline: timedelta) -> dg.AssetChecksDefinition:
    """Return the check that fails while a file of a topic is quarantined or overdue.

    Args:
        feed: Of the topic.
        clock: Returns the present time, in UTC.
        deadline: A provisional file that waits longer is overdue.
    """

    @dg.asset_check(
        asset=load_key(feed.topic),
        name=ZONES_EQUAL,
        description=(
            "Both zones have the same records. The check fails while a file is quarantined because it differs from the "
            "other zone's file, or waits for that file longer than the deadline."
        ),
    )
    def check(context: dg.AssetCheckExecutionContext, lake_assets_landing: LandingResource) -> dg.AssetCheckResult:
        service = lake_assets_landing.service()
        found = compare_zones(service.manifest, feed.topic, now=clock(), deadline=deadline)
        return dg.AssetCheckResult(
            passed=found.passed,
            severity=dg.AssetCheckSeverity.ERROR,
            description=found.description,
            metadata=found.metadata,
        )

    return check


def zones_equal_evaluation(topic: str, found: ZoneComparison) -> dg.AssetCheckEvaluation:
    """Return the same result as an event outside a run."""
    return dg.AssetCheckEvaluation(
        asset_key=load_key(topic),
        check_name=ZONES_EQUAL,
        passed=found.passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=found.description,
        metadata=found.metadata,
    )


def lag_check(topic: str, zone: str) -> dg.AssetCheckSpec:
    """Return the check that fails while messages wait longer than the deadline to be landed in a zone."""
    description = "Every message in Kafka is landed in this zone within the deadline."
    return dg.AssetCheckSpec(LAG, asset=zone_key(topic, zone), description=description)


def lag_evaluation(topic: str, zone: str, found: Lag, deadline: timedelta) -> dg.AssetCheckEvaluation:
    """Return the result of the `lag` check as an event outside a run."""
    late = found.age > deadline
    if late:
        description = f"Messages have waited for {found.age} to be landed. Run `lake landing run`."
    else:
        description = "No message has waited longer than the deadline."
    return dg.AssetCheckEvaluation(
        asset_key=zone_key(topic, zone),
        check_name=LAG,
        passed=not late,
        severity=dg.AssetCheckSeverity.ERROR,
        description=description,
        metadata={"messages": found.messages, "age (seconds)": found.age.total_seconds()},
    )


def _describe(entry: Entry) -> str:
    file = entry.file
    problem = entry.reason or f"has waited for the other zone since {entry.added_at:%Y-%m-%d %H:%M:%S}"
    return f"{file.name} of zone {file.zone} ({offsets(file)}, {file.checksum}): {problem}"
