"""The progress of a lake's streams. Reads checkpoints and Kafka; starts no Spark, changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from lake_assets.base.findings import Finding
from lake_assets.connections.addresses import kafka_address
from lake_assets.engagement.isolation.explain import explain
from lake_assets.engagement.model.checkpoint import Batch, Checkpoint
from lake_assets.engagement.model.delta_log import is_table, open_table, read_rows
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import STREAMS, StreamName
from lake_assets.engagement.model.lakes import configured_lakes
from lake_assets.engagement.model.offsets import Offsets, TopicState, problem_of
from lake_assets.engagement.model.table_schemas import (
    DEAD_LETTER,
    ENGAGEMENT,
    MUTATION_REQUEST,
    NO_MISTAKES,
    REPEATED,
    SETTLED_REQUEST,
)
from lake_assets.engagement.model.tables import LakeTables, open_tables
from lake_assets.engagement.notifications.change_reader import BatchEffect, batch_effect
from lake_assets.engagement.notifications.notify import DATA_COMMIT
from lake_assets.errors import ErrorText
from lake_assets.incremental.operations.health import Kind, Problem
from lake_assets.settings import Settings

CHECK = "engagement lakes"
"""The name of the check in `lake doctor`."""

FEW_MESSAGES = 10
"""Of fewer messages, no share of dead letters is judged."""

_WARNED_OF = ("batch_dead_letters", "requests_unmet")
"""Kinds of problems with which a lake goes on."""


@dataclass(frozen=True)
class StreamStatus:
    """The progress of a stream.

    Attributes:
        batch_id: Its last batch; None if it never ran.
        unfinished: Commits of that batch that are not done.
        read: End offsets of that batch, exclusive.
        lag: Number of offsets that are still to be read.
        repeated: Number of its messages, of all batches, whose engagement was stored already; only `lake_status` counts
            them.
        effect: What that batch has done; None while it is unfinished. Only `lake_status` tells it.
        paused_since: When the lake was paused, in ISO 8601; None if it is not.
        problem: Why the stream does not go on; None if no attempt has failed and no message is lost.
        remedy: What to do then.
    """

    app_name: str
    batch_id: int | None = None
    unfinished: tuple[str, ...] = ()
    read: Offsets = field(default_factory=dict)
    lag: int = 0
    repeated: int = 0
    effect: BatchEffect | None = None
    paused_since: str | None = None
    problem: str | None = None
    remedy: str | None = None


def stopped_streams(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Yield the configured lakes that are paused, what is wrong with their streams, and the lakes that are well."""
    found = lake_problems(settings, now)
    for each in found:
        yield Finding(CHECK, "warning" if each.kind in _WARNED_OF else "error", each.what, each.remedy)
    servers = kafka_address(settings)
    for lake in configured_lakes(settings):
        tables = open_tables(settings, lake)
        since = tables.paused_since if tables.exist() else None
        if since is not None:
            resume = f"Let its turns begin again: `lake engagement resume {lake.name}`."
            yield Finding(CHECK, "warning", f"{lake.name} is paused since {since}.", resume)
        elif servers is not None and tables.exist() and not any(each.target.startswith(lake.name) for each in found):
            lag = sum(stream_status(tables, name, servers).lag for name in STREAMS)
            yield Finding(CHECK, "ok", f"{lake.name}: its streams go on, {lag:,} offsets behind.")


def lake_problems(settings: Settings, now: datetime) -> list[Problem]:
    """Return what is wrong with the streams of the configured lakes, as `lake doctor` and alerts say it.

    Raises:
        ServiceError: Kafka does not answer.
    """
    servers = kafka_address(settings)
    found: list[Problem] = []
    for lake in configured_lakes(settings):
        tables = open_tables(settings, lake)
        if not tables.exist():
            continue
        for name in STREAMS:
            last = tables.checkpoints.read(lake.app_name(name))
            topic = None if servers is None else KafkaTopic(servers, lake.topic(name)).state()
            trouble = _trouble(tables, name, last, topic)
            if trouble is not None:
                kind, text = trouble
                found.append(Problem(lake.app_name(name), kind, f"{text.problem}.", text.remedy))
            if last is not None and last.finished:
                found += _dead_letters(tables, name, last.batch, settings.landing_dead_letter_share)
        found += _unmet(tables, now)
    return found


