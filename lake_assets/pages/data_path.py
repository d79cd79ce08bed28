"""The data path: what each stage has read and written, and what is wrong with it, from Kafka to served tables.

A stage that cannot be read says why, and the others are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import sqlalchemy as sa
from confluent_kafka import KafkaException
from deltalake.exceptions import DeltaError
from kazoo.exceptions import KazooException
from pyiceberg.catalog import Catalog

from lake_assets.base.hours import format_hours, hour_key, to_the_second
from lake_assets.connections.addresses import kafka_address, zookeeper_address
from lake_assets.engagement.lake import STREAMS, EngagementLake, StreamName
from lake_assets.engagement.lakes import configured_lakes, metrics_locations
from lake_assets.engagement.metrics import metrics_cursor
from lake_assets.engagement.monitoring import stream_status
from lake_assets.engagement.tables import ENGAGEMENT, LakeTables, open_tables
from lake_assets.errors import LakeError, ServiceError, text_of
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Decision, SessionPlan
from lake_assets.incremental.operations.health import Problem, health
from lake_assets.incremental.operations.overview import Overview
from lake_assets.landing.heal import quarantined
from lake_assets.landing.kafka import Offsets, ends, lag, partitions
from lake_assets.landing.loading import progress_of
from lake_assets.landing.manifest import ALL_VERDICTS, Entry, Manifest, Verdict, has_landed, open_manifest
from lake_assets.landing.messages import Feed, feeds
from lake_assets.landing.problems import problems
from lake_assets.landing.records import next_offsets, parse_shard
from lake_assets.landing.state import Ledger
from lake_assets.serving.lineage import State
from lake_assets.serving.registry import Registry
from lake_assets.serving.served_tables import serving_at
from lake_assets.serving.sources import Source, metrics_sources, pipeline_sources
from lake_assets.serving.store import EntryStatus, lineage_status, switched_with, table_status, way_back
from lake_assets.settings import Settings

FAILURES = (LakeError, OSError, sa.exc.SQLAlchemyError, DeltaError, KafkaException, KazooException)
"""What reading a stage raises if its service or its data is not available."""


@dataclass(frozen=True)
class Fact:
    """The state of one table, topic, stream or push.

    Args:
        what: Its name.
        stands: How far it is.
        pending: What is pending, and why; empty if nothing is.
        bad: Whether it needs attention.
        command: A command for it, if there is one.
        remedy: What to do if it is bad, if that is known.
    """

    what: str
    stands: str
    pending: str = ""
    bad: bool = False
    command: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Stage:
    """One stage.

    Args:
        name: Its name.
        facts: The state of its parts.
        instead: If there are no facts, why: its service does not run, it was never used, or it could not be read.
        broken: Whether it could not be read.
        beside: Whether it does not read the previous stage.
        remedy: What to do if it could not be read; empty if the error does not say.
    """

    name: str
    facts: tuple[Fact, ...] = ()
    instead: str = ""
    broken: bool = False
    beside: bool = False
    remedy: str = ""

    @property
    def bad(self) -> bool:
        """Whether the stage needs attention."""
        return self.broken or any(fact.bad for fact in self.facts)

    @property
    def pending(self) -> bool:
        """Whether anything of the stage is pending."""
        return any(fact.pending for fact in self.facts)

    @property
    def summary(self) -> str:
        """The state of the stage in a few words."""
        count = len(self.facts)
        if self.broken:
            return "not available"
        if not count:
            return "nothing yet"
        bad = sum(fact.bad for fact in self.facts)
        if bad:
            return f"{bad} of {count} need attention"
        pending = sum(bool(fact.pending) for fact in self.facts)
        return f"{pending} of {count} pending" if pending else f"{count}, nothing pending"


@dataclass(frozen=True)
class DataPath:
    """The whole data path.

    Args:
        stages: From Kafka to served tables; only those that the pipelines declare or that are in use.
        pushes: The last pushes of served tables; None if none is declared.
        quarantine: Landed files in quarantine; None if nothing lands from Kafka.
    """

    stages: tuple[Stage, ...]
    pushes: Stage | None = None
    quarantine: Stage | None = None


def read_stage(name: str, facts: Callable[[], Iterable[Fact]], nothing: str, *, beside: bool = False) -> Stage:
    """Read the facts of a stage. A failure becomes the text of the stage and does not stop the others.

    Args:
        name: The stage.
        facts: Reads its facts.
        nothing: The text of the stage if it has no facts.
        beside: Whether the stage does not read the previous one.
    """
    try:
        found = tuple(facts())
    except FAILURES as error:
        return replace(broken_stage(name, error), beside=beside)
    return Stage(name, found, "" if found else nothing, beside=beside)


def broken_stage(name: str, error: BaseException) -> Stage:
    """Return a stage that could not be read."""
    remedy = error.remedy if isinstance(error, LakeError) else ""
    return Stage(name, instead=problem_of(error), broken=True, remedy=remedy)


def problem_of(error: BaseException) -> str:
    """Return the problem of an error without its remedy; of an error of another library, only the first line."""
    if isinstance(error, LakeError):
        return error.problem
    return text_of(error).partition("\n")[0]


def complete_through(hour: int | None) -> str:
    """Return a complete-through hour as text; None means that no hour is complete."""
    return "no hour is complete yet" if hour is None else f"complete through {hour_key(hour)}"


NO_KAFKA = "No Kafka runs for this data directory, and none is configured: `lake up`, or LAKE_KAFKA."
NO_TOPIC = "No topic exists yet: `lake landing init`."
NO_READER = "Nothing is read from Kafka: no raw table declares a `feed`, and LAKE_LAKES names no lake."
NO_LAKE_TOPIC = "No topic exists yet: `lake engagement init LAKE --org ORG`."


@dataclass(frozen=True)
class _Answer:
    ends: Mapping[str, Offsets] = field(default_factory=dict)
    error: Exception | None = None


@dataclass(frozen=True)
class KafkaState:
    """The topics of landing and of the engagement lakes."""

    settings: Settings
    engine: Engine

    @cached_property
    def servers(self) -> str | None:
        """The bootstrap servers; None if none are known."""
        return kafka_address(self.settings)

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The raw tables that are landed from Kafka."""
        return feeds(self.engine.pipeline, prefix=self.settings.landing_prefix)

    @property
    def ends(self) -> Mapping[str, Offsets]:
        """Topic → partition → the offset after its last message. Empty if Kafka is not available."""
        return self._answer.ends

    @property
    def no_facts(self) -> str:
        """Why there are no facts, if nothing is wrong."""
        if self.servers is None:
            return NO_KAFKA
        if self.feeds:
            return NO_TOPIC
        return NO_LAKE_TOPIC if configured_lakes(self.settings) else NO_READER

    def facts(self) -> Iterator[Fact]:
        """Yield the state of each topic. Raises the error of Kafka if it did not answer."""
        if self._answer.error:
            raise self._answer.error
        for topic, found in self._answer.ends.items():
            yield Fact(topic, f"{sum(found.values()):,} offsets in {len(found)} partitions")

    @cached_property
    def _answer(self) -> _Answer:
        # Read once for all stages, because a Kafka that does not answer takes long to time out.
        if self.servers is None:
            return _Answer()
        try:
            partitions(self.servers, ())
            return _Answer(_ends(self.servers, self._topics()))
        except FAILURES as error:
            return _Answer(error=error)

    def _topics(self) -> Iterator[str]:
        for feed in self.feeds:
            yield feed.topic
        for lake in configured_lakes(self.settings):
            for name in STREAMS:
                yield lake.topic(name)


