"""The data path: what each stage has read and written, and what is wrong with it, from Kafka to served tables.

A stage that cannot be read says why, and the others are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import sqlalchemy as sa
from confluent_kafka import KafkaException
from deltalake.exceptions import DeltaError
from kazoo.exceptions import KazooException
from pyiceberg.catalog import Catalog

from lake_assets.base.hours import format_hours, hour_key, to_the_second
from lake_assets.connections.addresses import kafka_address, zookeeper_address
from lake_assets.engagement.lake import STREAMS, EngagementLake
from lake_assets.engagement.lakes import configured_lakes, metrics_locations
from lake_assets.engagement.metrics import metrics_cursor
from lake_assets.engagement.monitoring import StreamStatus, stream_status
from lake_assets.engagement.tables import ENGAGEMENT, open_tables
from lake_assets.errors import LakeError, ServiceError, text_of
from lake_assets.incremental.engine.engine import Engine
from lake_assets.incremental.engine.model import Decision, SessionPlan
from lake_assets.incremental.operations.health import health
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
from lake_assets.serving.store import lineage_status, switched_with, table_status, way_back
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


TopicAndZone = tuple[str, str]

BAD_FILES = "`lake landing verify` lists files that are overdue, `lake landing quarantine list` those that differ."


@dataclass(frozen=True)
class _Read:
    """What several stages need, each read once: a Kafka that does not answer takes long to time out."""

    settings: Settings
    engine: Engine
    overview: Overview

    @cached_property
    def servers(self) -> str | None:
        """Kafka's bootstrap servers; None if none are known."""
        return kafka_address(self.settings)

    @cached_property
    def feeds(self) -> tuple[Feed, ...]:
        """The raw tables that are landed from Kafka."""
        return feeds(self.engine.pipeline, prefix=self.settings.landing_prefix)

    @cached_property
    def lakes(self) -> Sequence[EngagementLake]:
        """The engagement lakes."""
        return configured_lakes(self.settings)

    @cached_property
    def kafka(self) -> Mapping[str, Offsets] | Exception:
        """Topic → partition → the offset after its last message, of topics that exist; or why Kafka did not answer."""
        if self.servers is None:
            return {}
        topics = [feed.topic for feed in self.feeds]
        topics += [lake.topic(name) for lake in self.lakes for name in STREAMS]
        found = {}
        try:
            partitions(self.servers, ())
            for topic in topics:
                with suppress(ServiceError):  # the topic does not exist
                    found[topic] = ends(self.servers, topic)
        except FAILURES as error:
            return error
        return found

    @property
    def ends(self) -> Mapping[str, Offsets]:
        """Topic → the ends of its partitions. Empty if Kafka is not available."""
        return {} if isinstance(self.kafka, Exception) else self.kafka

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


def _no_topics(read: _Read) -> str:
    """Return why there are no topics, if nothing is wrong."""
    if read.servers is None:
        return NO_KAFKA
    if read.feeds:
        return NO_TOPIC
    return NO_LAKE_TOPIC if read.lakes else NO_READER


def _topics(read: _Read) -> Iterator[Fact]:
    """Yield the state of each topic. Raises the error of Kafka if it did not answer."""
    if isinstance(read.kafka, Exception):
        raise read.kafka
    for topic, found in read.kafka.items():
        yield Fact(topic, f"{sum(found.values()):,} offsets in {len(found)} partitions")


def _zones(read: _Read) -> Iterator[Fact]:
    """Yield what is wrong with landing, beside what Kafka tells of it, then the state of each zone of each topic."""
    now = read.engine.clock()
    found = problems(read.settings, read.feeds, now=now, catalog=read.engine.catalog)
    for problem in found:
        if problem.level == "error":
            yield Fact(problem.target, "", problem.what, bad=True, remedy=problem.remedy)
    for (topic, zone), entries in read.entries.items():
        what = f"{topic}, zone {zone}"
        verdicts = Counter(entry.verdict for entry in entries)
        in_kafka = read.ends.get(topic, {})
        epoch = Ledger(read.manifest).epoch(topic) if read.manifest else None
        in_kafka = epoch.landed_offsets(in_kafka) if epoch else in_kafka
        not_landed = lag(in_kafka, _landed(entries), None, now=now).messages
        bad = any(problem.target in (what, f"zone {zone}") for problem in found)
        last = max(entry.added_at for entry in entries)
        yield Fact(
            what,
            f"last file at {to_the_second(last)}; {verdicts['verified']:,} verified",
            ", ".join(_pending(verdicts, not_landed)),
            bad=bad,
            remedy=BAD_FILES if bad else "",
        )


def _raw_tables(read: _Read) -> Iterator[Fact]:
    """Yield the state of each raw table."""
    topics = {feed.raw.table: feed.topic for feed in read.feeds}
    for standing in read.overview.standings:
        if standing.kind != "raw":
            continue
        topic = topics.get(standing.table)
        behind = _offsets_not_loaded(read, standing.table, topic) if topic else 0
        pending = f"{behind:,} landed offsets are not loaded" if behind else ""
        yield Fact(
            standing.table,
            complete_through(standing.complete_through),
            standing.problem or pending,
            bad=standing.problem is not None,
            remedy=standing.remedy,
        )


def _quarantine(read: _Read) -> Iterator[Fact]:
    """Yield each landed file in quarantine, with the command that accepts it."""
    for entry in quarantined(read.manifest) if read.manifest else ():
        zone, name = entry.file.zone, entry.file.name
        yield Fact(
            f"{name}, zone {zone}",
            f"since {to_the_second(entry.added_at)}",
            entry.reason,
            bad=True,
            command=f"lake landing quarantine release {zone} {name}",
        )