def _dead_letters(tables: LakeTables, name: StreamName, batch: Batch, share: float) -> Iterator[Problem]:
    letters = {why: count for why, count in tables.dead_letters(batch).items() if why not in NO_MISTAKES}
    dead, read = sum(letters.values()), batch.messages.count
    if read >= FEW_MESSAGES and dead > share * read:
        most = max(letters, key=lambda why: letters[why])
        yield Problem(
            tables.lake.app_name(name),
            "batch_dead_letters",
            f"{dead:,} of {read:,} messages of the last batch of {tables.lake.app_name(name)} are dead letters, most of"
            f" them because of: {most}.",
            f"Look at them: `lake engagement dead-letters {tables.lake.name}`.",
        )


def _unmet(tables: LakeTables, now: datetime) -> Iterator[Problem]:
    """Yield a problem if requests have met no row for a day; for a week more, also of those that were given up."""
    last = f"SELECT max(batch_id) FROM {MUTATION_REQUEST}"
    day_ago, week_ago = ((now - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ") for days in (1, 8))
    waiting = (
        f"SELECT count(*) AS n FROM {MUTATION_REQUEST} WHERE status = 'parked' AND batch_id = ({last})"
        f" AND executed_at < '{day_ago}'"
    )
    dead = (
        f"SELECT count(*) AS n FROM {SETTLED_REQUEST} WHERE status = 'dead' AND executed_at < '{day_ago}'"
        f" AND executed_at >= '{week_ago}'"
    )
    statements = {MUTATION_REQUEST: waiting, SETTLED_REQUEST: dead}
    counts = [tables.query(table, of)[0]["n"] for table, of in statements.items() if is_table(tables.location(table))]
    if any(counts):
        stream = tables.lake.app_name("mutation")
        yield Problem(
            stream,
            "requests_unmet",
            f"{sum(counts):,} requests of {stream} have met no row for a day.",
            "Find out whether ingestion lacks their engagements, or whether they name a wrong id, column or date.",
        )


def _trouble(
    tables: LakeTables, name: StreamName, last: Checkpoint | None, topic: TopicState | None
) -> tuple[Kind, ErrorText] | None:
    """Return why a stream does not go on.

    Args:
        topic: None if no Kafka is known.
    """
    app_name = tables.lake.app_name(name)
    lost = problem_of(topic, last.batch.messages, is_read=last.finished) if last and topic else None
    if lost is not None:
        remedy = lost.remedy.replace(" LAKE`", f" {tables.lake.name}`")
        return "messages_lost", ErrorText(f"{app_name} cannot go on. {lost.problem.removesuffix('.')}", remedy)
    failed = explain(app_name, last)
    return None if failed is None else ("batch_failed", failed)


def lake_status(tables: LakeTables, servers: str) -> list[StreamStatus]:
    """Return the status of each stream, with the messages that it has found repeated.

    Args:
        servers: Kafka's `host:port`, comma-separated.

    Raises:
        ServiceError: Kafka does not answer.
    """
    letters = open_table(tables.location(DEAD_LETTER))
    repeated = read_rows(letters, ["topic"], [("reason", "=", REPEATED)])
    count_of = Counter(repeated["topic"].to_pylist())
    found, since = [], tables.paused_since
    for name in STREAMS:
        status = stream_status(tables, name, servers)
        last = tables.checkpoints.read(status.app_name)
        effect = None
        if last is not None and last.finished:
            version = last.done.get(DATA_COMMIT)
            commits = [] if version is None else tables.history(ENGAGEMENT, since=version - 1)
            commit = next((each for each in commits if each.version == version), None)
            effect = batch_effect(tables, name, last.batch, commit)
        repeated_now = count_of[tables.lake.topic(name)]
        found.append(replace(status, repeated=repeated_now, effect=effect, paused_since=since))
    return found


def stream_status(tables: LakeTables, name: StreamName, servers: str) -> StreamStatus:
    """Return the status of a stream.

    Args:
        servers: Kafka's `host:port`, comma-separated.

    Raises:
        ServiceError: Kafka does not answer.
    """
    app_name = tables.lake.app_name(name)
    checkpoint = tables.checkpoints.read(app_name)
    topic = KafkaTopic(servers, tables.lake.topic(name)).state()
    read: Offsets = checkpoint.batch.messages.end if checkpoint else {}
    lag = 0
    for partition, end in topic.end.items():
        lag += end - read.get(partition, topic.earliest[partition])
    status = StreamStatus(app_name, read=read, lag=max(0, lag))
    if checkpoint is not None:
        status = replace(status, batch_id=checkpoint.batch.batch_id, unfinished=checkpoint.unfinished)
    trouble = _trouble(tables, name, checkpoint, topic)
    return status if trouble is None else replace(status, problem=trouble[1].problem, remedy=trouble[1].remedy)
