"""The whole data path as it stands, from Kafka to what is served, coalesce_if_few for `lake report`.

It asks each stage in that stage's own way, starts no Spark and changes nothing. A stage whose service does not run, or
that was never used, says so in its place; one that cannot be asked says why, and the others are told all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

import sqlalchemy as sa
from confluent_kafka import KafkaException
from deltalake.exceptions import DeltaError
from kazoo.exceptions import KazooException
from pyiceberg.catalog import Catalog

from lake_assets.base.hours import format_hours, hour_key
from lake_assets.connections.addresses import kafka_address, zookeeper_address
from lake_assets.engagement.metrics.refresh import metrics_cursor
from lake_assets.engagement.model.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.model.lakes import LAKES, metrics_locations
from lake_assets.engagement.model.table_schemas import ENGAGEMENT
from lake_assets.engagement.model.tables import LakeTables, open_tables
from lake_assets.engagement.monitoring.status import stream_status
from lake_assets.errors import LakeError, ServiceError
from lake_assets.incremental.execution.engine import Engine
from lake_assets.incremental.monitoring.freshness import freshness
from lake_assets.incremental.monitoring.overview import Overview, TargetOverview
from lake_assets.incremental.planning.session import SessionPlan
from lake_assets.landing.consume.kafka_reader import ends, partitions
from lake_assets.landing.consume.lag import Offsets, lag
from lake_assets.landing.consume.messages import Feed, feeds
from lake_assets.landing.files.offset_ranges import next_offsets
from lake_assets.landing.files.sharding import parse_shard
from lake_assets.landing.loading.progress import progress_of
from lake_assets.landing.manifest.schema import ALL_VERDICTS, Entry
from lake_assets.landing.manifest.store import Manifest, has_landed, open_manifest
from lake_assets.landing.operations.quarantine import quarantined
from lake_assets.pages.data_path import DataPath, Fact, Stage
from lake_assets.serving.lineage.lineage import State
from lake_assets.serving.lineage.registry import Registry
from lake_assets.serving.served_tables import serving_at
from lake_assets.serving.store.sources import Source, metrics_sources, pipeline_sources
from lake_assets.serving.store.status import EntryStatus, lineage_status, switched_with, table_status, way_back
from lake_assets.settings import Settings

LAST_PUSHES = 5
"""Of each served table."""

FAILURES = (LakeError, OSError, sa.exc.SQLAlchemyError, DeltaError, KafkaException, KazooException)
NO_KAFKA = "No Kafka runs for this home, and none is named: `lake up`, or LAKE_KAFKA."
NO_ZOOKEEPER = "No ZooKeeper runs for this home, and none is named: `lake up`, or LAKE_ZOOKEEPER."
NO_TOPIC = "No topic is there yet: `lake landing init`."
NO_LAKE_TOPIC = "No topic is there yet: `lake engagement init LAKE --org ORG`."
NO_FEED = "No raw table is landed from Kafka: the pipelines declare no `subjects`."
NOTHING_LANDED = "Nothing has landed: `lake landing run`."
NO_LAKE = "No lake was created yet: `lake engagement init LAKE --org ORG`."
NOTHING_SERVED = "Nothing was pushed yet: `lake serving push TABLE`."


def data_path(settings: Settings, engine: Engine, overview: Overview) -> DataPath:
    """How all stages stand. overview: of the same engine's tables, read just before."""
    kafka = _Kafka(settings, engine)
    landing = _Landing(settings, engine, kafka)
    lakes = _Lakes(settings, kafka)
    served, pushes = _serving(settings, engine)
    return DataPath(
        stages=(
            _asked("Kafka", kafka.facts, kafka.no_facts),
            _asked("Landing zones", landing.facts, NOTHING_LANDED if kafka.feeds else NO_FEED),
            _asked("Raw tables", lambda: landing.raw_facts(overview), "None is declared."),
            _asked("Facts and dimensions", lambda: _targets(engine, overview), "None is declared."),
            replace(_asked("Engagement lakes", lakes.facts, NO_LAKE), beside=True),  # they read Kafka by themselves
            served,
        ),
        pushes=pushes,
        quarantine=_asked("Landed files", landing.quarantine_facts, "Empty."),
    )


