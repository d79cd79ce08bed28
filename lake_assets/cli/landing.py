"""`lake landing`: the zones, their files, and the messages that could not be loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lake_assets.base.hours import hour_key
from lake_assets.cli.common import AsJson, OutputFile, Partitions, end_when_interrupted, kafka_servers, print_problems
from lake_assets.cli.render import Column, Part, TableView, counted, progress_bar, render
from lake_assets.errors import LakeError, UsageError
from lake_assets.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.erasure.certificate import FileSource
    from lake_assets.incremental.erasure.erase import Elsewhere
    from lake_assets.incremental.operations.health import Problem
    from lake_assets.landing.accept import Accepted
    from lake_assets.landing.dead_letters import DeadLetters, LandedAgain
    from lake_assets.landing.erasure import LandedErasure
    from lake_assets.landing.heal import Decision, Finding, Repaired, Verification
    from lake_assets.landing.landing_service import LandingService
    from lake_assets.landing.loading import Loaded
    from lake_assets.landing.manifest import Entry, ShardStatus
    from lake_assets.landing.messages import Feed
    from lake_assets.landing.state import Loss
    from lake_assets.landing.zones import ZoneWriter

CORES = os.cpu_count() or 1
BYTES_PER_MB = 1 << 20

quarantine = typer.Typer(help="Files that differ from the file of the other zone.", no_args_is_help=True)
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, such as raw.signups.")]
Zones = Annotated[
    list[str] | None, typer.Option("--zone", help="A zone: a or b. Can be repeated. Default: both zones.")
]
ZoneName = Annotated[str, typer.Argument(metavar="ZONE", help="The zone of the file: a or b.")]
FileName = Annotated[
    str, typer.Argument(metavar="FILE", help="The name of the file, as `lake landing quarantine list` prints it.")
]


def accept(topic: Topic) -> None:
    """Accept that messages of TOPIC are lost: it was deleted and created again, or Kafka removed what had not landed.

    Records which offsets are lost to which zone, lands what open files have of them, and copies the files that only one
    zone has. The zones continue when they start again.
    """
    from lake_assets.landing.accept import accept
    from lake_assets.landing.zone_tailer import scrub_by
    from lake_assets.landing.zones import open_zones

    feed = next((feed for feed in _feeds() if feed.topic == topic), None)
    scrub = scrub_by(settings(), feed) if feed else None
    writers = open_zones(settings())  # all of them: what is lost for good, no zone has
    done = accept(writers, kafka_servers(), topic, now=datetime.now(UTC), feed=feed, scrub=scrub)
    for line in accepted(topic, done):
        typer.echo(line)


def dead_letters(
    topic: Topic,
    land_again: Annotated[
        bool, typer.Option("--land-again", help="Load those that are rows by the present declaration.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Give them up, so that they hold complete-through no longer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of TOPIC with their reasons: messages that made no row. Or land them again, or accept them.

    They stay in the files of both zones. If too many messages are dead letters (LAKE_LANDING_DEAD_LETTER_SHARE),
    complete-through of the raw table stands still until they are landed again or accepted.
    """
    from lake_assets.landing import dead_letters
    from lake_assets.landing.loading import progress_of
    from lake_assets.landing.messages import feed_of

    if land_again and accept:
        raise UsageError("--land-again and --accept exclude each other.", remedy="Land again first, then accept.")
    service = open_service()
    feed = feed_of(service.feeds, topic)
    if land_again:
        done = dead_letters.land_again(service.loader(feed))
        typer.echo(landed_again(feed.raw.table, done), err=as_json)
    elif accept:
        count = dead_letters.accept(service.loader(feed))
        typer.echo(f"{topic}: {count:,} dead letters of hours that are not complete are given up.", err=as_json)
    zones = service.loader(feed, ()).zones
    share = settings().landing_dead_letter_share
    progress = progress_of(service.catalog, feed.raw.table, feed.topic)
    found = dead_letters.dead_letters(service.manifest, zones, progress, feed, limit=share)
    render(found, letters, as_json=as_json)