def _ends(servers: str, topics: Iterator[str]) -> dict[str, Offsets]:
    found: dict[str, Offsets] = {}
    for topic in topics:
        try:
            found[topic] = ends(servers, topic)
        except ServiceError:  # the topic does not exist
            continue
    return found


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
                f"since {to_the_second(entry.added_at)}",
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
            f"last file at {to_the_second(last)}; {verdicts['verified']:,} verified",
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


NO_LAKE = "No lake was created yet: `lake engagement init LAKE --org ORG`."
NO_LAKE_CONFIGURED = "No lake is configured: LAKE_LAKES names none."


@dataclass(frozen=True)
class EngagementState:
    """The streams of the engagement lakes."""

    settings: Settings
    kafka: KafkaState

    @property
    def no_facts(self) -> str:
        """Why there are no facts, if nothing is wrong."""
        return NO_LAKE if configured_lakes(self.settings) else NO_LAKE_CONFIGURED

    def facts(self) -> Iterator[Fact]:
        """Yield the state of each stream and of the metrics, of the lakes that exist."""
        for lake in configured_lakes(self.settings):
            tables = open_tables(self.settings, lake)
            if tables.exist():
                for name in STREAMS:
                    yield self._stream(lake, tables, name)
                yield _metrics(tables)

    def _stream(self, lake: EngagementLake, tables: LakeTables, name: StreamName) -> Fact:
        app_name = lake.app_name(name)
        if self.kafka.servers and lake.topic(name) in self.kafka.ends:
            status = stream_status(tables, name, self.kafka.servers)
            return _stream_fact(app_name, status.batch_id, status.unfinished, status.lag)
        checkpoint = tables.checkpoints.read(app_name)
        if checkpoint is None:
            return _stream_fact(app_name, None, (), 0)
        return _stream_fact(app_name, checkpoint.batch.batch_id, checkpoint.unfinished, 0)