def _asked(name: str, facts: Callable[[], Iterable[Fact]], nothing: str) -> Stage:
    """What a stage says; in its place `nothing` if it has nothing to say, or why it cannot be asked."""
    try:
        found = tuple(facts())
    except FAILURES as error:
        return Stage(name, instead=_problem(error), broken=True)
    return Stage(name, found, "" if found else nothing)


@dataclass(frozen=True)
class _Kafka:
    settings: Settings
    engine: Engine

    @cached_property
    def servers(self) -> str | None:
        return kafka_address(self.settings)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        return feeds(self.engine.pipeline, prefix=self.settings.landing_prefix)

    @property
    def ends(self) -> Mapping[str, Offsets]:
        """Topic → partition → the offset behind its last message; of the topics that are there. Empty without Kafka."""
        return self._told[0]

    @property
    def no_facts(self) -> str:
        """Why there is nothing to tell, when nothing is wrong."""
        if self.servers is None:
            return NO_KAFKA
        return NO_TOPIC if self.feeds else NO_LAKE_TOPIC

    def facts(self) -> Iterator[Fact]:
        ends, problem = self._told
        if problem:
            raise problem
        for topic, found in ends.items():
            yield Fact(topic, f"{sum(found.values()):,} offsets in {len(found)} partitions")

    @cached_property
    def _told(self) -> tuple[Mapping[str, Offsets], Exception | None]:
        """Asked once for all stages: who asks a Kafka that does not answer waits for long."""
        if self.servers is None:
            return {}, None
        names = [feed.topic for feed in self.feeds] + [lake.topic(name) for lake in LAKES for name in STREAMS]
        try:
            partitions(self.servers, ())
            return dict(_ends(self.servers, names)), None
        except FAILURES as error:
            return {}, error


def _ends(servers: str, topics: Iterable[str]) -> Iterator[tuple[str, Offsets]]:
    for topic in topics:
        try:
            yield topic, ends(servers, topic)
        except ServiceError:  # there is no such topic
            continue


@dataclass(frozen=True)
class _Landing:
    settings: Settings
    engine: Engine
    kafka: _Kafka

    @cached_property
    def manifest(self) -> Manifest | None:
        """None if nothing ever landed: opening it would create it."""
        return open_manifest(self.settings) if has_landed(self.settings) else None

    @cached_property
    def entries(self) -> Mapping[tuple[str, str], list[Entry]]:
        """Topic and zone → the files that readers may read, that are staged, or in quarantine."""
        found: dict[tuple[str, str], list[Entry]] = {}
        for entry in self.manifest.entries(stages=("staged", "live"), verdicts=ALL_VERDICTS) if self.manifest else ():
            found.setdefault((parse_shard(entry.file.shard).topic, entry.file.zone), []).append(entry)
        return dict(sorted(found.items()))

    def facts(self) -> Iterator[Fact]:
        deadline = timedelta(seconds=self.settings.landing_deadline_seconds)
        for (topic, zone), entries in self.entries.items():
            there = self.kafka.ends.get(topic, {})
            yield _zone_fact(f"{topic}, zone {zone}", entries, there, now=self.engine.clock(), deadline=deadline)

    def raw_facts(self, overview: Overview) -> Iterator[Fact]:
        topics = {feed.raw.table: feed.topic for feed in self.kafka.feeds}
        for standing in overview.standings:
            if standing.kind == "raw":
                topic = topics.get(standing.table)
                behind = self._not_loaded(standing.table, topic) if topic else 0
                pending = f"{behind:,} landed offsets are not loaded" if behind else ""
                yield Fact(standing.table, _through(standing.complete_through), pending)

    def quarantine_facts(self) -> Iterator[Fact]:
        for entry in quarantined(self.manifest) if self.manifest else ():
            zone, name = entry.file.zone, entry.file.name
            command = f"lake landing quarantine release {zone} {name}"
            yield Fact(
                f"{name}, zone {zone}", f"since {_time(entry.added_at)}", entry.reason, bad=True, command=command
            )

    def _not_loaded(self, table: str, topic: str) -> int:
        """So many offsets that a zone has landed are not in the raw table."""
        landed: dict[int, int] = {}
        for (of_topic, _), entries in self.entries.items():
            for partition, end in _landed(entries).items() if of_topic == topic else ():
                landed[partition] = max(end, landed.get(partition, 0))
        loaded = progress_of(self.engine.catalog, table, topic).offsets if landed else {}
        return sum(max(0, end - loaded.get(partition, 0)) for partition, end in landed.items())