def read(
    topic: Topic,
    open_files: Annotated[
        bool, typer.Option("--open", help="Also show rows of open files: what was read within two seconds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the rows of TOPIC as they have landed in the zones, by partition and offset; those of open files are marked.

    Needs no Kafka. Rows of erased ids, dead letters and heartbeats are left out.
    """
    from lake_assets.landing import read

    rows = read(topic, open=open_files, settings=settings())
    render(rows, landed_rows(rows), as_json=as_json)


def repair() -> None:
    """Mend damaged, missing and unnamed files from the other zone and the folders, as far as it needs no decision.

    The exit code is 1 if something could not be mended.
    """
    from lake_assets.landing.heal import repair

    deadline = timedelta(seconds=settings().landing_deadline_seconds)
    failed = False
    with _present_zones(storage=False) as writers:
        for done in repair(writers, now=datetime.now(UTC), deadline=deadline):
            failed = failed or bool(done.problem)
            typer.echo(repaired(done), err=bool(done.problem))
    if failed:
        sys.exit(1)


def verify(
    zones: Zones = None,
    processes: Annotated[int, typer.Option(help="The most processes that read files.", min=1)] = CORES,
    as_json: AsJson = False,
) -> None:
    """Read every file again, repeat all checks of its landing, and check the manifest against itself.

    Findings of one cause are summed up, with the command that mends them; --json has each. The exit code is 1 if a
    check fails.
    """
    from lake_assets.landing.heal import Finding, gone, verify
    from lake_assets.landing.zones import present_zones

    writers, away = present_zones(settings(), zones or (), storage=False)
    found_problems = landing_problems(ask_kafka=False)
    few = [problem for problem in found_problems if problem.kind == "few_dead_letters"]
    too_many = [problem for problem in found_problems if problem.kind == "dead_letters"]
    beside = [Finding("both", found.target, found.what.rstrip("."), found.remedy) for found in too_many]
    with progress_bar("Reading") as progress:
        found = verify(
            writers,
            now=datetime.now(UTC),
            deadline=timedelta(seconds=settings().landing_deadline_seconds),
            processes=processes,
            progress=progress,
            beside=[*beside, *gone(away)],
        )
    render(found, verified, as_json=as_json)
    for problem in few if not as_json else ():
        typer.echo(f"{problem.what}\n  → {problem.remedy}")
    if found.findings:
        sys.exit(1)


def reshard(
    topic: Topic,
    shards: Annotated[int, typer.Argument(metavar="SHARDS", help="The new number of shards, more or fewer.")],
    _: Annotated[int, typer.Option("--from", hidden=True, help="Not needed any more.")] = 1,
    zones: Zones = None,
) -> None:
    """Distribute the records of TOPIC over SHARDS shards, by distinct id. If it was interrupted, run it again.

    Files that land later come to SHARDS shards by the next call, or by `lake landing compact`.
    """
    from lake_assets.incremental.engine.engine import utc_now
    from lake_assets.landing.reshard import reshard_all

    distinct_id = _feed(topic).distinct_id_of
    with _present_zones(zones) as writers:
        for zone, done in reshard_all(writers, topic, shards, distinct_id, utc_now):
            state = f"waits for {done.waits_for}" if done.waits_for else "done"
            typer.echo(f"{topic} in {zone}: {len(done.copies)} copies made; {state}")


def scrub(
    topic: Topic,
    distinct_id: Annotated[str, typer.Argument(metavar="ID", help="The distinct id of the records to erase.")],
    request: Annotated[str, typer.Option(help="The id of this request. A repeated id stands for the same request.")],
    sent_through: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%dT%H:%M:%S"], help="Keep records that were sent after this time, in UTC. Default: now."
        ),
    ] = None,
    zones: Zones = None,
) -> None:
    """Erase the records of ID that Kafka has by now from all landed files of TOPIC, and those of all earlier requests.

    What is sent later stays. The same request again continues where it ended, and then does nothing.
    """
    from lake_assets.base.hours import milliseconds
    from lake_assets.landing.erasure import cut_of
    from lake_assets.landing.operations import remove_unscrubbed, scrub
    from lake_assets.landing.state import DeletionRequest, SharedState
    from lake_assets.landing.zone_tailer import scrub_by

    by = scrub_by(settings(), _feed(topic))
    now = datetime.now(UTC)
    through = sent_through.replace(tzinfo=UTC) if sent_through else now
    with _present_zones(zones) as writers:
        manifest = writers[0].manifest
        cut = {} if sent_through else cut_of(settings(), manifest, topic)
        wanted = DeletionRequest(request, topic, by.hashed(distinct_id), milliseconds(through), cut)
        SharedState(manifest).request_deletions(wanted.topic, [wanted], now=now)
        for writer in writers:
            scrubbed = scrub(writer, topic, by, now=now)
            typer.echo(f"{topic} in {writer.zone.name}: {len(scrubbed)} files scrubbed")
        for writer in writers:
            removed = remove_unscrubbed(writer, topic, now=datetime.now(UTC))
            state = "kept until the files of the other zone are scrubbed"
            if removed is not None:
                state = f"{len(removed)} removed"
            typer.echo(f"{topic} in {writer.zone.name}: files that still hold it: {state}")


def compact(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic to compact. Default: all.")] = None,
    max_files: Annotated[int, typer.Option(help="The maximum number of files that become one file.")] = 100,
    max_mb: Annotated[int, typer.Option(help="The maximum size of the records of one file, in MB.")] = 256,
    keep_hours: Annotated[int, typer.Option(help="Remove replaced files that are older than this.")] = 24,
    zones: Zones = None,
) -> None:
    """Merge verified files into columnar files, the same ones in both zones, and remove old replaced files."""
    from lake_assets.incremental.engine.engine import utc_now
    from lake_assets.landing.manifest import shards_of, topics_of
    from lake_assets.landing.operations import GroupLimits, drop_leftovers, merge, sweep, to_columns
    from lake_assets.landing.reshard import bring_to_its_shards

    limits = GroupLimits(max_files, max_mb * BYTES_PER_MB)
    with _present_zones(zones) as writers:
        for found in topics_of(writers[0].manifest, topic):
            bring_to_its_shards(writers, found, _feeds, utc_now)
        for writer in writers:
            now = datetime.now(UTC)
            made: list[str] = []
            for shard in shards_of(writer.manifest, topic):
                made += merge(writer, shard, limits, now=now)
            for found in topics_of(writer.manifest, topic):
                made += to_columns(writer, found, now=now)
            oldest = now - timedelta(hours=keep_hours)
            removed = sweep(writer.manifest, writer.zone, retired_before=oldest)
            removed += drop_leftovers(writer, before=oldest)
            typer.echo(f"{writer.zone.name}: {len(made)} columnar files made, {len(removed)} old ones removed")


@quarantine.command("list")
def list_quarantined(as_json: AsJson = False) -> None:
    """List the files in quarantine, and how they differ from the files of the other zone."""
    from lake_assets.landing.heal import quarantined
    from lake_assets.landing.manifest import open_manifest

    render(quarantined(open_manifest(settings())), QUARANTINED, as_json=as_json)


@quarantine.command()
def release(zone: ZoneName, file: FileName) -> None:
    """Accept FILE of ZONE as the right one. The file of the other zone is quarantined instead."""
    others = _decide(zone, file, "release")
    typer.echo(f"{file} of zone {zone} is verified.")
    for other in others:
        typer.echo(f"{other.file.name} of zone {other.file.zone} is quarantined.")


@quarantine.command()
def discard(zone: ZoneName, file: FileName) -> None:
    """Remove FILE of ZONE, which is in quarantine, provisional or damaged. The zone lands its offsets again."""
    _decide(zone, file, "discard")
    typer.echo(f"{file} of zone {zone} is removed. The zone lands its offsets again when it starts the next time.")


def _decide(zone: str, file: str, decision: Decision) -> list[Entry]:
    """Decide on a file of a zone; another zone that is away follows when it is back."""
    from lake_assets.landing.heal import decide
    from lake_assets.landing.zones import open_zones, present_zones

    open_zones(settings(), [zone])
    writers, _ = present_zones(settings(), storage=False)
    return decide(writers, zone, file, decision, now=datetime.now(UTC))


def landing_problems(*, ask_kafka: bool = True) -> list[Problem]:
    """Return what is wrong with landing. Without tables or a pipeline, what the manifest and the folders tell."""
    from lake_assets.connections.addresses import kafka_address
    from lake_assets.connections.catalog import is_blank, open_catalog
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.messages import feeds
    from lake_assets.landing.problems import problems

    found = settings()
    declared: tuple[Feed, ...] = ()
    with suppress(LakeError):  # `lake doctor` reports declarations by a check of their own
        declared = feeds(open_pipeline(found), prefix=found.landing_prefix, max_bytes=found.landing_message_bytes)
    catalog = None
    with suppress(LakeError):  # and the catalog
        catalog = None if is_blank(found) else open_catalog(found)
    servers = kafka_address(found) if ask_kafka and declared else None
    return problems(found, declared, now=datetime.now(UTC), catalog=catalog, servers=servers)


def show_landing_problems(*, ask_kafka: bool = True) -> bool:
    """Print what is wrong with landing; return whether anything is an error."""
    return print_problems(landing_problems(ask_kafka=ask_kafka))


def open_service() -> LandingService:
    """Open landing as the settings describe it."""
    from lake_assets.connections.catalog import open_catalog
    from lake_assets.incremental.engine.engine import utc_now
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.landing_service import LandingService

    found = settings()
    return LandingService(found, kafka_servers(), open_catalog(found), open_pipeline(found), utc_now)


@contextmanager
def _present_zones(names: list[str] | None = None, *, storage: bool = True) -> Iterator[list[ZoneWriter]]:
    """Yield the zones that can be worked on now. Raises afterwards what one of the others lacks."""
    from lake_assets.landing.zones import present_zones

    writers, away = present_zones(settings(), names or (), storage=storage)
    yield writers
    for problem in away.values():
        raise problem


def _feed(topic: str) -> Feed:
    from lake_assets.landing.messages import feed_of

    return feed_of(_feeds(), topic)


def _feeds() -> tuple[Feed, ...]:
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.messages import feeds

    found = settings()
    return feeds(open_pipeline(found), prefix=found.landing_prefix, max_bytes=found.landing_message_bytes)


SHOWN_LETTERS = 20
SHOWN_LETTER = 100

SHARDS: TableView[ShardStatus] = TableView(
    (
        Column("shard", lambda shard: shard.shard, whole=True),
        "zone",
        "verified",
        "provisional",
        "quarantined",
        "records",
        "bytes",
        Column("next offsets", lambda shard: " ".join(f"p{number}:{offset}" for number, offset in shard.next.items())),
    ),
    empty="Nothing has landed.",
)

QUARANTINED: TableView[Entry] = TableView(
    (
        Column("zone", lambda entry: entry.file.zone),
        Column("file", lambda entry: entry.file.name, whole=True),
        "reason",
    ),
    empty="Nothing is quarantined.",
)


def verified(found: Verification) -> Iterator[Part]:
    """Show the findings of each zone and cause together, then how much was read."""
    causes: dict[tuple[str, str], list[Finding]] = {}
    for finding in found.findings:
        causes.setdefault((finding.zone, finding.cause or finding.problem), []).append(finding)
    for (zone, cause), several in causes.items():
        first = several[0]
        remedy = f"\n  → {first.remedy}" if first.remedy else ""
        if len(several) == 1:
            yield f"{zone}  {first.name}  {first.problem}{remedy}"
        else:
            yield f"{zone}  {len(several):,} times: {cause}; the first one is {first.name}, {first.problem}{remedy}"
    summary = "no finding"
    if found.findings:
        summary = counted(len(found.findings), "finding")
    yield f"{found.files:,} files, {found.records:,} records, {found.bytes:,} bytes read: {summary}."


def letters(found: DeadLetters) -> Iterator[Part]:
    """Show the newest dead letters, a line each, then how many there are of each reason."""
    for letter in found.newest[-SHOWN_LETTERS:]:
        sent = f"{letter.sent:%Y-%m-%d %H:%M:%S}" if letter.sent else "no time"
        yield f"p{letter.partition}:{letter.offset}  {sent}  {letter.reason}  {letter.value[:SHOWN_LETTER]}"
    if not found.unsettled:
        yield f"{found.topic} has no dead letter that was neither landed again nor accepted."
        return
    yield found.sentence
    yield f"→ {found.remedy}"


def landed_rows(rows: Sequence[Mapping[str, Any]]) -> TableView[Mapping[str, Any]]:
    """Return a view of rows that have landed: a column for each of theirs."""
    columns = [Column(name, partial(_landed_cell, name)) for name in (rows[0] if rows else ())]
    return TableView(columns, empty="No row has landed.")


def _landed_cell(name: str, row: Mapping[str, Any]) -> str:
    value = row[name]
    if isinstance(value, bool):
        return name if value else ""
    return "" if value is None else str(value)[:SHOWN_LETTER]


def landed_again(table: str, done: LandedAgain) -> str:
    """Return what landing dead letters again did."""
    erased = f", {done.erased:,} of erased subjects left out" if done.erased else ""
    return f"{table}: {done.rows:,} rows of dead letters loaded{erased}; {done.left:,} are still dead letters."


def lost(loss: Loss) -> str:
    """Return the line of a loss that was accepted."""
    zones = "zone " if len(loss.zones) == 1 else "zones "
    copies = "" if loss.for_good else "; it has copies of the other zone's files"
    return (
        f"{loss.topic} partition {loss.partition}: offsets {loss.first} to {loss.last} are lost to "
        f"{zones}{', '.join(loss.zones)}{copies} ({loss.reason}; accepted at {loss.accepted_at:%Y-%m-%d %H:%M:%S})"
    )


def accepted(topic: str, done: Accepted) -> Iterator[str]:
    """Show what an acceptance has recorded, a line each."""
    if done.epoch:
        yield f"{topic}: {done.epoch.reason}."
        for partition, base in sorted(done.epoch.bases.items()):
            yield f"{topic} partition {partition}: offset 0 of the new topic lands as offset {base}."
    for closed in done.closed:
        where = f"{topic} partition {closed.place.partition}: offsets {closed.first} to {closed.last}"
        yield f"{where} have landed from an open file: Kafka does not have them any more."
    for loss in done.losses:
        yield lost(loss)
    for zone, name in done.copied:
        yield f"{zone}  {name}  was copied from the other zone."
    for partition, (zone, first) in sorted(done.read.items()):
        yield (
            f"{topic} partition {partition}: {zone} has the messages from offset {first} on in an open file, so they "
            f"are not lost. Let it land them: `lake landing run --zone {zone}`."
        )
    if not (done.epoch or done.losses or done.closed):
        yield f"{topic}: nothing is lost, nothing was changed."
    else:
        yield "Zones that run continue within a minute. The others continue when they start: `lake landing run`."


def repaired(done: Repaired) -> str:
    """Return what was repaired, or why that was not possible and what to do."""
    if done.problem:
        return f"{done.zone}  {done.name}  was not repaired: {done.problem}\n  → {done.remedy}"
    return f"{done.zone}  {done.name}  {done.what}."


def loaded(batch: Loaded) -> str:
    """Return the line of a batch that was loaded into a raw table."""
    through = batch.complete_through
    complete = "no hour is complete yet" if through is None else f"complete through {hour_key(through)}"
    erased = f", {batch.erased:,} rows of erased subjects deleted" if batch.erased else ""
    rows = f"{batch.rows:,} rows of zone {batch.zone}{erased}" if batch.offsets else "no rows, heartbeats alone"
    line = f"{batch.table}: {batch.batch_id}, {rows}; {complete}"
    return "\n".join([line, *_ignored_heartbeats(batch)])


def _ignored_heartbeats(batch: Loaded) -> Iterator[str]:
    for partition, at in sorted(batch.ignored.items()):
        yield (
            f"{batch.table}: a heartbeat of {at:%Y-%m-%d %H:%M:%S} UTC in partition {partition} is later than now and"
            " completes nothing. Correct the clock of the machine that sent it."
        )


MILLISECONDS = 1000

landing = typer.Typer(help="Landed files: two zones write the same records and check each other.", no_args_is_help=True)


@landing.command()
def init(partitions: Partitions = 4) -> None:
    """Create missing topics and raw tables, and record how long Kafka keeps landed messages. Safe to repeat.

    A topic that exists is left as it is, unless its feed declares retention_hours.
    """
    from lake_assets.engagement.topics import KafkaTopic
    from lake_assets.incremental.engine.iceberg import create_raw
    from lake_assets.landing.state import Retention

    service = _open_service_with_feeds()
    for feed in service.feeds:
        hours = feed.retention_hours
        if KafkaTopic(service.servers, feed.topic).create(partitions):
            typer.echo(f"created the topic {feed.topic}")
            hours = settings().landing_retention_hours if hours is None else hours
        if hours is not None and Retention(service.manifest).keep(feed.topic, hours):
            typer.echo(f"{feed.topic}: Kafka keeps messages for {hours:,} hours after both zones have landed them")
        if create_raw(service.catalog, feed.raw):
            typer.echo(f"created {feed.raw.table}")


@landing.command()
def simulate(
    accounts: Annotated[int, typer.Option(help="The number of accounts that may sign up.", min=1)] = 2_000,
    hours: Annotated[int, typer.Option(help="The number of simulated hours.", min=1)] = 24,
    start: Annotated[str, typer.Option(help="The first simulated hour.")] = "2026-01-01-00:00",
    seed: Annotated[int, typer.Option(help="The same seed sends the same messages again.")] = 1,
    partitions: Partitions = 4,
) -> None:
    """Send a simulated membership to the topics, late and out of order, with heartbeats at simulated times.

    Land it with `lake landing run --no-heartbeats`: heartbeats of the present would complete its hours too early.
    """
    from lake_assets.demo.membership_simulator import Population, Simulation, generate
    from lake_assets.demo.stage import close_files, send_landing

    init(partitions)
    servers = kafka_servers()
    count = 0
    for batch in generate(Simulation(Population(accounts, seed, start, hours))):
        count += send_landing(servers, batch, settings())
        last = batch
    close_files(servers, last, settings())
    typer.echo(f"sent {count:,} messages")


@landing.command()
def run(
    zones: Zones = None,
    once: Annotated[bool, typer.Option("--once", help="Land the messages available now, then exit.")] = False,
    heartbeats: Annotated[
        bool, typer.Option(help="Send heartbeats. They close files and complete hours if no messages arrive.")
    ] = True,
) -> None:
    """Land messages in the zones, and load verified files into the raw tables, until the command is interrupted.

    `lake up` does the same in services of its own if the pipeline declares feeds. A zone that another process lands is
    refused. For more throughput, run one process for each zone. The exit code is 1 if a partition stopped, or if a
    missing file could not be landed again.
    """
    from lake_assets.landing.landing_service import run, run_once

    service = _open_service_with_feeds()
    if once:
        if heartbeats:
            service.heartbeats.send_if_due()
        tailers = run_once(service, zones or (), on_loaded=_print_loaded, alarm=_print_alarm)
    else:
        tailers = run(
            service,
            zones or (),
            on_loaded=_print_loaded,
            should_stop=end_when_interrupted("What has begun is ended.").is_set,
            send_heartbeats=heartbeats,
            alarm=_print_alarm,
        )
    for tailer in tailers:
        typer.echo(f"zone {tailer.zone}: {tailer.messages:,} messages read, {tailer.files:,} files closed")
    if any(tailer.stopped or tailer.not_refetched for tailer in tailers):
        raise typer.Exit(1)


@landing.command()
def tail(zone: Annotated[str, typer.Argument(metavar="ZONE", help="The zone: a or b.")]) -> None:
    """Land messages in one ZONE until interrupted. With `load`, it does what `run` does, in processes of their own.

    `lake up` runs it for both zones if the pipeline declares feeds. Topics may be created later.
    """
    from lake_assets.landing.zone_tailer import tail_zone

    tail_zone(
        settings(),
        kafka_servers(),
        _declared_feeds(),
        zone,
        clock=partial(datetime.now, UTC),
        should_stop=end_when_interrupted("What has begun is ended.").is_set,
        report=typer.echo,
        alarm=_print_alarm,
    )


@landing.command()
def load() -> None:
    """Load verified files into the raw tables, and send heartbeats, until interrupted.

    `lake up` runs it if the pipeline declares feeds. A table that cannot be loaded is tried again every 30 seconds.
    """
    from lake_assets.landing.landing_service import load_feeds

    service = _open_service_with_feeds()
    should_stop = end_when_interrupted("What has begun is ended.").is_set
    load_feeds(service, on_loaded=_print_loaded, should_stop=should_stop, report=typer.echo, alarm=_print_alarm)


@landing.command()
def page(out: OutputFile = None) -> None:
    """Write one HTML page that draws the files of both zones by partition and offset, with their verdicts."""
    from lake_assets.landing.loading import progress_of
    from lake_assets.pages import landing_files as drawing
    from lake_assets.pages.page import write

    service = open_service()
    entries = service.manifest.entries(stages=("staged", "live"), verdicts=("provisional", "verified", "quarantined"))
    loaded = {feed.topic: progress_of(service.catalog, feed.raw.table, feed.topic).offsets for feed in service.feeds}
    made = drawing.page(drawing.pictures(entries, loaded), now=service.clock())
    typer.echo(f"The page is in {write(made, out or settings().home / 'landing.html')}")


@landing.command()
def status(as_json: AsJson = False) -> None:
    """Show the files of each shard and zone, by verdict, what is lost, and what is wrong. Asks no Kafka.

    The exit code is 1 if something is wrong: a partition has stopped, a zone is gone or behind, files differ, or too
    many messages are dead letters.
    """
    from lake_assets.landing.manifest import open_manifest, status
    from lake_assets.landing.state import Ledger

    manifest = open_manifest(settings())
    render(status(manifest), SHARDS, as_json=as_json)
    if not as_json:
        for loss in Ledger(manifest).losses():
            typer.echo(lost(loss))
    if show_landing_problems(ask_kafka=False):
        raise typer.Exit(1)


@landing.command()
def policy(
    topic: Topic,
    messages: Annotated[int | None, typer.Option(help="Close a file at this number of messages.", min=1)] = None,
    size: Annotated[int | None, typer.Option("--bytes", help="Close a file at this size.", min=1)] = None,
    seconds: Annotated[
        int | None,
        typer.Option(help="Close a file at a heartbeat so much later than its beginning.", min=1),
    ] = None,
    idle_seconds: Annotated[
        int | None, typer.Option(help="The same for a file of heartbeats alone, which then may be longer.", min=1)
    ] = None,
) -> None:
    """Change when files of TOPIC are closed, from the same offsets on in both zones. Omitted limits do not change."""
    from lake_assets.landing.manifest import open_manifest
    from lake_assets.landing.state import SharedState

    limits = {}
    if messages is not None:
        limits["max_messages"] = messages
    if size is not None:
        limits["max_bytes"] = size
    if seconds is not None:
        limits["max_age_ms"] = seconds * MILLISECONDS
    if idle_seconds is not None:
        limits["max_idle_ms"] = idle_seconds * MILLISECONDS
    for partition, found in SharedState(open_manifest(settings())).change_policies(topic, **limits).items():
        seconds_apart = found.max_age_ms / MILLISECONDS
        what = f"{found.max_messages:,} messages, {found.max_bytes:,} bytes or {seconds_apart:g} s"
        typer.echo(f"{topic} partition {partition}: files that begin at offset {found.from_offset} or later: {what}")


@landing.command()
def migrate() -> None:
    """Make a manifest for each zone of the one that zones of a version before shared. Safe to repeat.

    Whatever opens it does so, too. What the zones agreed on becomes commands: policies, deletion requests, rounds of
    compaction and reshard, ids of topics, losses and retentions.
    """
    from lake_assets.landing.files import ZONES
    from lake_assets.landing.manifest import divide, open_manifest

    done = divide(settings())
    kinds = open_manifest(settings()).command_counts()
    told = ", ".join(f"{count:,} of the kind {kind}" for kind, count in kinds.items()) or "none"
    state = "have their own manifests now" if done else "had their own manifests already"
    typer.echo(f"Zones {', '.join(ZONES)} {state}. Their commands: {told}.")


landing.command()(accept)
landing.command("dead-letters")(dead_letters)
landing.command()(read)
landing.command()(repair)
landing.command()(verify)
landing.command()(compact)
landing.command()(reshard)
landing.command()(scrub)
landing.add_typer(quarantine, name="quarantine")


def erase_landed_files(done: list[LandedErasure]) -> Elsewhere:
    """Return the part of `lake erase` that erases from landed files. done: receives what it did."""
    from lake_assets.incremental.engine.engine import utc_now
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.erasure import erases_landed

    return erases_landed(settings(), open_pipeline(settings()), utc_now, report=done.append)


def request_erasure(engine: Engine, subject: str, ids: Sequence[str], now: datetime) -> None:
    """Record the erasure of ids for landed files, before anything is deleted: what is sent from then on stays."""
    from lake_assets.incremental.engine.erasures import Erasure
    from lake_assets.landing.erasure import request_erasure

    engine.pipeline.subject(subject)
    engine.erasures.rows()  # checks the key
    erasures = [Erasure(subject, engine.erasures.hash(subject, each), now, "requested") for each in ids]
    request_erasure(settings(), engine.pipeline, erasures, now=now)


def searched_folders() -> list[FileSource]:
    """Return the landed files that `lake erasure certify` searches."""
    from lake_assets.landing.erasure import landed_folders

    return list(landed_folders(settings()))


def _print_loaded(batch: Loaded) -> None:

    typer.echo(loaded(batch))


def _print_alarm(what: str) -> None:
    typer.echo(what, err=True)


def _open_service_with_feeds() -> LandingService:
    _declared_feeds()
    return open_service()


def _declared_feeds() -> tuple[Feed, ...]:
    from lake_assets.landing.messages import TO_HAVE_FEEDS

    declared = _feeds()
    if not declared:
        raise UsageError("No raw table of the pipelines is landed from Kafka.", remedy=TO_HAVE_FEEDS)
    return declared