def _stream_fact(app_name: str, batch_id: int | None, unfinished: tuple[str, ...], offsets_behind: int) -> Fact:
    pending = []
    if unfinished:
        pending.append(f"unfinished: {', '.join(unfinished)}")
    if offsets_behind:
        pending.append(f"{offsets_behind:,} offsets behind")
    batch = "no batch yet" if batch_id is None else f"batch {batch_id}"
    return Fact(app_name, batch, ", ".join(pending))


def _metrics(tables: LakeTables) -> Fact:
    shown = metrics_cursor(tables)
    newest = tables.version(ENGAGEMENT)
    pending = f"{ENGAGEMENT} is at version {newest}" if shown < newest else ""
    return Fact(f"{tables.lake.name}: metrics", f"show version {shown}", pending)


def target_facts(engine: Engine, overview: Overview) -> Iterator[Fact]:
    """Yield the state of each target."""
    standings = {standing.table: standing for standing in overview.standings}
    for target in engine.pipeline.in_order():
        found = health(engine, target)
        pending = [_next_session(found.decision), *(problem.what for problem in found.problems)]
        remedies = [problem.remedy for problem in found.problems if problem.level == "error"]
        yield Fact(
            target.table,
            complete_through(standings[target.table].complete_through),
            "; ".join(dict.fromkeys(reason.removesuffix(".") for reason in pending if reason)),
            bad=bool(remedies),
            remedy=next(iter(remedies), ""),
        )


def _next_session(decision: Decision | None) -> str:
    """Return what the next session does, or why there is none; empty if there is nothing to do."""
    if isinstance(decision, SessionPlan):
        hours = format_hours(decision.hour_numbers) or "no hours"
        reasons = [planned.reason for planned in decision.hours] or ["complete-through moves"]
        return f"{decision.session_id}: {decision.load} {hours}, {reasons[0]}"
    return "" if decision is None or decision.kind == "idle" else decision.reason


LAST_PUSHES = 5
"""The number of pushes shown of each served table."""

SERVED = "Served tables"
PUSHES = "Last pushes"
NO_ZOOKEEPER = "No ZooKeeper runs for this data directory, and none is configured: `lake up`, or LAKE_ZOOKEEPER."
NOTHING_SERVED = "Nothing was pushed yet: `lake serving push TABLE`."


def serving_stages(settings: Settings, engine: Engine) -> tuple[Stage, Stage]:
    """Return the served tables, and their last pushes."""
    hosts = zookeeper_address(settings)
    if hosts is None:
        return Stage(SERVED, instead=NO_ZOOKEEPER), Stage(PUSHES, instead=NO_ZOOKEEPER)
    try:
        sources = _sources(settings, engine)
        with serving_at(hosts, settings, clock=engine.clock) as serving:
            registry = serving.registry
            served = read_stage(SERVED, lambda: _table_facts(registry, engine.catalog, sources), NOTHING_SERVED)
            pushes = read_stage(PUSHES, lambda: _push_facts(registry), NOTHING_SERVED)
            return served, pushes
    except FAILURES as error:
        return broken_stage(SERVED, error), broken_stage(PUSHES, error)


