"""The landing zones, and the raw tables that are loaded from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.operations.health import Problem
from lake_assets.incremental.operations.overview import Overview
from lake_assets.landing.heal import quarantined
from lake_assets.landing.kafka import Offsets, lag
from lake_assets.landing.loading import progress_of
from lake_assets.landing.manifest import ALL_VERDICTS, Entry, Manifest, Verdict, has_landed, open_manifest
from lake_assets.landing.problems import problems
from lake_assets.landing.records import next_offsets, parse_shard
from lake_assets.landing.state import Ledger
from lake_assets.pages.data_path.kafka import KafkaState
from lake_assets.pages.data_path.stages import Fact, complete_through, moment
from lake_assets.settings import Settings

TopicAndZone = tuple[str, str]

BAD_FILES = "`lake landing verify` lists files that are overdue, `lake landing quarantine list` those that differ."


@dataclass(frozen=True)
class LandingState:
    """The files of the landing zones."""

    settings: Settings
    engine: Engine
    kafka: KafkaState

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest; None if nothing ever landed, because opening it would create it."""
        return open_manifest(self.settings) if has_landed(self.settings) else None

    @cached_property
    def entries(self) -> Mapping[TopicAndZone, list[Entry]]:
        """Topic and zone → the files that are live, staged or in quarantine."""
        found: dict[TopicAndZone, list[Entry]] = {}
        if self.manifest:
            for entry in self.manifest.entries(stages=("staged", "live"), verdicts=ALL_VERDICTS):
                topic = parse_shard(entry.file.shard).topic
                found.setdefault((topic, entry.file.zone), []).append(entry)
        return dict(sorted(found.items()))

    def facts(self) -> Iterator[Fact]:
        """Yield what is wrong, then the state of each zone of each topic."""
        for problem in self.problems:
            if problem.level == "error":
                yield Fact(problem.target, "", problem.what, bad=True, remedy=problem.remedy)
        for (topic, zone), entries in self.entries.items():
            yield self._zone(topic, zone, entries, self._ends_in_kafka(topic))

    @cached_property
    def problems(self) -> list[Problem]:
        """What is wrong with landing, beside what Kafka tells of it."""
        feeds = self.kafka.feeds
        return problems(self.settings, feeds, now=self.engine.clock(), catalog=self.engine.catalog)

    def raw_facts(self, overview: Overview) -> Iterator[Fact]:
        """Yield the state of each raw table."""
        topics = {feed.raw.table: feed.topic for feed in self.kafka.feeds}
        for standing in overview.standings:
            if standing.kind != "raw":
                continue
            topic = topics.get(standing.table)
            behind = self._offsets_not_loaded(standing.table, topic) if topic else 0
            pending = f"{behind:,} landed offsets are not loaded" if behind else ""
            yield Fact(
                standing.table,
                complete_through(standing.complete_through),
                standing.problem or pending,
                bad=standing.problem is not None,
                remedy=standing.remedy,
            )

    def quarantine_facts(self) -> Iterator[Fact]:
        """Yield each landed file in quarantine, with the command that accepts it."""
        if self.manifest is None:
            return
        for entry in quarantined(self.manifest):
            zone = entry.file.zone
            name = entry.file.name
            yield Fact(
                f"{name}, zone {zone}",
                f"since {moment(entry.added_at)}",
                entry.reason,
                bad=True,
                command=f"lake landing quarantine release {zone} {name}",
            )

    def _zone(self, topic: str, zone: str, entries: list[Entry], in_kafka: Offsets) -> Fact:
        """in_kafka: the ends of the topic's partitions, empty if they are not known."""
        what = f"{topic}, zone {zone}"
        now = self.engine.clock()
        verdicts = Counter(entry.verdict for entry in entries)
        not_landed = lag(in_kafka, _landed(entries), None, now=now).messages
        bad = any(problem.target in (what, f"zone {zone}") for problem in self.problems)
        last = max(entry.added_at for entry in entries)
        return Fact(
            what,
            f"last file at {moment(last)}; {verdicts['verified']:,} verified",
            ", ".join(_pending(verdicts, not_landed)),
            bad=bad,
            remedy=BAD_FILES if bad else "",
        )

    def _ends_in_kafka(self, topic: str) -> Offsets:
        """Return partition → the offset after Kafka's last message, as it is landed."""
        ends = self.kafka.ends.get(topic, {})
        epoch = Ledger(self.manifest).epoch(topic) if self.manifest else None
        return epoch.landed_offsets(ends) if epoch else ends

    def _offsets_not_loaded(self, table: str, topic: str) -> int:
        """Count the offsets that at least one zone has landed and the raw table does not hold."""
        landed: dict[int, int] = {}
        for (landed_topic, _), entries in self.entries.items():
            if landed_topic != topic:
                continue
            for partition, end in _landed(entries).items():
                landed[partition] = max(end, landed.get(partition, 0))
        if not landed:
            return 0
        loaded = progress_of(self.engine.catalog, table, topic).offsets
        return sum(max(0, end - loaded.get(partition, 0)) for partition, end in landed.items())


def _pending(verdicts: Mapping[Verdict, int], not_landed: int) -> Iterator[str]:
    """Yield what is pending in a zone. verdicts: verdict → files."""
    if verdicts.get("provisional"):
        yield f"{verdicts['provisional']:,} files are not verified yet"
    if not_landed:
        yield f"{not_landed:,} offsets of Kafka are not landed"
    if verdicts.get("quarantined"):
        yield f"{verdicts['quarantined']:,} files are in quarantine"


def _landed(entries: Iterable[Entry]) -> Offsets:
    """Return partition → the offset after the last landed one."""
    return next_offsets(entry.file for entry in entries if entry.verdict != "quarantined")
