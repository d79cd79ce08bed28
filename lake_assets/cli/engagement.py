"""`lake engagement`: the engagement lakes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lake_assets.base.hours import to_the_second
from lake_assets.cli.common import (
    AsJson,
    OutputFile,
    Partitions,
    Port,
    Serve,
    end_when_interrupted,
    kafka_servers,
    zookeeper_hosts,
)
from lake_assets.cli.render import (
    Column,
    Part,
    TableView,
    counted,
    print_json,
    print_rows,
    render,
    show,
    to_json,
)
from lake_assets.errors import ErrorText
from lake_assets.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kazoo.client import KazooClient
    from pyspark.sql import SparkSession

    from lake_assets.engagement.dead_letters import Accepted, Letters
    from lake_assets.engagement.id_graph import Component, ComponentSize, Move
    from lake_assets.engagement.lake import StreamName
    from lake_assets.engagement.maintenance import MaintenanceReport, Reclaimed
    from lake_assets.engagement.metrics import Refresh
    from lake_assets.engagement.monitoring import StreamStatus
    from lake_assets.engagement.notifications import BatchEffect, Changes
    from lake_assets.engagement.tables import LakeTables
    from lake_assets.engagement.turn import TurnReport

engagement = typer.Typer(help="Engagement lakes: run their streams, and show their state.", no_args_is_help=True)
LakeName = Annotated[str, typer.Argument(metavar="LAKE", help="A lake, such as email_event.")]


@engagement.command()
def init(
    lake: LakeName,
    orgs: Annotated[
        list[str] | None, typer.Option("--org", help="An org whose messages LAKE accepts. Can be repeated.")
    ] = None,
    ttl_days: Annotated[
        int | None, typer.Option(help="The days that these orgs keep engagements. Default: unchanged.")
    ] = None,
    partitions: Partitions = 4,
) -> None:
    """Create the missing tables and topics of LAKE, and register orgs. Safe to repeat."""
    from lake_assets.connections.spark import open_spark

    tables = _open_tables(lake)
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
    orgs: Annotated[int, typer.Option(help="The number of orgs. Their sizes differ.", min=1)] = 20,
    people: Annotated[int, typer.Option(help="The number of people, in all orgs together.", min=0)] = 2_000,
    touches: Annotated[int, typer.Option(help="The number of emails and calls. Replies are extra.", min=0)] = 5_000,
    hours: Annotated[int, typer.Option(help="The number of simulated hours.", min=1)] = 24,
    start: Annotated[str, typer.Option(help="The first simulated hour.")] = "2026-01-01-00:00",
    seed: Annotated[int, typer.Option(help="The same seed sends the same messages again.")] = 1,
    partitions: Partitions = 4,
) -> None:
    """Send simulated engagement and requests to the topics of LAKE, and register the orgs."""
    from lake_assets.demo.engagement_simulator import Simulation, generate, org_names, send

    simulation = Simulation(seed=seed, start=start, hours=hours, orgs=orgs, people=people, touches=touches)
    tables = _open_tables(lake)
    tables.add_orgs(org_names(simulation))
    _create_topics(tables, partitions)
    sent = send(kafka_servers(), generate(simulation, tables.lake))
    for topic, count in sorted(sent.items()):
        typer.echo(f"sent {count:,} messages to {topic}")


@engagement.command()
def run(
    lake: LakeName,
    streams: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STREAM]...", help="The streams: ingestion, mutation, retention. Default: all."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Take the turns that are due, then exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run streams of LAKE until interrupted, by Spark Structured Streaming in this process; a line for each batch.

    With --once, take their turns until all messages that are there now are read. A line has the rows, dead letters,
    requests and ids that a turn moved, and the seconds of each step.

    `lake up` runs it for each lake that is declared as `continuous`. Turns that Dagster or another process takes
    meanwhile do no harm. What fails is tried again. A second interruption ends it without waiting for the turn that has
    begun, which the stream's next turn continues.
    """
    from lake_assets.engagement.lake import STREAMS
    from lake_assets.errors import UsageError, suggestion

    for name in streams or ():
        if name not in STREAMS:
            raise UsageError(f"There is no stream {name!r}.", remedy=suggestion(name, STREAMS))
    chosen = [name for name in STREAMS if name in (streams or STREAMS)]
    if once:
        _run_once(lake, chosen, as_json=as_json)
    else:
        _run_on(lake, chosen, as_json=as_json)


