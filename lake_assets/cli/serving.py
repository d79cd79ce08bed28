"""`lake serving`: served tables on the command line."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from lake_assets.errors import UsageError
from lake_assets.settings import settings

if TYPE_CHECKING:
    from lake_assets.incremental.erasure.certificate import FileSource
    from lake_assets.serving.erasure.erase import OutdatedSegments
    from lake_assets.serving.served_tables import Serving
    from lake_assets.serving.store.groups import PushGroup

serving = typer.Typer(help="Served tables: whole snapshots, pushed, queried and taken back.", no_args_is_help=True)
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="a served table, such as account_state")]
EntryId = Annotated[str, typer.Argument(metavar="ID", help="of its lineage: `lake serving lineage TABLE`")]
pinot = typer.Typer(
    help="The same for a table of an Apache Pinot cluster: LAKE_PINOT_CONTROLLER.", no_args_is_help=True
)
serving.add_typer(pinot, name="pinot")
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@serving.command()
def push(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="a served table, or a group of LAKE_SERVING_GROUPS")],
    file: Annotated[Path | None, typer.Option(help="push this Parquet file; default: the table's own source")] = None,
    force: Annotated[bool, typer.Option("--force", help="revert a push that is in progress: it has died")] = False,
    as_json: AsJson = False,
) -> None:
    """Push a new snapshot of TABLE: readers see it as a whole, at once. What fails is reverted.

    The tables of a push group are switched together.
    """
    from lake_assets.connections.catalog import open_catalog
    from lake_assets.incremental.execution.engine import utc_now
    from lake_assets.pages import terminal_serving
    from lake_assets.pages.terminal import as_json as to_json
    from lake_assets.serving.store.sources import from_parquet

    as_of, heads = utc_now(), dict[str, str | None]()
    if file:
        tables = {table: from_parquet(file)}
    else:
        catalog = open_catalog(settings())
        readings = {source.name: source.read(catalog) for source in _group(table).sources}
        tables = {name: reading.rows for name, reading in readings.items()}
        heads = {name: reading.head for name, reading in readings.items()}
    with _serving() as found:
        reports = found.writer.push(tables, push_id=uuid4().hex[:12], as_of=as_of, force=force, heads=heads)
    if as_json:
        typer.echo(to_json(reports if len(reports) > 1 else reports[0]))
    else:
        terminal_serving.pushed(reports)


@serving.command("list")
def list_tables(as_json: AsJson = False) -> None:
    """List the served tables: what readers see of each, and what is stored."""
    from lake_assets.pages import terminal_serving
    from lake_assets.pages.terminal import as_json as to_json
    from lake_assets.serving.store.status import table_status

    with _serving() as found:
        listed = [table_status(found.registry, name) for name in found.registry.tables()]
    typer.echo(to_json(listed)) if as_json else terminal_serving.tables(listed)


@serving.command()
def query(
    table: TableName,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="one SELECT from TABLE; other served tables may join it")],
    as_json: AsJson = False,
) -> None:
    """Run a SELECT over TABLE as it is served now."""
    from lake_assets.pages import terminal_serving
    from lake_assets.pages.terminal import as_json as to_json
    from lake_assets.serving.endpoints import query
    from lake_assets.serving.endpoints.sql import tables_of

    if table not in tables_of(sql):
        raise UsageError(f"The query does not ask for {table}.", remedy=f'Write it as "select ... from {table}".')
    with _serving() as found:
        result = query.query(found.broker, sql, found.limits)
    typer.echo(to_json(result)) if as_json else terminal_serving.result(result)


@serving.command()
def lineage(table: TableName, as_json: AsJson = False) -> None:
    """Show the pushes of TABLE, the newest first, and which of them can be reverted."""
    from lake_assets.pages import terminal_serving
    from lake_assets.pages.terminal import as_json as to_json
    from lake_assets.serving.store.status import lineage_status

    with _serving() as found:
        entries = lineage_status(found.registry, table)
    typer.echo(to_json(entries)) if as_json else terminal_serving.lineage(entries)


@serving.command()
def revert(
    table: TableName,
    entry_id: EntryId,
    force: Annotated[bool, typer.Option("--force", help="also a push that is in progress: it has died")] = False,
    later: Annotated[bool, typer.Option("--later", help="and the pushes that came on top of it")] = False,
    others: Annotated[
        list[str] | None, typer.Option("--with", metavar="TABLE=ID", help="another table's, in the same switch")
    ] = None,
) -> None:
    """Go back to what TABLE was before a push. Refused if somebody was erased since."""
    from lake_assets.pages.terminal_serving import counted

    entries, erased_at = _entries([f"{table}={entry_id}", *(others or [])]), _last_erasure()
    with _serving() as found:
        changes = found.writer.revert_all(entries, force=force, later=later, erased_at=erased_at)
    for name, change in changes.items():
        given_up = counted(len(change.deletions), "segment")
        typer.echo(f"{name} is as it was before {entries[name]}; given up: {given_up}.")


@serving.command("clean-up")
def clean_up(table: TableName) -> None:
    """Delete what old pushes of TABLE replaced or left, and what is from before an erasure: one cycle of two."""
    from lake_assets.pages.terminal_serving import counted

    erased_at = _last_erasure()
    with _serving() as found:
        change = found.writer.clean_up(table, retention=found.retention, erased_at=erased_at)
    typer.echo(f"{table}: {counted(len(change.deletions), 'segment')} deleted.")


@serving.command()
def delete(
    table: TableName, segments: Annotated[list[str], typer.Argument(metavar="SEGMENT...", help="by name")]
) -> None:
    """Delete segments of TABLE that nothing needs; refused for what readers see or lineage holds."""
    from lake_assets.pages.terminal_serving import counted

    with _serving() as found:
        change = found.writer.delete(table, segments)
    typer.echo(f"{table}: {counted(len(change.deletions), 'segment')} deleted.")


@serving.command()
def serve() -> None:
    """Answer queries over HTTP on loopback, until interrupted: /query, /tables, /lineage, /health and /docs."""
    import uvicorn

    from lake_assets.serving.endpoints.http import endpoint

    with _serving() as found:
        typer.echo(f"http://127.0.0.1:{settings().serving_port}/docs")
        app = endpoint(found, token=settings().serving_token)
        uvicorn.run(app, host="127.0.0.1", port=settings().serving_port, log_level="warning")


@pinot.command("push")
def pinot_push(
    table: TableName,
    archives: Annotated[list[Path], typer.Argument(metavar="FILE...", help="segments that Pinot built, .tar.gz")],
    force: Annotated[bool, typer.Option("--force", help="revert a push that is in progress: it has died")] = False,
    as_json: AsJson = False,
) -> None:
    """Replace TABLE of the cluster by these segments, in one switch. What fails is reverted."""
    from lake_assets.pages.terminal import as_json as to_json
    from lake_assets.pages.terminal_serving import counted
    from lake_assets.serving.endpoints.pinot import pinot_at

    with pinot_at(settings()) as cluster:
        done = cluster.push(table, archives, force=force)
    if as_json:
        typer.echo(to_json(done))
        return
    typer.echo(f"{table}: {counted(len(done.segments), 'segment')} instead of {len(done.replaced)}.")
    typer.echo(f"To go back: lake serving pinot revert {table} {done.entry_id}")


@pinot.command("list")
def pinot_list(table: TableName, as_json: AsJson = False) -> None:
    """List the segments of TABLE that the cluster's queries see."""
    from lake_assets.pages.terminal import as_json as to_json
    from lake_assets.serving.endpoints.pinot import pinot_at

    with pinot_at(settings()) as cluster:
        found = cluster.segments(table)
    typer.echo(to_json(found) if as_json else "\n".join(found) or "No segments.")


