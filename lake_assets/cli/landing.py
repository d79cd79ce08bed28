"""`lake landing`: from Kafka through two zones into raw tables."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli import landing_files
from lake_assets.cli.common import AsJson, OutputFile, Partitions, kafka_servers
from lake_assets.cli.landing_files import Topic, Zones, open_service, open_zones, show_landing_problems
from lake_assets.errors import UsageError
from lake_assets.pages.terminal.render import render
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.incremental.engine.engine import Engine
    from lake_assets.incremental.erasure.certificate import FileSource
    from lake_assets.incremental.erasure.erase import Elsewhere
    from lake_assets.landing.erasure import LandedErasure
    from lake_assets.landing.landing_service import LandingService
    from lake_assets.landing.loading import Loaded
    from lake_assets.landing.messages import Feed
    from lake_assets.landing.zone_tailer import ZoneTailer

MILLISECONDS = 1000

landing = typer.Typer(help="Landed files: two zones write the same records and check each other.", no_args_is_help=True)


@landing.command()
def init(partitions: Partitions = 4) -> None:
    """Create missing topics and raw tables, and record how long Kafka keeps landed messages. Safe to repeat.

    A topic that exists is left as it is, unless its feed declares retention_hours.
    """
    from lake_assets.engagement.model.kafka_topic import KafkaTopic
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
    from lake_assets.demo.simulate import close_files, send_landing

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
            should_stop=_interrupted(),
            send_heartbeats=heartbeats,
            alarm=_print_alarm,
        )
    _show_landed(tailers)


@landing.command()
def tail(zone: Annotated[str, typer.Argument(metavar="ZONE", help="The zone: a or b.")]) -> None:
    """Land messages in one ZONE until interrupted. With `load`, it does what `run` does, in processes of their own.

    `lake up` runs it for both zones if the pipeline declares feeds. Topics may be created later.
    """
    from lake_assets.landing.continuous import tail_zone

    tail_zone(
        settings(),
        kafka_servers(),
        _declared_feeds(),
        zone,
        clock=partial(datetime.now, UTC),
        should_stop=_interrupted(),
        report=typer.echo,
        alarm=_print_alarm,
    )


@landing.command()
def load() -> None:
    """Load verified files into the raw tables, and send heartbeats, until interrupted.

    `lake up` runs it if the pipeline declares feeds. A table that cannot be loaded is tried again every 30 seconds.
    """
    from lake_assets.landing.continuous import load_feeds

    service = _open_service_with_feeds()
    load_feeds(service, on_loaded=_print_loaded, should_stop=_interrupted(), report=typer.echo, alarm=_print_alarm)


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
    from lake_assets.landing.manifest import status
    from lake_assets.landing.state import Ledger
    from lake_assets.pages.terminal import landing as views

    manifest = open_zones()[0].manifest
    render(status(manifest), views.SHARDS, as_json=as_json)
    if not as_json:
        for loss in Ledger(manifest).losses():
            typer.echo(views.lost(loss))
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
    for partition, found in SharedState(open_zones()[0].manifest).change_policies(topic, **limits).items():
        seconds_apart = found.max_age_ms / MILLISECONDS
        what = f"{found.max_messages:,} messages, {found.max_bytes:,} bytes or {seconds_apart:g} s"
        typer.echo(f"{topic} partition {partition}: files that begin at offset {found.from_offset} or later: {what}")


landing.command()(landing_files.accept)
landing.command("dead-letters")(landing_files.dead_letters)
landing.command()(landing_files.read)
landing.command()(landing_files.repair)
landing.command()(landing_files.verify)
landing.command()(landing_files.compact)
landing.command()(landing_files.reshard)
landing.command()(landing_files.scrub)
landing.add_typer(landing_files.quarantine, name="quarantine")


def erase_landed_files(done: list[LandedErasure]) -> Elsewhere:
    """Return the part of `lake erase` that erases from landed files. done: receives what it did."""
    from lake_assets.incremental.engine.engine import utc_now
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.erasure import erases_landed

    return erases_landed(settings(), open_pipeline(settings()), utc_now, report=done.append)


def request_erasure(engine: Engine, subject: str, value: str, now: datetime) -> None:
    """Record an erasure for landed files, before anything is deleted: what is sent from then on stays."""
    from lake_assets.incremental.engine.erasures import Erasure
    from lake_assets.landing.erasure import request_erasure

    engine.pipeline.subject(subject)
    engine.erasures.rows()  # checks the key
    if not value.strip():
        return  # the erasure refuses it
    erasure = Erasure(subject, engine.erasures.hash(subject, value), now, "requested")
    request_erasure(settings(), engine.pipeline, erasure, now=now)


def searched_folder() -> FileSource:
    """Return the landed files that `lake erasure certify` searches."""
    from lake_assets.landing.erasure import landed_folder

    return landed_folder(settings())


def _interrupted() -> Callable[[], bool]:
    """Return a function that reports whether the process has received SIGINT or SIGTERM since this call."""
    received: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda caught, _: received.append(caught))
    return lambda: bool(received)


def _print_loaded(batch: Loaded) -> None:
    from lake_assets.pages.terminal import landing as views

    typer.echo(views.loaded(batch))


def _print_alarm(what: str) -> None:
    typer.echo(what, err=True)


def _show_landed(tailers: Sequence[ZoneTailer]) -> None:
    """Print what zones have landed, and exit with 1 if something of them stopped."""
    for tailer in tailers:
        typer.echo(f"zone {tailer.zone}: {tailer.messages:,} messages read, {tailer.files:,} files closed")
    if any(tailer.stopped or tailer.not_refetched for tailer in tailers):
        raise typer.Exit(1)


def _open_service_with_feeds() -> LandingService:
    _declared_feeds()
    return open_service()


def _declared_feeds() -> tuple[Feed, ...]:
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.landing.messages import TO_HAVE_FEEDS, feeds

    found = settings()
    declared = feeds(open_pipeline(found), prefix=found.landing_prefix, max_bytes=found.landing_message_bytes)
    if not declared:
        raise UsageError("No raw table of the pipelines is landed from Kafka.", remedy=TO_HAVE_FEEDS)
    return declared