@engagement.command()
def pause(lake: LakeName) -> None:
    """Let no turn of LAKE begin, of no process, until it is resumed. A turn that has begun ends first.

    Sensors request none, and `lake engagement status` and `lake doctor` say so. Erasures wait, too.
    """
    tables = _open_tables(lake)
    since = tables.paused_since
    if since is None:
        since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        tables.set_paused(since)
    typer.echo(f"{lake} is paused since {since}.")


@engagement.command()
def resume(lake: LakeName) -> None:
    """Let turns of LAKE begin again."""
    tables = _open_tables(lake)
    tables.set_paused(None)
    typer.echo(f"{lake} goes on with its next turns.")


@engagement.command()
def ingest(lake: LakeName, as_json: AsJson = False) -> None:
    """Run a turn of the ingestion of LAKE: write messages as rows, dead letters and notifications."""
    _take_turn(lake, "ingestion", as_json=as_json)


@engagement.command()
def mutate(lake: LakeName, as_json: AsJson = False) -> None:
    """Run a turn of the mutation of LAKE: convert, merge and delete ids as requested."""
    _take_turn(lake, "mutation", as_json=as_json)


@engagement.command()
def retain(lake: LakeName, as_json: AsJson = False) -> None:
    """Run a turn of the retention of LAKE: delete engagements that are too old, and people as requested."""
    _take_turn(lake, "retention", as_json=as_json)


@engagement.command()
def maintain(lake: LakeName, as_json: AsJson = False) -> None:
    """Run a turn of the maintenance of LAKE: rewrite files sorted, and remove files that no version needs."""
    from lake_assets.engagement import maintenance

    found = settings()
    tables = _open_tables(lake)
    tables.refuse_if_paused()
    retain_hours = tables.lake.retain_hours or found.retain_hours
    with _spark_and_zookeeper() as (spark, zk):
        done = maintenance.take_turn(tables, spark, zk, max_wait=found.turn_seconds, retain_hours=retain_hours)
    render(done, lambda report: [f"{lake}: {maintained(report)}"], as_json=as_json)


