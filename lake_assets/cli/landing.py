"""`lake landing` on the command line: from Kafka through two zones into raw tables, and what is done to their files."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.incremental.erasure.certificate import FileSource
    from lake_assets.incremental.erasure.erase import Elsewhere
    from lake_assets.landing.consume.delivery import ZoneTailer
    from lake_assets.landing.consume.messages import Feed
    from lake_assets.landing.erasure.erase import LandedErasure
    from lake_assets.landing.landing_service import LandingService
    from lake_assets.landing.loading.loader import Loaded
    from lake_assets.landing.manifest.zone_writer import ZoneWriter
    from lake_assets.landing.operations.scrub import Scrub
    from lake_assets.landing.operations.verify import Verification

landing = typer.Typer(help="Landed files: two zones that write the same and check each other.", no_args_is_help=True)
quarantine = typer.Typer(help="Files that differ from the other zone's.", no_args_is_help=True)
landing.add_typer(quarantine, name="quarantine")
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="such as raw.signups")]
Zones = Annotated[list[str] | None, typer.Option("--zone", help="a zone, a or b; repeatable; default: both")]
ZoneName = Annotated[str, typer.Argument(metavar="ZONE", help="a or b")]
Partitions = Annotated[int, typer.Option(help="of topics that are not there yet", min=1)]
Processes = Annotated[int, typer.Option(help="that read at the same time", min=1)]
FileName = Annotated[str, typer.Argument(metavar="FILE", help="its name, as `quarantine list` shows it")]

CORES = os.cpu_count() or 1


@landing.command()
def init(partitions: Partitions = 4) -> None:
    """Create the topics and the raw tables that are not there yet. Safe to repeat."""
    from lake_assets.engagement.model.kafka_topic import KafkaTopic
    from lake_assets.incremental.metadata.tables import create_raw

    station = _station_with_feeds()
    for feed in station.feeds:
        if KafkaTopic(station.servers, feed.topic).create(partitions):
            typer.echo(f"created the topic {feed.topic}")
        if create_raw(station.catalog, feed.raw):
            typer.echo(f"created {feed.raw.table}")


@landing.command()
def simulate(
    accounts: Annotated[int, typer.Option(help="who may sign up", min=1)] = 2_000,
    hours: Annotated[int, typer.Option(help="that they act for", min=1)] = 24,
    start: Annotated[str, typer.Option(help="the first of these hours")] = "2026-01-01-00:00",
    seed: Annotated[int, typer.Option(help="another seed has other people; the same one sends the same again")] = 1,
    partitions: Partitions = 4,
) -> None:
    """Send a made-up membership to the topics, late and out of order, with heartbeats at its own times.

    For `lake landing run --no-heartbeats`: by heartbeats of now, its hours would be complete before they come.
    """
    from lake_assets.demo.membership_simulator import Population, Simulation, generate
    from lake_assets.demo.simulate import close_files, send_landing

    init(partitions)
    servers, count = _kafka(), 0
    for one in generate(Simulation(Population(accounts, seed, start, hours))):
        count += send_landing(servers, one, settings())
        last = one
    close_files(servers, last, settings())
    typer.echo(f"sent {count:,} messages")


@landing.command()
def run(
    zones: Zones = None,
    once: Annotated[bool, typer.Option("--once", help="land what is there now, and end")] = False,
    heartbeats: Annotated[bool, typer.Option(help="send heartbeats, by which files close and hours complete")] = True,
) -> None:
    """Tail the zones and load verified files into the raw tables, until interrupted. For speed, a process a zone."""
    from lake_assets.landing.landing_service import run, run_once

    station = _station_with_feeds()
    if once:
        if heartbeats:
            station.heartbeats.send_if_due()
        tailers = run_once(station, zones or (), on_loaded=_tell, alarm=_alarm)
    else:
        ended = _interrupted()
        tailers = run(
            station, zones or (), on_loaded=_tell, should_stop=ended, send_heartbeats=heartbeats, alarm=_alarm
        )
    for tailer in tailers:
        _sum_up(tailer)


@landing.command()
def page(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="default: landing.html in the home", dir_okay=False)
    ] = None,
) -> None:
    """Draw the files of both zones as one HTML page, by partition and offset, coloured by what is known of them."""
    from lake_assets.landing.loading.progress import progress_of
    from lake_assets.pages.landing_files import page, pictures

    station = _station()
    entries = station.manifest.entries(stages=("staged", "live"), verdicts=("provisional", "verified", "quarantined"))
    loaded = {feed.topic: progress_of(station.catalog, feed.raw.table, feed.topic).offsets for feed in station.feeds}
    file = (out or settings().home / "landing.html").expanduser().absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(pictures(entries, loaded), now=station.clock()), encoding="utf-8")
    typer.echo(f"The page is in {file}")


@landing.command()
def status(as_json: AsJson = False) -> None:
    """Show what each zone has of each shard. Reads the manifest alone, changes nothing."""
    from lake_assets.landing.manifest.status import status as found_status
    from lake_assets.pages import terminal

    found = found_status(_zones()[0].manifest)
    if as_json:
        typer.echo(terminal.as_json(found))
        return
    for s in found:
        files = f"{s.verified} verified, {s.provisional} provisional, {s.quarantined} quarantined"
        ends = " ".join(f"p{partition}:{offset}" for partition, offset in s.next.items())
        typer.echo(f"{s.shard:<28} {s.zone}  {files}, {s.records:,} records, {s.bytes:,} bytes, next {ends}")
    if not found:
        typer.echo("Nothing has landed.")


@landing.command()
def verify(zones: Zones = None, processes: Processes = CORES, as_json: AsJson = False) -> None:
    """Read every file again and check all that was checked when it was added. Exit code 1 if something is wrong."""
    from lake_assets.landing.operations.verify import verify as verified
    from lake_assets.pages import terminal

    writers = _zones(zones)
    deadline, now = timedelta(seconds=settings().landing_deadline_seconds), datetime.now(UTC)
    with typer.progressbar(length=0, label="Reading", file=sys.stderr) as bar:

        def told(done: int, of: int) -> None:
            bar.length = of
            bar.update(done - bar.pos)

        places = [w.zone for w in writers]
        found = verified(writers[0].manifest, places, now=now, deadline=deadline, processes=processes, progress=told)
    typer.echo(terminal.as_json(found)) if as_json else _print(found)
    if found.findings:
        sys.exit(1)


@landing.command()
def reshard(
    topic: Topic,
    shards: Annotated[int, typer.Argument(metavar="SHARDS", help="how many there will be, a multiple")],
    of: Annotated[int, typer.Option("--from", help="how many there are")] = 1,
    zones: Zones = None,
) -> None:
    """Spread the records of TOPIC over so many SHARDS, by distinct id. Run again, it goes on where it was."""
    from lake_assets.incremental.execution.engine import utc_now
    from lake_assets.landing.files.sharding import shards as shards_of_topic
    from lake_assets.landing.operations.reshard import reshard_all

    writers, distinct_id = _zones(zones), _feed(topic).distinct_id_of
    for shard in shards_of_topic(topic, of):
        for zone, done in reshard_all(writers, shard, shards, distinct_id, utc_now):
            state = f"waits for {done.waits_for}" if done.waits_for else "done"
            typer.echo(f"{shard} in {zone}: {len(done.copies)} copies made; {state}")


@landing.command()
def scrub(
    topic: Topic,
    distinct_id: Annotated[str, typer.Argument(metavar="ID", help="whose records go")],
    request: Annotated[str, typer.Option(help="the request's own id; repeated, it is the same request")],
    sent_through: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%dT%H:%M:%S"], help="in UTC; what is from later stays")
    ] = None,
    zones: Zones = None,
) -> None:
    """Erase what was sent of ID by a time from all landed files of TOPIC; and what was requested before."""
    from lake_assets.landing.files.timestamps import milliseconds
    from lake_assets.landing.manifest.shared_state import DeletionRequest, SharedState
    from lake_assets.landing.operations.scrub import remove_unscrubbed
    from lake_assets.landing.operations.scrub import scrub as scrubbed

    writers, by, now = _zones(zones), _scrub_by(topic), datetime.now(UTC)
    through = sent_through.replace(tzinfo=UTC) if sent_through else now
    wanted = DeletionRequest(request, topic, by.hashed(distinct_id), milliseconds(through))
    SharedState(writers[0].manifest).request_deletion(wanted, now=now)
    for writer in writers:
        typer.echo(f"{topic} in {writer.zone.name}: {len(scrubbed(writer, topic, by, now=now))} files scrubbed")
    for writer in writers:
        gone = remove_unscrubbed(writer, topic, now=datetime.now(UTC))
        told = "kept until the other zone's are scrubbed, too" if gone is None else f"{len(gone)} removed"
        typer.echo(f"{topic} in {writer.zone.name}: files that still hold it: {told}")


@landing.command()
def policy(
    topic: Topic,
    messages: Annotated[int | None, typer.Option(help="that close a file", min=1)] = None,
    size: Annotated[int | None, typer.Option("--bytes", help="that close it", min=1)] = None,
    seconds: Annotated[int | None, typer.Option(help="apart from its first message", min=1)] = None,
) -> None:
    """Close the files of TOPIC otherwise from now on, at the same offsets in both zones. What is not named stays."""
    from lake_assets.landing.manifest.shared_state import SharedState

    given = {"max_messages": messages, "max_bytes": size, "max_age_ms": seconds and 1000 * seconds}
    limits = {name: limit for name, limit in given.items() if limit is not None}
    for partition, found in SharedState(_zones()[0].manifest).change_policies(topic, **limits).items():
        what = f"{found.max_messages:,} messages, {found.max_bytes:,} bytes or {found.max_age_ms / 1000:g} s"
        typer.echo(f"{topic} partition {partition}: files that begin at offset {found.from_offset} or later: {what}")


@landing.command()
def compact(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="default: all")] = None,
    max_files: Annotated[int, typer.Option(help="that become one")] = 100,
    max_mb: Annotated[int, typer.Option(help="of records, in one file")] = 256,
    keep_hours: Annotated[int, typer.Option(help="replaced files are removed when they are older")] = 24,
    zones: Zones = None,
) -> None:
    """Merge verified files into columnar ones, the same in both zones, and remove what was replaced long ago."""
    from lake_assets.landing.manifest.compaction_choice import Limits
    from lake_assets.landing.manifest.status import shards_of, topics_of
    from lake_assets.landing.operations.compact import merge, to_columns
    from lake_assets.landing.operations.sweep import sweep

    limits = Limits(max_files, max_mb << 20)
    for writer in _zones(zones):
        now = datetime.now(UTC)
        made = [name for shard in shards_of(writer.manifest, topic) for name in merge(writer, shard, limits, now=now)]
        made += [name for found in topics_of(writer.manifest, topic) for name in to_columns(writer, found, now=now)]
        old = now - timedelta(hours=keep_hours)
        gone = sweep(writer.manifest, writer.zone, retired_before=old) + writer.zone.drop_drafts(old)
        typer.echo(f"{writer.zone.name}: {len(made)} columnar files made, {len(gone)} old ones removed")


@quarantine.command("list")
def list_quarantined(as_json: AsJson = False) -> None:
    """Show the files in quarantine, and how they differ."""
    from lake_assets.landing.operations.quarantine import quarantined
    from lake_assets.pages import terminal

    found = quarantined(_zones()[0].manifest)
    if as_json:
        typer.echo(terminal.as_json(found))
        return
    for entry in found:
        typer.echo(f"{entry.file.zone}  {entry.file.name}  {entry.reason}")
    if not found:
        typer.echo("Nothing is quarantined.")


@quarantine.command()
def release(zone: ZoneName, file: FileName) -> None:
    """Take FILE of ZONE for right. The other zone's is quarantined in its stead."""
    from lake_assets.landing.operations.quarantine import decide

    others = decide(_zones(), zone, file, "release", now=datetime.now(UTC))
    typer.echo(f"{file} of zone {zone} is verified.")
    for other in others:
        typer.echo(f"{other.file.name} of zone {other.file.zone} is quarantined.")


