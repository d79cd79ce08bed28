"""What two zones say of each other, as asset checks: one for each topic that compares files, one for each zone's lag.

The first runs on demand, a zone's lag is told by each run that lands; and both by the sensor of `sensors.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg

from lake_assets.incremental.dagster.sensors import Clock
from lake_assets.landing.consume.lag import Lag
from lake_assets.landing.consume.messages import Feed
from lake_assets.landing.files.entries import offsets
from lake_assets.landing.landing_service import LandingService
from lake_assets.landing.manifest.schema import Entry
from lake_assets.landing.manifest.store import Manifest

ZONES_EQUAL, LAG = "zones_equal", "lag"
AGREE = "The zones agree."
SHOWN = 10
"""Files that a check names."""


def zone_key(topic: str, zone: str) -> dg.AssetKey:
    """`raw.signups` in zone a → landing/a/raw/signups."""
    return dg.AssetKey(["landing", zone, *topic.split(".")])


def load_key(topic: str) -> dg.AssetKey:
    """`raw.signups` → landing/raw/signups."""
    return dg.AssetKey(["landing", *topic.split(".")])


@dataclass(frozen=True)
class Equality:
    """How the zones stand in a topic. differ: files in quarantine. late: that wait too long. waiting: how many do."""

    differ: Sequence[Entry]
    late: Sequence[Entry]
    waiting: int

    @property
    def passed(self) -> bool:
        return not (self.differ or self.late)

    @property
    def description(self) -> str:
        """File, offsets and checksum of each, up to `SHOWN`, and why: of one that differs with the other checksum."""
        return "\n".join(_told(entry) for entry in [*self.differ, *self.late][:SHOWN]) or AGREE

    @property
    def metadata(self) -> dict[str, int]:
        return {"quarantined": len(self.differ), "overdue": len(self.late), "provisional": self.waiting}


def zones_equal(manifest: Manifest, topic: str, *, now: datetime, deadline: timedelta) -> Equality:
    """How the zones stand in a topic, by the manifest."""
    every = manifest.entries(topic=topic, stages=("staged", "live"), verdicts=("provisional", "quarantined"))
    differ = [entry for entry in every if entry.verdict == "quarantined"]
    return Equality(differ, [e for e in every if e.overdue(now, deadline)], len(every) - len(differ))


def zones_equal_check(feed: Feed, clock: Clock, deadline: timedelta) -> dg.AssetChecksDefinition:
    """Fails while a file is quarantined, or has waited for the other zone's longer than a deadline; names them."""

    @dg.asset_check(
        asset=load_key(feed.topic),
        name=ZONES_EQUAL,
        description="each file is equal to the other zone's, or waits for it no longer than the deadline",
        required_resource_keys={"landing"},
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        station: LandingService = context.resources.landing.station()
        found = zones_equal(station.manifest, feed.topic, now=clock(), deadline=deadline)
        return dg.AssetCheckResult(
            passed=found.passed,
            severity=dg.AssetCheckSeverity.ERROR,
            description=found.description,
            metadata=found.metadata,
        )

    return check


def zones_equal_evaluation(topic: str, found: Equality) -> dg.AssetCheckEvaluation:
    """The same as an event outside any run."""
    return dg.AssetCheckEvaluation(
        asset_key=load_key(topic),
        check_name=ZONES_EQUAL,
        passed=found.passed,
        severity=dg.AssetCheckSeverity.ERROR,
        description=found.description,
        metadata=found.metadata,
    )


def lag_check(topic: str, zone: str) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(LAG, asset=zone_key(topic, zone), description="messages are landed within the deadline")


def lag_evaluation(topic: str, zone: str, found: Lag, deadline: timedelta) -> dg.AssetCheckEvaluation:
    """A verdict as an event outside any run."""
    late = found.age > deadline
    return dg.AssetCheckEvaluation(
        asset_key=zone_key(topic, zone),
        check_name=LAG,
        passed=not late,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"Messages have waited for {found.age}. Run `lake landing run`." if late else "Not late.",
        metadata={"messages": found.messages, "age (seconds)": found.age.total_seconds()},
    )


def _told(entry: Entry) -> str:
    file = entry.file
    why = entry.reason or f"has waited for the other zone since {entry.added_at:%Y-%m-%d %H:%M:%S}"
    return f"{file.name} of zone {file.zone} ({offsets(file)}, {file.checksum}): {why}"