@engagement.command()
def reclaim(
    lake: LakeName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: no process of LAKE runs on any machine.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let LAKE continue after ZooKeeper was replaced or lost its data. Without it, LAKE refuses every claim.

    Run it only while no process of LAKE runs on any machine. A process that still holds a lock of the previous
    ZooKeeper could write between the turns of the new one. If a batch is open, its stream gets the first turn.
    """
    from lake_assets.connections.zookeeper import SESSION_SECONDS
    from lake_assets.engagement.maintenance import reclaim

    tables = _open_tables(lake)
    if not yes:
        typer.confirm(f"Is it certain that no process of {lake} runs on any machine?", abort=True)
    with _spark_and_zookeeper() as (spark, zk):
        done = reclaim(tables, spark, zk, timeout=2 * SESSION_SECONDS)
    render(done, lambda report: [f"{lake}: {reclaimed(report)}"], as_json=as_json)


@engagement.command("dead-letters")
def dead_letters(
    lake: LakeName,
    send_again: Annotated[
        bool, typer.Option("--send-again", help="Send those that were wrong to their topics again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the dead letters of LAKE by reason: messages that make no row. Or send them again, after a correction.

    Starts no Spark. Messages that are repeated, replaced, or of an erased person, are never sent again.
    """
    from lake_assets.engagement import dead_letters

    tables = _open_tables(lake)
    if send_again:
        count = dead_letters.send_again(tables, kafka_servers())
        typer.echo(f"{lake}: {count:,} messages sent again; the next turns read them.", err=as_json)
    render(dead_letters.dead_letters(tables), letters, as_json=as_json)


@engagement.command()
def accept(
    lake: LakeName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Accept that messages of LAKE are lost, and let its streams go on with what Kafka has.

    Kafka has removed messages before a stream has read them, a topic was created again, or LAKE names another topic
    than before. What is lost is recorded in the table dead_letter. Meanwhile the other streams go on.
    """
    from lake_assets.engagement.dead_letters import accept, lost_messages

    tables, servers = _open_tables(lake), kafka_servers()
    with _spark_and_zookeeper() as (spark, zk):
        found = lost_messages(tables, spark, servers)
        if found and not yes:
            for line in lost(found, done=False):
                typer.echo(line, err=True)
            typer.confirm("Is it accepted that they are never read?", abort=True, err=True)
        done = accept(tables, spark, zk, servers, timeout=settings().turn_seconds) if found else []
    render(done, lambda accepted: lost(accepted, done=True), as_json=as_json)


@engagement.command()
def changes(
    lake: LakeName,
    since: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="The cursor that was printed last. Default: all changes.")
    ] = None,
    org: Annotated[str | None, typer.Option(help="Show only the changes of this org.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the engagements of LAKE that were inserted, updated or deleted since CURSOR, and the next cursor.

    Starts no Spark. JSON has all rows, each update as one before and one after it; without --json the first 100 are
    shown.
    """
    from lake_assets.engagement.notifications import read_changes

    found = read_changes(lake, since, org)
    if not as_json:
        show(changed_rows(found))
        return
    rows = (row for batch in found.rows for row in batch.to_pylist())
    head = {"cursor": found.cursor, "version": found.version, "notifications": found.notifications.to_pylist()}
    print_rows(head, rows)


@engagement.command()
def graph(
    lake: LakeName,
    org: Annotated[str, typer.Argument(metavar="ORG", help="An org of LAKE.")],
    identity: Annotated[str | None, typer.Argument(metavar="ID", help="An id that a request names.")] = None,
    column: Annotated[
        str | None, typer.Option(help="The column of the id. Default: the one in which requests name it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw the requests of ORG that are connected with ID: chains, merges, cycles, and where each id ends.

    Without ID, list the groups of connected ids, the largest first. Starts no Spark.
    """
    from lake_assets.engagement import id_graph
    from lake_assets.errors import UsageError, suggestion

    tables = _open_tables(lake)
    if column is not None and column not in tables.lake.ids:
        raise UsageError(f"{lake} has no id column {column!r}.", remedy=suggestion(column, tables.lake.ids))
    if identity is None:
        found = id_graph.components(tables, org, column)
        document = [asdict(size) for size in found]
        if len(tables.lake.ids) == 1:
            document = [{key: value for key, value in size.items() if key != "column"} for size in document]
        render(found, components, as_json=as_json, document=document)
    else:
        render(id_graph.component(tables, org, identity, column), component, as_json=as_json)


@engagement.command()
def metrics(
    lake: LakeName,
    orgs: Annotated[
        list[str] | None, typer.Option("--org", help="Recompute all metrics of this org. Can be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Update the metrics of LAKE: recompute the days of orgs that changed since the last time."""
    from lake_assets.connections.spark import open_spark
    from lake_assets.engagement.metrics import Metrics

    done = Metrics(_open_tables(lake), open_spark(settings())).refresh(orgs or ())
    render(done, lambda refresh: [f"{lake}: {refreshed(refresh)}"], as_json=as_json)


@engagement.command()
def dashboard(
    lake: LakeName,
    out: OutputFile = None,
    orgs: Annotated[list[str] | None, typer.Option("--org", help="Show only this org. Can be repeated.")] = None,
    serve: Serve = False,
    port: Port = 0,
) -> None:
    """Write one HTML page of the metrics of LAKE, with filters and charts. Starts no Spark and changes nothing."""
    from lake_assets.cli.report import serve_page
    from lake_assets.connections.addresses import dashboard_file, recorded_report
    from lake_assets.pages.dashboard import page_of_lake
    from lake_assets.pages.page import write

    tables = _open_tables(lake)
    if serve:
        serve_page(
            lambda: page_of_lake(tables, orgs or ()),
            port,
            name="The dashboard",
            command=f"lake engagement dashboard {lake} --serve",
            recorded=partial(recorded_report, settings().home, name=dashboard_file(lake)),
        )
        return
    file = write(page_of_lake(tables, orgs or ()), out or settings().home / f"{lake}.html")
    typer.echo(f"The dashboard is in {file}")


@engagement.command()
def status(lake: LakeName, as_json: AsJson = False) -> None:
    """Show the last batch of each stream of LAKE, and how far it is behind. Starts no Spark and changes nothing."""
    from lake_assets.engagement.monitoring import lake_status

    found = lake_status(_open_tables(lake), kafka_servers())
    render(found, streams, as_json=as_json)


SHOWN_CHARACTERS = 120
"""Of the text of a message."""

SHOWN_ROWS = 100
"""Of changed rows, of which an update has two, and of requests and components."""

STREAMS: TableView[StreamStatus] = TableView(
    (
        "stream=app_name",
        Column("batch", lambda stream: "-" if stream.batch_id is None else str(stream.batch_id), right=True),
        Column("unfinished", lambda stream: ", ".join(stream.unfinished) or "-"),
        "offsets behind=lag",
        "repeated",
        Column("its last batch", lambda stream: "-" if stream.effect is None else effect(stream.effect)),
    )
)


def streams(found: Sequence[StreamStatus]) -> Iterator[Part]:
    """Show the streams, and what to do about each whose batch fails."""
    yield from STREAMS(found)
    paused = {stream.paused_since for stream in found} - {None}
    for since in paused:
        yield f"Paused since {since}: no turn begins until `lake engagement resume`."
    for stream in found:
        if stream.problem is not None:
            yield str(ErrorText(f"{stream.problem}.", stream.remedy or ""))


def turn(app_name: str, report: TurnReport) -> str:
    """Return the line of a turn that a stream took."""
    if report.batch is None:
        return f"{app_name}: no batch was due."
    parts = [] if report.effect is None else [effect(report.effect)]
    if report.batch.dropped:
        parts.append(f"{counted(report.batch.dropped, 'message')} dropped")
    if report.batch.repeated:
        parts.append(f"{counted(report.batch.repeated, 'message')} repeated")
    steps = ", ".join(f"{step} {took:.1f}" for step, took in report.seconds.items())
    parts.append(f"{sum(report.seconds.values()):.1f} s ({steps})")
    return f"{app_name}: batch {report.batch.batch.batch_id}: {'; '.join(parts)}"


def effect(done: BatchEffect) -> str:
    """Return what a batch has done, in words."""
    from lake_assets.engagement.notifications import collapsed

    rows = [f"{count:,} {name}" for name in ("inserted", "updated", "deleted") if (count := getattr(done, name))]
    letters = f"; {counted(done.dead_letters, 'dead letter')}" if done.dead_letters else ""
    requests = f"{collapsed(done)}: " if done.requests else ""
    return f"{requests}{', '.join(rows) or 'no row changed'}{letters}"


def maintained(done: MaintenanceReport) -> str:
    """Return what maintenance did, in words."""
    before = done.before
    after = done.after
    removed = sum(done.removed.values())
    files = f"{before.files:,} files ({before.bytes:,} bytes) are now {after.files:,} ({after.bytes:,} bytes)"
    kept = "no old version is kept"
    if done.kept_hours:
        kept = f"old versions stay readable for {done.kept_hours} hours"
    return f"{done.orgs} orgs compacted, {done.sorted_orgs} sorted; {files}; {removed:,} files removed; {kept}"


def reclaimed(done: Reclaimed) -> str:
    """Return what `reclaim` corrected, in words."""
    token = "the claim needs no change"
    if done.replaced:
        token = f"token {done.token} replaces {done.before}"
    batch = "no batch is open"
    if done.next:
        batch = f"{done.next} continues its open batch"
    return f"{token}; {batch}"


def lost(found: Sequence[Accepted], *, done: bool) -> Iterator[Part]:
    """Show what streams have lost, and what becomes of it."""
    if not found:
        yield "Nothing is lost: each stream finds its next message in Kafka."
    for stream in found:
        yield f"{stream.stream}: {stream.problem}"
        for each in stream.lost:
            until = "on" if each.end is None else f"to {each.end} (exclusive)"
            is_lost = "is lost" if done else "would be lost"
            yield f"  {each.topic}, partition {each.partition}, from offset {each.first} {until} {is_lost}"
        if stream.stream == "retention" and stream.lost:
            yield "  Requests of erasure may be among them. Send those again that were not executed."


CHANGED: TableView[dict[str, Any]] = TableView(
    (
        Column("version", lambda row: str(row["_commit_version"]), right=True),
        Column("change", lambda row: row["_change_type"].replace("_", " ")),
        "org=org_id",
        "engagement=engagement_id",
        "engaged at",
        "kind",
        "id=who_id",
    )
)


def changed_rows(found: Changes) -> Iterator[Part]:
    """Show the first changed rows, their numbers, and the next cursor."""
    rows = (row for batch in found.rows for row in batch.to_pylist())
    first = list(islice(rows, SHOWN_ROWS))
    if first:
        yield from CHANGED(first)
    told = {name: sum(found.notifications[name].to_pylist()) for name in ("inserted", "updated", "deleted")}
    yield ", ".join(f"{count:,} {name}" for name, count in told.items()) + f"; the next cursor is {found.cursor}"
    if next(rows, None) is not None:
        yield f"Only the first {SHOWN_ROWS} rows are shown; --json prints all."


COMPONENTS: TableView[ComponentSize] = TableView(
    ("column", "connected with=id", "ids", "requests"),
    empty="No request is known.",
)


def components(found: Sequence[ComponentSize]) -> Iterator[Part]:
    """Show the largest components of an org."""
    yield from COMPONENTS(found[:SHOWN_ROWS])
    if len(found) > SHOWN_ROWS:
        yield f"{len(found) - SHOWN_ROWS:,} more are smaller; --json lists all."


def component(found: Component) -> Iterator[Part]:
    """Draw a component, then its requests in order of time, and where rows of each id end."""
    from networkx import generate_network_text

    from lake_assets.engagement.id_graph import digraph

    parts = [counted(len(found.ids), "id"), counted(len(found.requests), "request")]
    parts.append(f"the longest chain has {counted(found.longest_chain, 'step')}")
    yield ", ".join(parts)
    if found.merges:
        yield f"several ids move to: {', '.join(found.merges[:SHOWN_ROWS])}"
    for cycle in found.cycles[:SHOWN_ROWS]:
        yield f"a cycle: {', '.join(cycle[:SHOWN_ROWS])}"
    shown = found.requests[:SHOWN_ROWS]
    yield from generate_network_text(digraph((each.old_id, each.new_id) for each in shown))
    yield from REQUESTS(shown)
    for end in found.ends[:SHOWN_ROWS]:
        after = "" if end.after is None else f" after {to_the_second(end.after)}"
        goal = "are deleted" if end.new_id is None else f"end at {end.new_id}"
        of_day = f" of {end.day}" if end.day else ""
        yield f"{end.old_id}: rows{of_day} there{after} until {to_the_second(end.until)} {goal}"
    if len(found.requests) > SHOWN_ROWS:
        yield f"Only the first {SHOWN_ROWS} requests are shown; --json has all."


REQUESTS: TableView[Move] = TableView(
    ("executed at", "op", "from=old_id", "to=new_id", "rows of=engagement_date", "status", "request=request_id")
)


def letters(found: Sequence[Letters]) -> Iterator[Part]:
    """Show the dead letters by reason, each with an example."""
    if not found:
        yield "There is no dead letter."
    for each in found:
        first, last = (f"p{partition}:{offset}" for partition, offset in (each.first, each.last))
        places = first if first == last else f"{first} .. {last}"
        yield f"{each.topic}: {counted(each.count, 'message')}, {each.reason} ({places})"
        if each.example is not None:
            yield f"  {each.example[:SHOWN_CHARACTERS]}"
    if any(each.can_be_sent for each in found):
        yield "→ Correct what is wrong, then run the command with --send-again; or send corrected messages."


def refreshed(done: Refresh) -> str:
    """Return what a refresh of the metrics did, in words."""
    computed = "all metrics" if done.partitions is None else f"{done.partitions} days of orgs"
    return f"{computed} recomputed; the metrics show version {done.cursor}"


def _run_on(lake: str, names: list[StreamName], *, as_json: bool) -> None:
    from lake_assets.engagement.turn import run_streams

    found, tables, stop = settings(), _open_tables(lake), threading.Event()

    def print_turn(name: StreamName, report: TurnReport) -> None:
        if as_json:
            typer.echo(json.dumps({"stream": name, **json.loads(to_json(report))}))
        elif report.batch is not None:
            typer.echo(turn(tables.lake.app_name(name), report))

    def print_error(name: StreamName, text: str) -> None:
        typer.echo(f"{tables.lake.app_name(name)}: {text}", err=True)

    def start() -> None:
        # Until now, an interrupt ends the command at once.
        end_when_interrupted("Turns that have begun are ended.", stop)
        typer.echo(f"{lake} runs on: {', '.join(names)}.", err=as_json)

    run_streams(
        found,
        tables,
        {name: tables.lake.seconds.get(name, getattr(found, f"{name}_seconds")) for name in names},
        servers=kafka_servers(),
        hosts=zookeeper_hosts(),
        stop=stop,
        started=start,
        on_turn=print_turn,
        on_error=print_error,
    )


def _run_once(lake: str, names: list[StreamName], *, as_json: bool) -> None:
    from lake_assets.engagement.turn import take_due_turns

    tables, seconds = _open_tables(lake), settings().turn_seconds
    tables.refuse_if_paused()
    servers = kafka_servers()
    taken = []
    try:
        with _spark_and_zookeeper() as (spark, zk):
            for stream, report in take_due_turns(tables, names, spark, zk, servers, max_wait=seconds):
                taken.append({"stream": stream.name, **asdict(report)})
                if not as_json:
                    typer.echo(turn(stream.app_name, report))
    finally:
        if as_json:
            print_json(taken)


def _take_turn(lake: str, name: StreamName, *, as_json: bool) -> None:
    from lake_assets.engagement.turn import coordinator, open_stream, take_turn

    seconds = settings().turn_seconds
    tables = _open_tables(lake)
    tables.refuse_if_paused()
    servers = kafka_servers()
    with _spark_and_zookeeper() as (spark, zk):
        stream = open_stream(name, tables, spark, servers)
        report = take_turn(stream, coordinator(stream, zk, spark, timeout=seconds), max_wait=seconds)
    render(report, lambda taken: [turn(stream.app_name, taken)], as_json=as_json)


@contextmanager
def _spark_and_zookeeper() -> Iterator[tuple[SparkSession, KazooClient]]:
    """Open what a turn needs. ZooKeeper's address is checked first, because Spark takes longer to start."""
    from lake_assets.connections.spark import open_spark
    from lake_assets.coordination import zookeeper_client

    hosts = zookeeper_hosts()
    spark = open_spark(settings())
    with zookeeper_client(hosts) as zk:
        yield spark, zk


def _create_topics(tables: LakeTables, partitions: int) -> None:
    from lake_assets.engagement.lake import STREAMS
    from lake_assets.engagement.topics import KafkaTopic

    for name in STREAMS:
        if KafkaTopic(kafka_servers(), tables.lake.topic(name)).create(partitions):
            typer.echo(f"created the topic {tables.lake.topic(name)}")


def _open_tables(lake: str) -> LakeTables:
    from lake_assets.engagement.lakes import lake_named
    from lake_assets.engagement.tables import open_tables

    return open_tables(settings(), lake_named(settings(), lake))
