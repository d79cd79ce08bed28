"""`lake engagement`: the engagement lakes on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.settings import settings

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

    from lake_assets.engagement.maintenance.reclaim import Reclaimed
    from lake_assets.engagement.model.lake import StreamName
    from lake_assets.engagement.model.tables import LakeTables

engagement = typer.Typer(help="The engagement lakes: a turn of a stream, and how far each is.", no_args_is_help=True)
LakeName = Annotated[str, typer.Argument(metavar="LAKE", help="a lake, such as email_event")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@engagement.command()
def init(
    lake: LakeName,
    orgs: Annotated[list[str] | None, typer.Option("--org", help="an org whose messages are taken; repeatable")] = None,
    ttl_days: Annotated[int | None, typer.Option(help="that these orgs keep engagements; else as before")] = None,
    partitions: Annotated[int, typer.Option(help="of topics that are not there yet")] = 4,
) -> None:
    """Create the tables and topics of LAKE that are not there yet, and make orgs known. Safe to repeat."""
    from lake_assets.connections.spark import open_spark

    tables = _engagement_tables(lake)
    tables.create(open_spark(settings()))
    if orgs and ttl_days is not None:
        tables.register_orgs(dict.fromkeys(orgs, ttl_days))
    elif orgs:
        tables.add_orgs(orgs)
    _create_topics(tables, partitions)
    typer.echo(f"{lake} is ready.")


@engagement.command()
def simulate(
    lake: LakeName,
    orgs: Annotated[int, typer.Option(help="how many, of very different size")] = 20,
    people: Annotated[int, typer.Option(help="of all orgs together")] = 2_000,
    touches: Annotated[int, typer.Option(help="emails and calls; what follows from them comes on top")] = 5_000,
    hours: Annotated[int, typer.Option(help="that they are spread over")] = 24,
    start: Annotated[str, typer.Option(help="the first of these hours")] = "2026-01-01-00:00",
    seed: Annotated[int, typer.Option(help="another seed has other orgs; the same one sends the same again")] = 1,
    partitions: Annotated[int, typer.Option(help="of topics that are not there yet")] = 4,
) -> None:
    """Send made-up engagement and requests to the topics of LAKE, and make the orgs known."""
    from lake_assets.demo.engagement_simulator import Simulation, generate, org_names, send

    simulation = Simulation(seed=seed, start=start, hours=hours, orgs=orgs, people=people, touches=touches)
    tables = _engagement_tables(lake)
    tables.add_orgs(org_names(simulation))
    _create_topics(tables, partitions)
    for topic, count in sorted(send(_kafka(), generate(simulation, tables.lake)).items()):
        typer.echo(f"sent {count:,} messages to {topic}")


@engagement.command()
def ingest(lake: LakeName, as_json: AsJson = False) -> None:
    """Take a turn of the ingestion of LAKE: messages become rows, dead letters and notifications."""
    _take_turn(lake, "ingestion", as_json=as_json)


@engagement.command()
def mutate(lake: LakeName, as_json: AsJson = False) -> None:
    """Take a turn of the mutation of LAKE: ids are converted, merged and deleted as requested."""
    _take_turn(lake, "mutation", as_json=as_json)


@engagement.command()
def retain(lake: LakeName, as_json: AsJson = False) -> None:
    """Take a turn of the retention of LAKE: what an org keeps no longer is deleted, and people as requested."""
    _take_turn(lake, "retention", as_json=as_json)


@engagement.command()
def maintain(lake: LakeName, as_json: AsJson = False) -> None:
    """Take a turn of maintenance of LAKE: files are written anew, sorted, and what no version needs is removed."""
    from lake_assets.engagement.maintenance import maintain as maintenance
    from lake_assets.pages import terminal, terminal_engagement

    found, tables = settings(), _engagement_tables(lake)
    with _spark_and_zookeeper() as (spark, zk):
        done = maintenance.take_turn(tables, spark, zk, max_wait=found.turn_seconds, retain_hours=found.retain_hours)
    typer.echo(terminal.as_json(done) if as_json else f"{lake}: {terminal_engagement.maintained(done)}")


@engagement.command()
def reclaim(
    lake: LakeName,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask: no process of the lake runs, on any machine")] = False,
    as_json: AsJson = False,
) -> None:
    """Let LAKE go on with another ZooKeeper than before, or one that lost its data: else it refuses every claim.

    Only while no process of the lake runs, on any machine: one that still holds the lock of the ZooKeeper before could
    write between the turns of the new one. A batch that is open is gone on with first.
    """
    from lake_assets.connections.zookeeper import SESSION_SECONDS
    from lake_assets.engagement.maintenance.reclaim import reclaim
    from lake_assets.pages import terminal

    tables = _engagement_tables(lake)
    if not yes:
        typer.confirm(f"Does no process of {lake} run, on any machine?", abort=True)
    with _spark_and_zookeeper() as (spark, zk):
        done = reclaim(tables, spark, zk, timeout=2 * SESSION_SECONDS)
    typer.echo(terminal.as_json(done) if as_json else f"{lake}: {reclaimed(done)}")


def reclaimed(done: Reclaimed) -> str:
    """What was put right, in words."""
    token = f"token {done.token} is there instead of {done.before}" if done.replaced else "its claim is not in the way"
    return f"{token}; {f'{done.next} goes on with its batch' if done.next else 'no batch is open'}"


def certify(org: str, who_id: str, *, as_json: bool) -> bool:
    """What `lake erasure certify org ORG ID` does: print where the id is in the lakes. Whether it is nowhere."""
    from lake_assets.engagement.erasure.certificate import certify
    from lake_assets.engagement.model.lakes import LAKES
    from lake_assets.engagement.model.tables import folder
    from lake_assets.pages import terminal_engagement, terminal_erasure

    with terminal_erasure.bar(shown=not as_json) as progress:
        found = certify(folder(settings()), LAKES, org, who_id, _kafka(), progress=progress)
    if as_json:
        typer.echo(terminal_erasure.as_json(found))
        return found.nowhere
    terminal_engagement.certificate(found)
    return found.nowhere


@engagement.command()
def metrics(
    lake: LakeName,
    orgs: Annotated[list[str] | None, typer.Option("--org", help="compute all of its metrics anew; repeatable")] = None,
    as_json: AsJson = False,
) -> None:
    """Bring the metrics of LAKE up to date: the days of orgs that notifications since the last time name."""
    from lake_assets.connections.spark import open_spark
    from lake_assets.engagement.metrics.refresh import Metrics
    from lake_assets.pages import terminal

    done = Metrics(_engagement_tables(lake), open_spark(settings())).refresh(orgs or ())
    if as_json:
        typer.echo(terminal.as_json(done))
        return
    cells = "everything" if done.partitions is None else f"{done.partitions} days of orgs"
    typer.echo(f"{lake}: {cells} computed anew; the metrics show version {done.cursor}")


@engagement.command()
def dashboard(
    lake: LakeName,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="default: <lake>.html in the home", dir_okay=False)
    ] = None,
    orgs: Annotated[list[str] | None, typer.Option("--org", help="show this org alone; repeatable")] = None,
) -> None:
    """Make one HTML page of the metrics of LAKE, with filters and charts. Starts no Spark, changes nothing."""
    from lake_assets.engagement.metrics.refresh import metrics_cursor, read_metrics
    from lake_assets.pages import dashboard, page

    tables = _engagement_tables(lake)
    made = dashboard.page(read_metrics(tables, orgs or ()), lake=lake, version=metrics_cursor(tables))
    typer.echo(f"The dashboard is in {page.write(made, out or settings().home / f'{lake}.html')}")


@engagement.command()
def status(lake: LakeName, as_json: AsJson = False) -> None:
    """Show how far the streams of LAKE are. Starts no Spark, changes nothing."""
    from lake_assets.engagement.model.lake import STREAMS
    from lake_assets.engagement.monitoring.status import stream_status
    from lake_assets.pages import terminal

    found = [stream_status(_engagement_tables(lake), name, _kafka()) for name in STREAMS]
    if as_json:
        typer.echo(terminal.as_json(found))
        return
    for s in found:
        state = f"batch {s.batch_id or '-'}, unfinished: {', '.join(s.unfinished) or 'nothing'}, {s.lag} offsets behind"
        typer.echo(f"{s.app_name:<26} {state}")


def _take_turn(lake: str, name: StreamName, *, as_json: bool) -> None:
    from lake_assets.engagement.streams.turn import coordinator, open_stream, take_turn
    from lake_assets.pages import terminal

    found, servers = settings(), _kafka()
    with _spark_and_zookeeper() as (spark, zk):
        stream = open_stream(name, _engagement_tables(lake), spark, servers)
        coordinated = coordinator(stream, zk, spark, timeout=found.turn_seconds)
        report = take_turn(stream, coordinated, max_wait=found.turn_seconds)
    if as_json:
        typer.echo(terminal.as_json(report))
    elif report.batch is None:
        typer.echo(f"{stream.app_name}: no batch was due.")
    else:
        versions = {name: commit.version if commit else "-" for name, commit in report.batch.commits.items()}
        told = ", ".join(f"{name} version {version}" for name, version in versions.items())
        dropped = f"; {report.batch.dropped} messages dropped" if report.batch.dropped else ""
        typer.echo(f"{stream.app_name}: batch {report.batch.batch.batch_id}: {told}{dropped}")


@contextmanager
def _spark_and_zookeeper() -> Iterator[tuple[SparkSession, KazooClient]]:
    """What a turn needs. ZooKeeper is asked for first: Spark takes longer to start."""
    from lake_assets.connections.addresses import required, zookeeper_address
    from lake_assets.connections.spark import open_spark
    from lake_assets.coordination import zookeeper_client

    hosts = required(zookeeper_address(settings()), "ZooKeeper")
    spark = open_spark(settings())
    with zookeeper_client(hosts) as zk:
        yield spark, zk


def _create_topics(tables: LakeTables, partitions: int) -> None:
    from lake_assets.engagement.model.kafka_topic import KafkaTopic
    from lake_assets.engagement.model.lake import STREAMS

    for name in STREAMS:
        if KafkaTopic(_kafka(), tables.lake.topic(name)).create(partitions):
            typer.echo(f"created the topic {tables.lake.topic(name)}")


def _engagement_tables(lake: str) -> LakeTables:
    from lake_assets.engagement.model.lakes import lake_named
    from lake_assets.engagement.model.tables import open_tables

    return open_tables(settings(), lake_named(lake))


def _kafka() -> str:
    from lake_assets.connections.addresses import kafka_address, required

    return required(kafka_address(settings()), "Kafka")