def _zone_fact(what: str, entries: list[Entry], there: Offsets, *, now: datetime, deadline: timedelta) -> Fact:
    """there: what Kafka has, empty if it is not known."""
    verdicts = Counter(entry.verdict for entry in entries)
    behind = lag(there, _landed(entries), None, now=now).messages
    waits = {
        "files wait for the other zone's": verdicts["provisional"],
        "offsets of Kafka are not landed": behind,
        "files are in quarantine": verdicts["quarantined"],
    }
    overdue = any(entry.overdue(now, deadline) for entry in entries)
    last = _time(max(entry.added_at for entry in entries))
    return Fact(
        what,
        f"last file at {last}; {verdicts['verified']:,} verified",
        ", ".join(f"{count:,} {why}" for why, count in waits.items() if count),
        bad=overdue or verdicts["quarantined"] > 0,
    )


def _landed(entries: Iterable[Entry]) -> Offsets:
    """Partition → the offset behind the last one that landed."""
    return next_offsets(entry.file for entry in entries if entry.verdict != "quarantined")


def _targets(engine: Engine, overview: Overview) -> Iterator[Fact]:
    through = {standing.table: standing.complete_through for standing in overview.standings}
    for found in overview.targets:
        try:
            waits, bad = _waits(engine, found)
        except LakeError as error:  # of this target alone: a source of it is gone, say
            waits, bad = [error.problem], True
        yield Fact(found.table, _through(through[found.table]), "; ".join(waits), bad=bad)


def _waits(engine: Engine, found: TargetOverview) -> tuple[list[str], bool]:
    """What a target waits for, in words; whether somebody should look."""
    target = engine.pipeline.target(found.table)
    decision = engine.decide(target)
    bad = bool(found.held or found.skipped)
    if isinstance(decision, SessionPlan):
        reasons = list(dict.fromkeys(hour.reason for hour in decision.hours)) or ["complete-through moves"]
        waits = [
            f"{decision.session_id}: {decision.load} {format_hours(decision.hour_numbers) or 'no hours'}, {reasons[0]}"
        ]
    else:
        waits, bad = [decision.reason] * (decision.kind != "idle"), bad or decision.kind == "blocked"
    waits += [f"{hour_key(held.hour)} is held back: {held.why}" for held in found.held]
    waits += [f"skipped: {format_hours(found.skipped)}"] * bool(found.skipped)
    if target.max_delay is not None:
        judged = freshness(engine.catalog, engine.pipeline, target, engine.clock())
        waits, bad = waits + [judged.what] * (not judged.fresh), bad or not judged.fresh
    return waits, bad


@dataclass(frozen=True)
class _Lakes:
    settings: Settings
    kafka: _Kafka

    def facts(self) -> Iterator[Fact]:
        for lake in LAKES:
            tables = open_tables(self.settings, lake)
            if tables.exist():
                yield from (self._stream(lake, tables, name) for name in STREAMS)
                yield _metrics(tables)

    def _stream(self, lake: EngagementLake, tables: LakeTables, name: StreamName) -> Fact:
        if self.kafka.servers and lake.topic(name) in self.kafka.ends:
            found = stream_status(tables, name, self.kafka.servers)
            batch, unfinished, behind = found.batch_id, found.unfinished, found.lag
        else:
            checkpoint = tables.checkpoints.read(lake.app_name(name))
            batch = checkpoint.batch.batch_id if checkpoint else None
            unfinished, behind = checkpoint.unfinished if checkpoint else (), 0
        waits = [f"unfinished: {', '.join(unfinished)}"] * bool(unfinished) + [f"{behind:,} offsets behind"] * bool(
            behind
        )
        return Fact(lake.app_name(name), "no batch yet" if batch is None else f"batch {batch}", ", ".join(waits))