@pinot.command("revert")
def pinot_revert(
    table: TableName,
    entry_id: Annotated[str, typer.Argument(metavar="ID", help="of its lineage, as its push printed it")],
    force: Annotated[bool, typer.Option("--force", help="also a push that is in progress: it has died")] = False,
) -> None:
    """Go back to what TABLE of the cluster was before a push. Not refused across an erasure: the cluster knows none."""
    from lake_assets.serving.endpoints.pinot import pinot_at

    with pinot_at(settings()) as cluster:
        cluster.revert(table, entry_id, force=force)
    typer.echo(f"{table} is as it was before {entry_id}.")


def forget_replaced() -> list[OutdatedSegments]:
    """What served tables have of before the last erasure. Where ZooKeeper is known, what was replaced goes."""
    from lake_assets.connections.addresses import zookeeper_address
    from lake_assets.serving.erasure.erase import delete_replaced, stored_before
    from lake_assets.serving.store.files import SegmentFiles

    erased_at, files = _last_erasure(), SegmentFiles(settings().segments)
    if erased_at is None or not files.tables():
        return []
    if zookeeper_address(settings()) is None:
        return list(stored_before(files, erased_at=erased_at))
    with _serving() as found:
        return delete_replaced(found, erased_at=erased_at)


def searched() -> list[FileSource]:
    """What `lake erasure certify` searches of serving."""
    from lake_assets.errors import ServiceError
    from lake_assets.serving.erasure.certificate import segment_folders

    try:
        with _serving() as found:
            states = found.registry.read(*found.files.tables())
    except ServiceError:  # the files are searched all the same
        states = None
    return list(segment_folders(settings(), states))


def _group(name: str) -> PushGroup:
    from lake_assets.engagement.model.lakes import metrics_locations
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.serving.store.groups import group_named, push_groups
    from lake_assets.serving.store.sources import metrics_sources, pipeline_sources

    found = settings()
    sources = [*pipeline_sources(open_pipeline(found)), *metrics_sources(metrics_locations(found))]
    return group_named(name, push_groups(sources, found.serving_groups))


def _entries(words: list[str]) -> dict[str, str]:
    """Table → entry, of words `TABLE=ID`. `UsageError`."""
    found = dict(word.split("=", 1) for word in words if "=" in word)
    if len(found) < len(words):
        raise UsageError("--with is not TABLE=ID, or names a table again.", remedy="Name each other table once.")
    return found


def _last_erasure() -> datetime | None:
    from lake_assets.connections.catalog import open_catalog
    from lake_assets.incremental.metadata.erasure_registry import last_erasure

    return last_erasure(open_catalog(settings()))


def _serving() -> AbstractContextManager[Serving]:
    from lake_assets.connections.addresses import required, zookeeper_address
    from lake_assets.incremental.execution.engine import utc_now
    from lake_assets.serving.served_tables import serving_at

    hosts = required(zookeeper_address(settings()), "ZooKeeper")
    return serving_at(hosts, settings(), clock=utc_now)