def _offsets_not_loaded(read: _Read, table: str, topic: str) -> int:
    """Count the offsets that at least one zone has landed and the raw table does not hold."""
    landed: dict[int, int] = {}
    for (landed_topic, _), entries in read.entries.items():
        for partition, end in _landed(entries).items() if landed_topic == topic else ():
            landed[partition] = max(end, landed.get(partition, 0))
    if not landed:
        return 0
    loaded = progress_of(read.engine.catalog, table, topic).offsets
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


def _streams(read: _Read) -> Iterator[Fact]:
    """Yield the state of each stream and of the metrics, of the lakes that exist."""
    for lake in read.lakes:
        tables = open_tables(read.settings, lake)
        if not tables.exist():
            continue
        for name in STREAMS:
            app_name = lake.app_name(name)
            last = tables.checkpoints.read(app_name)
            if read.servers and lake.topic(name) in read.ends:
                status = stream_status(tables, name, read.servers)
            elif last is not None:
                status = StreamStatus(app_name, last.batch.batch_id, last.unfinished)
            else:
                status = StreamStatus(app_name)
            pending = [f"unfinished: {', '.join(status.unfinished)}"] if status.unfinished else []
            pending += [f"{status.lag:,} offsets behind"] if status.lag else []
            batch = "no batch yet" if status.batch_id is None else f"batch {status.batch_id}"
            yield Fact(app_name, batch, ", ".join(pending))
        shown, newest = metrics_cursor(tables), tables.version(ENGAGEMENT)
        pending_version = f"{ENGAGEMENT} is at version {newest}" if shown < newest else ""
        yield Fact(f"{lake.name}: metrics", f"show version {shown}", pending_version)


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
        declared = [*pipeline_sources(engine.pipeline), *metrics_sources(metrics_locations(settings))]
        sources = {source.name: source for source in declared}
        with serving_at(hosts, settings, clock=engine.clock) as serving:
            registry = serving.registry
            served = read_stage(SERVED, lambda: _table_facts(registry, engine.catalog, sources), NOTHING_SERVED)
            pushes = read_stage(PUSHES, lambda: _push_facts(registry), NOTHING_SERVED)
            return served, pushes
    except FAILURES as error:
        return broken_stage(SERVED, error), broken_stage(PUSHES, error)


def _table_facts(registry: Registry, catalog: Catalog, sources: Mapping[str, Source]) -> Iterator[Fact]:
    failures = registry.failures()
    for table in registry.tables():
        status = table_status(registry, table)
        stands = "no rows"
        if status.as_of:
            stands = f"{status.rows:,} rows as of {to_the_second(status.as_of)}"
        pending = [
            f"push {entry.id} is in progress since {to_the_second(entry.timestamp)}"
            for entry in lineage_status(registry, table)
            if entry.state is State.IN_PROGRESS
        ]
        bad = table in failures
        if bad:
            pending.append(f"the last push failed: {failures[table].problem}")
        try:
            if table in sources:
                head = sources[table].head(catalog)
                if status.head and head not in (None, status.head):
                    pending.append(f"{sources[table].table} is at {head}, {status.head} is served")
        except FAILURES as error:  # concerns only the source of this table
            pending.append(problem_of(error))
            bad = True
        yield Fact(table, stands, ", ".join(pending), bad=bad)


def _push_facts(registry: Registry) -> Iterator[Fact]:
    found = {table: lineage_status(registry, table)[:LAST_PUSHES] for table in registry.tables()}
    for table, entries in found.items():
        for entry in entries:
            command = ""
            if entry.can_roll_back:
                others = switched_with(table, entry, found)
                command = way_back(table, entry.id, others, later=not entry.can_revert)
            replaced = f"{len(entry.segments_from)} → {len(entry.segments_to)} segments"
            yield Fact(table, f"{entry.state}, {to_the_second(entry.timestamp)}", replaced, command=command)


NOTHING_LANDED = "Nothing has landed: `lake landing run`."
NONE_DECLARED = "None is declared."


def data_path(settings: Settings, engine: Engine, overview: Overview) -> DataPath:
    """Return the state of the stages that the pipelines declare or that are in use.

    Args:
        settings: The settings of the data directory.
        engine: The engine of its pipelines.
        overview: Of the same engine's tables, read just before.
    """
    read = _Read(settings, engine, overview)
    served, pushes = serving_stages(settings, engine)
    lands = bool(read.feeds)
    serves = bool(pipeline_sources(engine.pipeline))
    lake_stage = read_stage("Engagement lakes", lambda: _streams(read), "", beside=True)  # they read Kafka directly
    landed = read_stage("Landing zones", lambda: _zones(read), NOTHING_LANDED)
    candidates = (
        (read_stage("Kafka", lambda: _topics(read), _no_topics(read)), lands or bool(lake_stage.facts)),
        (landed, lands),
        (read_stage("Raw tables", lambda: _raw_tables(read), NONE_DECLARED), True),
        (read_stage("Facts and dimensions", lambda: target_facts(engine, overview), NONE_DECLARED), True),
        (lake_stage, False),
        (served, serves),
    )
    return DataPath(
        stages=tuple(stage for stage, is_declared in candidates if is_shown(stage, is_declared)),
        pushes=pushes if is_shown(pushes, serves) else None,
        quarantine=read_stage("Landed files", lambda: _quarantine(read), "Empty.") if is_shown(landed, lands) else None,
    )


def is_shown(stage: Stage, is_declared: bool) -> bool:
    """Return whether a stage belongs to the report: it is declared, or in use, or nobody can tell."""
    return is_declared or bool(stage.facts) or stage.broken