@quarantine.command()
def discard(zone: ZoneName, file: FileName) -> None:
    """Take FILE of ZONE for wrong and remove it: one in quarantine, provisional or damaged. The zone makes it again."""
    from lake_assets.landing.operations.quarantine import decide

    decide(_zones(), zone, file, "discard", now=datetime.now(UTC))
    typer.echo(f"{file} of zone {zone} is gone; its offsets are landed again when the zone is started the next time.")


def erase_also(told: list[LandedErasure]) -> Elsewhere:
    """What `lake erase` does to landed files. told: gets what was done."""
    from lake_assets.incremental.execution.engine import utc_now
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.erasure.erase import erases_landed

    return erases_landed(settings(), open_pipeline(settings()), utc_now, report=told.append)


def print_erased(found: Iterable[LandedErasure]) -> None:
    """What an erasure did to landed files."""
    for done in found:
        if done.scrubbed or done.removed:
            typer.echo(f"  {done.scrubbed:,} landed files scrubbed, {done.removed:,} that were replaced removed")


def searched() -> FileSource:
    """What `lake erasure certify` searches of landing."""
    from lake_assets.landing.erasure.certificate import landed_folder

    return landed_folder(settings())


def _print(found: Verification) -> None:
    for finding in found.findings:
        typer.echo(f"{finding.zone}  {finding.name}  {finding.problem}")
    count = len(found.findings)
    what = f"{count} finding{'s' * (count > 1)}" if count else "all as it should be"
    typer.echo(f"{found.files:,} files, {found.records:,} records, {found.bytes:,} bytes read: {what}.")