def _sources(settings: Settings, engine: Engine) -> dict[str, Source]:
    """Return served table → its source."""
    found = [*pipeline_sources(engine.pipeline), *metrics_sources(metrics_locations(settings))]
    return {source.name: source for source in found}


def _table_facts(registry: Registry, catalog: Catalog, sources: Mapping[str, Source]) -> Iterator[Fact]:
    failures = registry.failures()
    for table in registry.tables():
        status = table_status(registry, table)
        stands = "no rows"
        if status.as_of:
            stands = f"{status.rows:,} rows as of {to_the_second(status.as_of)}"
        pending = list(_pushes_in_progress(registry, table))
        bad = table in failures
        if bad:
            pending.append(f"the last push failed: {failures[table].problem}")
        try:
            if table in sources:
                pending += _source_change(catalog, sources[table], status.head)
        except FAILURES as error:  # concerns only the source of this table
            pending.append(problem_of(error))
            bad = True
        yield Fact(table, stands, ", ".join(pending), bad=bad)


def _pushes_in_progress(registry: Registry, table: str) -> Iterator[str]:
    for entry in lineage_status(registry, table):
        if entry.state is State.IN_PROGRESS:
            yield f"push {entry.id} is in progress since {to_the_second(entry.timestamp)}"


def _source_change(catalog: Catalog, source: Source, served_head: str | None) -> Iterator[str]:
    """Yield a text if the source changed after it was read. served_head: the source's head when it was read."""
    head = source.head(catalog)
    if served_head and head not in (None, served_head):
        yield f"{source.table} is at {head}, {served_head} is served"


def _push_facts(registry: Registry) -> Iterator[Fact]:
    found = {table: lineage_status(registry, table)[:LAST_PUSHES] for table in registry.tables()}
    for table, entries in found.items():
        for entry in entries:
            yield _push_fact(table, entry, switched_with(table, entry, found))


def _push_fact(table: str, entry: EntryStatus, others: Mapping[str, str]) -> Fact:
    """others: table → entry, of the tables that were switched together with this one."""
    command = ""
    if entry.can_roll_back:
        command = way_back(table, entry.id, others, later=not entry.can_revert)
    replaced = f"{len(entry.segments_from)} → {len(entry.segments_to)} segments"
    return Fact(table, f"{entry.state}, {to_the_second(entry.timestamp)}", replaced, command=command)


NOTHING_LANDED = "Nothing has landed: `lake landing run`."
NONE_DECLARED = "None is declared."


def data_path(settings: Settings, engine: Engine, overview: Overview) -> DataPath:
    """Return the state of the stages that the pipelines declare or that are in use.

    Args:
        settings: The settings of the data directory.
        engine: The engine of its pipelines.
        overview: Of the same engine's tables, read just before.
    """
    kafka = KafkaState(settings, engine)
    landing = LandingState(settings, engine, kafka)
    lakes = EngagementState(settings, kafka)
    served, pushes = serving_stages(settings, engine)
    lands = bool(kafka.feeds)
    serves = bool(pipeline_sources(engine.pipeline))
    lake_stage = read_stage("Engagement lakes", lakes.facts, "", beside=True)  # they read Kafka directly
    landed = read_stage("Landing zones", landing.facts, NOTHING_LANDED)
    candidates = (
        (read_stage("Kafka", kafka.facts, kafka.no_facts), lands or bool(lake_stage.facts)),
        (landed, lands),
        (read_stage("Raw tables", lambda: landing.raw_facts(overview), NONE_DECLARED), True),
        (read_stage("Facts and dimensions", lambda: target_facts(engine, overview), NONE_DECLARED), True),
        (lake_stage, False),
        (served, serves),
    )
    return DataPath(
        stages=tuple(stage for stage, is_declared in candidates if is_shown(stage, is_declared)),
        pushes=pushes if is_shown(pushes, serves) else None,
        quarantine=(
            read_stage("Landed files", landing.quarantine_facts, "Empty.") if is_shown(landed, lands) else None
        ),
    )


def is_shown(stage: Stage, is_declared: bool) -> bool:
    """Return whether a stage belongs to the report: it is declared, or in use, or nobody can tell."""
    return is_declared or bool(stage.facts) or stage.broken