def _metrics(tables: LakeTables) -> Fact:
    shown, newest = metrics_cursor(tables), tables.version(ENGAGEMENT)
    pending = f"{ENGAGEMENT} is at version {newest}" if shown < newest else ""
    return Fact(f"{tables.lake.name}: metrics", f"show version {shown}", pending)


def _serving(settings: Settings, engine: Engine) -> tuple[Stage, Stage]:
    """What is served, and the last pushes."""
    served, pushes, hosts = "Served tables", "Last pushes", zookeeper_address(settings)
    if hosts is None:
        return Stage(served, instead=NO_ZOOKEEPER), Stage(pushes, instead=NO_ZOOKEEPER)
    try:
        sources = _sources(settings, engine)
        with serving_at(hosts, settings, clock=engine.clock) as serving:
            return (
                _asked(served, lambda: _served(serving.registry, engine.catalog, sources), NOTHING_SERVED),
                _asked(pushes, lambda: _pushes(serving.registry), NOTHING_SERVED),
            )
    except FAILURES as error:
        why = _problem(error)
        return Stage(served, instead=why, broken=True), Stage(pushes, instead=why, broken=True)


def _sources(settings: Settings, engine: Engine) -> dict[str, Source]:
    """Served table → where it comes from."""
    found = [*pipeline_sources(engine.pipeline), *metrics_sources(metrics_locations(settings))]
    return {source.name: source for source in found}


def _served(registry: Registry, catalog: Catalog, sources: Mapping[str, Source]) -> Iterator[Fact]:
    for table in registry.tables():
        found, entries = table_status(registry, table), lineage_status(registry, table)
        waits = [f"{e.id} is being pushed since {_time(e.timestamp)}" for e in entries if e.state is State.IN_PROGRESS]
        stands = f"{found.rows:,} rows as of {_time(found.as_of)}" if found.as_of else "no rows"
        try:
            waits += _behind(catalog, sources[table], found.head) if table in sources else []
            yield Fact(table, stands, ", ".join(waits))
        except FAILURES as error:  # of this source alone
            yield Fact(table, stands, ", ".join([*waits, _problem(error)]), bad=True)


def _behind(catalog: Catalog, source: Source, served: str | None) -> list[str]:
    """Whether the source has changed since it was read. served: its head then."""
    head = source.head(catalog)
    return [f"{source.table} is at {head}, {served} is served"] if served and head not in (None, served) else []


def _pushes(registry: Registry) -> Iterator[Fact]:
    found = {table: lineage_status(registry, table)[:LAST_PUSHES] for table in registry.tables()}
    for table, entries in found.items():
        for entry in entries:
            yield _push(table, entry, switched_with(table, entry, found))


def _push(table: str, entry: EntryStatus, others: Mapping[str, str]) -> Fact:
    later = not entry.can_revert
    command = way_back(table, entry.id, others, later=later) if entry.can_roll_back else ""
    replaced = f"{len(entry.segments_from)} → {len(entry.segments_to)} segments"
    return Fact(table, f"{entry.state}, {_time(entry.timestamp)}", replaced, command=command)


def _through(hour: int | None) -> str:
    return "complete through no hour yet" if hour is None else f"complete through {hour_key(hour)}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def _problem(error: BaseException) -> str:
    """Without the remedy's line, and without more of another library's text."""
    return error.problem if isinstance(error, LakeError) else str(error).partition("\n")[0]
