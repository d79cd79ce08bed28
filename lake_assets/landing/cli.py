"""`lake landing`: from Kafka through two zones into the raw tables, on the command line."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.landing.delivery import ZoneTailer
    from lake_assets.landing.loading import Loaded
    from lake_assets.landing.station import Station
    from lake_assets.membership.simulator import Landing

landing = typer.Typer(help="Two zones that check each other, from Kafka to raw tables.", no_args_is_help=True)
Partitions = Annotated[int, typer.Option(help="of topics that are not there yet", min=1)]


@landing.command()
def init(partitions: Partitions = 4) -> None:
    """Create the topics and the raw tables that are not there yet. Safe to repeat."""
    from lake_assets.engagement.kafka import KafkaTopic
    from lake_assets.incremental.tables import create_raw

    station = _station()
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
    from lake_assets.membership.simulator import Population, Simulation, generate

    init(partitions)
    count = sum(_send(one) for one in generate(Simulation(Population(accounts, seed, start, hours))))
    typer.echo(f"sent {count:,} messages")


@landing.command()
def run(
    zone: Annotated[str | None, typer.Option(help="a or b; default: both, one after the other")] = None,
    once: Annotated[bool, typer.Option("--once", help="land what is there now, and end")] = False,
    heartbeats: Annotated[bool, typer.Option(help="send heartbeats, by which files close and hours complete")] = True,
) -> None:
    """Tail the zones and load verified files into the raw tables, until interrupted. For speed, a process a zone."""
    from lake_assets.landing.station import ZONES, run, run_once

    station, zones = _station(), (zone,) if zone else ZONES
    if once:
        if heartbeats:
            station.heart.beat()
        tailers = run_once(station, zones, told=_tell)
    else:
        tailers = run(station, zones, told=_tell, ended=_interrupted(), beats=heartbeats)
    for tailer in tailers:
        _sum_up(tailer)


@landing.command()
def page(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="default: landing.html in the home", dir_okay=False)
    ] = None,
) -> None:
    """Draw the files of both zones as one HTML page, by partition and offset, coloured by what is known of them."""
    from lake_assets.landing.page import page, pictures
    from lake_assets.landing.progress import progress_of

    station = _station()
    entries = station.manifest.entries(stages=("staged", "live"), verdicts=("provisional", "verified", "quarantined"))
    loaded = {feed.topic: progress_of(station.catalog, feed.raw.table, feed.topic).offsets for feed in station.feeds}
    file = (out or settings().home / "landing.html").expanduser().absolute()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(pictures(entries, loaded), now=station.clock()), encoding="utf-8")
    typer.echo(f"The page is in {file}")


def _send(one: Landing) -> int:
    """A landing of the simulator as messages, and its heartbeats behind them; how many messages."""
    from lake_assets.engagement.simulator import send
    from lake_assets.landing.heartbeats import beat
    from lake_assets.membership.simulator import heartbeats, messages

    servers, prefix = _kafka(), settings().landing_prefix
    sent = send(servers, messages(one, prefix=prefix))
    beat(servers, heartbeats(one, prefix=prefix))
    return sent.total()


def _interrupted() -> Callable[[], bool]:
    """Whether somebody has asked to end since."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: asked.append(received))
    return lambda: bool(asked)


def _tell(loaded: Loaded) -> None:
    from lake_assets.incremental.hours import hour_key

    through = loaded.complete_through
    complete = "nothing is complete yet" if through is None else f"complete through {hour_key(through)}"
    dropped = f", {loaded.erased:,} of erased dropped" if loaded.erased else ""
    typer.echo(f"{loaded.table}: {loaded.batch_id}, {loaded.rows:,} rows of zone {loaded.zone}{dropped}; {complete}")


def _sum_up(tailer: ZoneTailer) -> None:
    typer.echo(f"zone {tailer.zone}: {tailer.messages:,} messages read, {tailer.files:,} files closed")
    for place, differ in tailer.stopped.items():
        typer.echo(f"zone {tailer.zone}: stopped at {place.topic} partition {place.partition}: {differ}", err=True)


def _station() -> Station:
    from lake_assets.incremental.engine import utc_now
    from lake_assets.landing.station import Station
    from lake_assets.local.catalog import open_catalog
    from lake_assets.local.platform import open_pipeline

    found = settings()
    return Station(found, _kafka(), open_catalog(found), open_pipeline(found), utc_now)


def _kafka() -> str:
    from lake_assets.local.state import kafka_address, required

    return required(kafka_address(settings()), "Kafka")
