"""How far a lake is and whether it is right: audits after each turn, reconciliation with Kafka, status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lake_assets.base.findings import Finding
from lake_assets.connections.addresses import kafka_address
from lake_assets.engagement import delta_log
from lake_assets.engagement.batch import BatchMessages, DeadLetterCommit
from lake_assets.engagement.checkpoint import Batch, Checkpoint, Offsets, TopicState, problem_of
from lake_assets.engagement.delta_log import Commit, open_table, read_rows
from lake_assets.engagement.erasure import ErasedUntil, ErasureRegistry
from lake_assets.engagement.ingestion import may_be_copies
from lake_assets.engagement.isolation import explain
from lake_assets.engagement.known_requests import has_one_table
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets.engagement.lakes import configured_lakes
from lake_assets.engagement.messages import mutation_format, retention_format
from lake_assets.engagement.mutation import RequestCommit
from lake_assets.engagement.notifications import (
    DATA_COMMIT,
    BatchEffect,
    Counts,
    NotificationCommit,
    batch_effect,
    total_counts,
)
from lake_assets.engagement.requests import RETENTION_OPS, SENT_AT, RetentionRequest, cut_off
from lake_assets.engagement.retention import ErasureCommit
from lake_assets.engagement.tables import (
    DEAD_LETTER,
    ENGAGEMENT,
    ERASURE,
    MUTATION_REQUEST,
    NO_MISTAKES,
    NOTIFICATION,
    REPEATED,
    LakeTables,
    open_tables,
)
from lake_assets.engagement.topics import KafkaTopic
from lake_assets.errors import ErrorText
from lake_assets.incremental.operations.health import Kind, Problem
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lake_assets.engagement.messages import Format

SAMPLE_SIZE = 10
"""Maximum number of wrong ids that an audit lists."""

COPY_DAYS = 31
"""Number of days before and after a new row among which an audit looks for another row of its engagement."""

REPORTED_BATCHES = 24
"""Requests without a row are reported for so many of the newest batches of mutation, however old they are."""

RECENT_COMMITS = 1_000
"""Number of a table's newest commits that an audit reads. Each is a file of the table's log."""


@dataclass(frozen=True)
class Sample:
    """Wrong entries.

    Attributes:
        count: Number of all of them.
        ids: Up to `SAMPLE_SIZE` of them, sorted.
    """

    count: int
    ids: tuple[str, ...]


def commit_of(tables: LakeTables, stream: StreamName, table: str, name: str, batch: Batch) -> Commit | None:
    """Return what a named commit of a batch committed, in this or an earlier turn; None if nothing."""
    app_id = tables.lake.app_id(stream, name)
    return tables.commit_of(table, app_id=app_id, batch_id=batch.batch_id, since=batch.reads.get(table, 0))


def repeated_ids(spark: SparkSession, tables: LakeTables, version: int) -> Sample:
    """Return engagements that a commit inserted and that the table has more than once, as org/id.

    Another row of an engagement is looked for up to `COPY_DAYS` from the days of the inserted rows, so that what is
    read does not grow with the table.
    """
    from pyspark.sql import functions as F

    key = ["org_id", "engagement_id"]
    feed = tables.changes(spark, ENGAGEMENT, version)
    inserted = feed.where("_change_type = 'insert'")
    around = may_be_copies(inserted.withColumn(SENT_AT, F.lit(None)), COPY_DAYS)
    near = tables.read(spark, ENGAGEMENT, version).where(around)
    rows = near.join(inserted.select(key).distinct(), key, "left_semi")
    repeated = rows.groupBy(key).count().where("count > 1")
    return _sample(repeated.select(F.concat_ws("/", *key)))


def unmet_requests(tables: LakeTables, now: datetime) -> Sample:
    """Return requests that have met no row for a day, as org/id: of the last `REPORTED_BATCHES`, or of the last week.

    Starts no Spark.
    """
    day_ago, week_ago = ((now - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ") for days in (1, 8))
    newest = f"SELECT max(batch_id) FROM {MUTATION_REQUEST}"
    if has_one_table(tables):
        recent = f"executed_at >= '{week_ago}' OR batch_id > ({newest}) - {REPORTED_BATCHES}"
    else:
        recent = f"batch_id = ({newest})"  # each batch of an earlier version had all of them
    unmet = f"status = 'parked' AND old_id IS NOT NULL AND executed_at < '{day_ago}' AND ({recent})"
    met = f"SELECT org_id, request_id FROM {MUTATION_REQUEST} WHERE status = 'met'"
    found = tables.query(
        MUTATION_REQUEST,
        f"SELECT DISTINCT p.org_id, p.request_id FROM (SELECT * FROM {MUTATION_REQUEST} WHERE {unmet}) p"
        f" LEFT ANTI JOIN ({met}) m ON p.org_id = m.org_id AND p.request_id = m.request_id",
    )
    ids = sorted(f"{row['org_id']}/{row['request_id']}" for row in found)
    return Sample(len(ids), tuple(ids[:SAMPLE_SIZE]))


def unnotified_batches(tables: LakeTables) -> list[str]:
    """Return the recent batches that changed rows and do not have exactly one notification, as `mark` names them."""
    written = _recent_batches(tables, ENGAGEMENT)
    notified = _recent_batches(tables, NOTIFICATION)
    found = []
    for stream in STREAMS:
        writer = tables.lake.app_id(stream, DATA_COMMIT)
        notifier = tables.lake.app_id(stream, NotificationCommit.name)
        last = tables.last_batch(NOTIFICATION, notifier)
        wrong = unnotified(written.get(writer, []), notified.get(notifier, []), last)
        found += [delta_log.mark(writer, batch_id) for batch_id in wrong]
    return found


def unnotified(written: Collection[int], notified: Sequence[int], last: int) -> list[int]:
    """Return the written batches that do not have exactly one notification, sorted. Pure.

    Args:
        notified: Batches with a notification, as far back as the log reaches. Older ones are taken to be right.
        last: The newest batch that ever had a notification.
    """
    first = min(notified, default=last + 1)
    found = []
    for batch_id in sorted(set(written)):
        is_newer = batch_id > last
        is_in_log = batch_id >= first
        if is_newer or (is_in_log and notified.count(batch_id) != 1):
            found.append(batch_id)
    return found


def _recent_batches(tables: LakeTables, table: str) -> Mapping[str, list[int]]:
    """Return app id → ids of its batches among the recent commits of a table."""
    since = max(0, tables.version(table) - RECENT_COMMITS)
    found: dict[str, list[int]] = {}
    for commit in tables.history(table, since=since):
        app_id, batch_id = delta_log.parse_mark(commit.mark)
        found.setdefault(app_id, []).append(batch_id)
    return found


def _sample(ids: DataFrame) -> Sample:
    """Take a sample of a DataFrame with one column of strings."""
    rows = ids.orderBy(ids.columns[0]).limit(SAMPLE_SIZE).collect()
    listed = tuple(row[0] for row in rows)
    count = ids.count() if len(listed) == SAMPLE_SIZE else len(listed)
    return Sample(count, listed)


_REQUEST_KEY = ["org_id", "request_id"]
_PLACE = ["partition", "offset"]
_STATUSES = ("applied", "parked")
_RETENTION_COLUMNS = ("request_id", "op", "ttl_days", "who_id", "requested_at")


@dataclass(frozen=True)
class Reconciliation:
    """The messages of a batch.

    Attributes:
        records: Number of messages in Kafka.
        outcomes: Outcome → number of messages.
    """

    records: int
    outcomes: Mapping[str, int]

    @property
    def balanced(self) -> bool:
        """Whether each message has one outcome."""
        return self.records == sum(self.outcomes.values())


def reconcile(
    tables: LakeTables, spark: SparkSession, servers: str, stream: StreamName, batch: Batch
) -> Reconciliation:
    """Count the messages of a finished batch, and their outcomes.

    Args:
        servers: Kafka's `host:port`, comma-separated.

    Raises:
        MessagesLost: The topic was deleted and created again, or Kafka has removed messages of the batch.
    """
    return _BatchReconciler(tables, spark, servers, stream, batch).reconcile()


@dataclass(frozen=True)
class _BatchReconciler:
    tables: LakeTables
    spark: SparkSession
    servers: str
    stream: StreamName
    batch: Batch

    def reconcile(self) -> Reconciliation:
        topic = KafkaTopic(self.servers, self.batch.messages.topic)
        records = topic.read(self.spark, self.batch.messages).count()
        outcomes = _OUTCOMES_OF_VALID[self.stream](self)
        letters = self._written(DEAD_LETTER, DeadLetterCommit.name)
        outcomes["dead letters"] = letters - self._repeated_engagements()
        return Reconciliation(records, outcomes)

    def count_rows(self) -> dict[str, int]:
        """Count the outcomes of ingestion: a valid message is a row, or repeats an engagement."""
        return {"rows": self._written(ENGAGEMENT, DATA_COMMIT), "repeated": self._repeated_engagements()}

    def count_requests(self) -> dict[str, int]:
        """Count the outcomes of mutation: a valid message is a new request, or repeats a request."""
        from pyspark.sql import functions as F

        is_of_batch = F.col("batch_id") == self.batch.batch_id
        is_of_topic = F.col("topic") == self.batch.messages.topic
        log = self._read(MUTATION_REQUEST, RequestCommit.name)
        new = log.where(is_of_batch).where("status <> 'met'")
        dead_letters = self.tables.read(self.spark, DEAD_LETTER).where(is_of_topic & is_of_batch)
        accounted_for = new.select(_PLACE).unionByName(dead_letters.select(_PLACE))
        valid = self._valid(mutation_format(self.tables.lake))
        others = valid.join(accounted_for, _PLACE, "left_anti")
        repeated = others.join(log.select(_REQUEST_KEY).distinct(), _REQUEST_KEY, "left_semi")
        rows = new.groupBy("status").count().collect()
        count_of = {row["status"]: row["count"] for row in rows}
        return {**{status: count_of.get(status, 0) for status in _STATUSES}, "repeated": repeated.count()}

    def count_retention(self) -> dict[str, int]:
        """Count the outcomes of retention: a valid message is a registered erasure, or an org without older rows."""
        messages = self._valid(retention_format(self.tables.lake)).select("org_id", *_RETENTION_COLUMNS)
        requests = []
        for row in messages.toArrow().to_pylist():
            org = row.pop("org_id")
            requests.append((org, RetentionRequest(**row)))
        registry = ErasureRegistry(self.tables, self.spark)
        erased = registry.erased_hashes(self._version(ERASURE, ErasureCommit.name))
        oldest = self._oldest_rows(requests)
        counts: Counter[str] = Counter()
        for org, request in requests:
            limit = cut_off([request])
            if limit is None:
                is_done = _is_registered(registry, erased, org, request)
            else:
                is_done = org not in oldest or oldest[org] >= limit
            counts[request.op] += is_done
        return {op: counts[op] for op in RETENTION_OPS}

    def _oldest_rows(self, requests: Sequence[tuple[str, RetentionRequest]]) -> dict[str, datetime]:
        """Return org → engaged_at of the oldest row that the batch has left, up to the day of the last cut-off."""
        from pyspark.sql import functions as F

        cut_offs: dict[str, datetime] = {}
        for org, request in requests:
            limit = cut_off([request])
            if limit is not None:
                cut_offs[org] = max(limit, cut_offs.get(org, limit))
        if not cut_offs:
            return {}
        last_day = max(cut_offs.values()).date()
        is_of_org = F.col("org_id").isin(sorted(cut_offs))
        is_in_days = F.col("engagement_date") <= F.lit(last_day)
        rows = self._read(ENGAGEMENT, DATA_COMMIT).where(is_of_org & is_in_days)
        oldest = rows.groupBy("org_id").agg(F.min("engaged_at").alias("oldest"))
        found: list[dict[str, Any]] = oldest.toArrow().to_pylist()
        return {row["org_id"]: row["oldest"] for row in found}

    def _valid(self, message_format: Format) -> DataFrame:
        """Return the valid messages of the batch."""
        topic = KafkaTopic(self.servers, self.batch.messages.topic)
        messages = BatchMessages(self.tables, self.spark, topic, message_format)
        return messages.validated(self.batch).where("reason is null")

    def _read(self, table: str, name: str) -> DataFrame:
        """Return the rows of a table as a named commit of the batch left them."""
        return self.tables.read(self.spark, table, version=self._version(table, name))

    def _written(self, table: str, name: str) -> int:
        commit = commit_of(self.tables, self.stream, table, name, self.batch)
        counts = total_counts(commit) if commit else Counts()
        return counts.inserted + counts.updated

    def _repeated_engagements(self) -> int:
        return self.tables.dead_letters(self.batch)[REPEATED]

    def _version(self, table: str, name: str) -> int:
        """Return the version that a named commit of the batch left of a table."""
        commit = commit_of(self.tables, self.stream, table, name, self.batch)
        return commit.version if commit else self.tables.version(table)


_OUTCOMES_OF_VALID: Mapping[StreamName, Callable[[_BatchReconciler], dict[str, int]]] = {
    "ingestion": _BatchReconciler.count_rows,
    "mutation": _BatchReconciler.count_requests,
    "retention": _BatchReconciler.count_retention,
}
"""Stream → function that counts the outcomes of its valid messages."""


def _is_registered(registry: ErasureRegistry, erased: ErasedUntil, org: str, request: RetentionRequest) -> bool:
    """Return whether the registry has the person of a gdpr request, up to the time of the request."""
    id_hash = registry.hash(org, str(request.who_id))
    until = erased.get((org, id_hash))
    return until is not None and until >= request.requested_at


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
    """Yield a problem if requests have met no row for a day."""
    unmet = unmet_requests(tables, now).count
    if unmet:
        stream = tables.lake.app_name("mutation")
        yield Problem(
            stream,
            "requests_unmet",
            f"{unmet:,} requests of {stream} have met no row for a day.",
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