def _scrub_by(topic: str) -> Scrub:
    """By the distinct id of a topic's messages, as erasures do."""
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.erasure.erase import scrub_by

    return scrub_by(settings(), open_pipeline(settings()), _feed(topic))


def _feed(topic: str) -> Feed:
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.consume.messages import feed_of, feeds

    found = settings()
    return feed_of(feeds(open_pipeline(found), prefix=found.landing_prefix), topic)


def _zones(names: list[str] | None = None) -> list[ZoneWriter]:
    from lake_assets.landing.manifest.open_zones import open_zones

    return open_zones(settings(), names or ())


def _interrupted() -> Callable[[], bool]:
    """Whether somebody has asked to end since."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: asked.append(received))
    return lambda: bool(asked)


def _tell(loaded: Loaded) -> None:
    from lake_assets.base.hours import hour_key

    through = loaded.complete_through
    complete = "nothing is complete yet" if through is None else f"complete through {hour_key(through)}"
    dropped = f", {loaded.erased:,} of erased dropped" if loaded.erased else ""
    typer.echo(f"{loaded.table}: {loaded.batch_id}, {loaded.rows:,} rows of zone {loaded.zone}{dropped}; {complete}")


def _alarm(what: str) -> None:
    typer.echo(what, err=True)


def _sum_up(tailer: ZoneTailer) -> None:
    typer.echo(f"zone {tailer.zone}: {tailer.messages:,} messages read, {tailer.files:,} files closed")


def _station() -> LandingService:
    from lake_assets.connections.catalog import open_catalog
    from lake_assets.incremental.execution.engine import utc_now
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.landing_service import LandingService

    found = settings()
    return LandingService(found, _kafka(), open_catalog(found), open_pipeline(found), utc_now)


def _station_with_feeds() -> LandingService:
    """The same, for what does nothing without a topic. Raises `UsageError` if there is none."""
    from lake_assets.errors import UsageError
    from lake_assets.landing.consume.messages import TO_HAVE_FEEDS

    station = _station()
    if not station.feeds:
        raise UsageError("No raw table of the pipelines is landed from Kafka.", remedy=TO_HAVE_FEEDS)
    return station


def _kafka() -> str:
    from lake_assets.connections.addresses import kafka_address, required

    return required(kafka_address(settings()), "Kafka")
