"""`lake serving`: served tables, here and in a Pinot cluster."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lake_assets.cli.common import AsJson, zookeeper_hosts
from lake_assets.cli.render import (
    Column,
    Part,
    TableView,
    counted,
    failed,
    megabytes,
    render,
    succeeded,
    warning,
)
from lake_assets.errors import LakeError, ServiceError, UsageError
from lake_assets.settings import settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from lake_assets.incremental.erasure.certificate import FileSource
    from lake_assets.incremental.operations.health import Problem
    from lake_assets.serving.pinot import PinotPush
    from lake_assets.serving.push import PushReport
    from lake_assets.serving.query import Result
    from lake_assets.serving.served_tables import Serving
    from lake_assets.serving.sources import Source
    from lake_assets.serving.store import EntryStatus, TableStatus
    from lake_assets.serving.upkeep import OutdatedSegments, VerifiedTable


serving = typer.Typer(help="Served tables: push, query and revert whole snapshots of tables.", no_args_is_help=True)
pinot = typer.Typer(
    help="Tables of an Apache Pinot cluster, whose controller LAKE_PINOT_CONTROLLER names.", no_args_is_help=True
)
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A served table, such as account_state.")]
EntryId = Annotated[str, typer.Argument(metavar="ID", help="The id of a push, from `lake serving lineage TABLE`.")]
Controller = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The controller that does it: of a Pinot cluster, or `lake serving serve`. Without a ZooKeeper here, "
        "LAKE_PINOT_CONTROLLER.",
    ),
]
NewSchema = Annotated[bool, typer.Option("--new-schema", help="Push also rows with other columns than readers see.")]
ForcePush = Annotated[
    bool, typer.Option("--force", help="Revert a push that is in progress. Use it after a push died.")
]
ForceRevert = Annotated[
    bool, typer.Option("--force", help="Also revert a push that is in progress. Use it after a push died.")
]


@serving.command()
def push(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A served table, or a group of LAKE_SERVING_GROUPS.")],
    file: Annotated[
        list[Path] | None,
        typer.Option(help="A Parquet file to push. May be repeated: all are one push. Default: the table's source."),
    ] = None,
    force: ForcePush = False,
    new_schema: NewSchema = False,
    controller: Controller = None,
    as_json: AsJson = False,
) -> None:
    """Push a new snapshot of TABLE. Readers see all of it at once. A push that fails is reverted.

    Readers see the new snapshots of all tables of a push group at the same moment.
    """
    from lake_assets.connections.catalog import open_catalog
    from lake_assets.serving.sources import group_named, push_groups
    from lake_assets.serving.store import new_push_id

    address = _controller(controller)
    if address:
        if not file:
            raise UsageError("A push by a controller needs its files.", remedy="Name them: --file rows.parquet.")
        pinot_push(table, file, force=force, new_schema=new_schema, as_json=as_json, controller=address)
        return
    as_of = datetime.now(UTC)
    if file:
        with _open_serving() as found:
            reports = found.writer.push(
                {table: file}, push_id=new_push_id(), as_of=as_of, force=force, new_schema=new_schema, quotas=_quotas()
            )
    else:
        group = group_named(table, push_groups(_sources(), settings().serving_groups))
        catalog = open_catalog(settings())
        with _open_serving() as found:
            of_group = group.push(
                found.writer, catalog, as_of=as_of, force=force, new_schema=new_schema, spark=_running_spark
            )
        reports = [report for _, _, report in of_group]
    render(reports, pushed, as_json=as_json, document=reports if len(reports) > 1 else reports[0])


@serving.command("list")
def list_tables(as_json: AsJson = False) -> None:
    """List the served tables: what readers see of each one, and how much is stored."""
    from lake_assets.serving.store import table_status

    with _open_serving() as found:
        tables = [table_status(found.registry, name) for name in found.registry.tables()]
    render(tables, SERVED, as_json=as_json)


@serving.command()
def query(
    table: TableName,
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT that reads TABLE. It may join other served tables.")
    ],
    as_json: AsJson = False,
) -> None:
    """Run a SELECT on the present snapshot of TABLE."""
    from lake_assets.serving import query
    from lake_assets.serving.query_worker import tables_of

    if table.lower() not in tables_of(sql):
        raise UsageError(f"The query does not read {table}.", remedy=f'Write it as "select ... from {table}".')
    with _open_serving() as found:
        result = query.query(found.broker, sql, found.limits)
    render(result, rows_of, as_json=as_json)


@serving.command()
def lineage(table: TableName, controller: Controller = None, as_json: AsJson = False) -> None:
    """List the pushes of TABLE, newest first, and which of them can be reverted."""
    from lake_assets.serving.store import lineage_status

    address = _controller(controller)
    if address:
        pinot_lineage(table, as_json=as_json, controller=address)
        return
    with _open_serving() as found:
        entries = lineage_status(found.registry, table)
    render(entries, LINEAGE, as_json=as_json)


@serving.command()
def revert(
    table: TableName,
    entry_id: EntryId,
    force: ForceRevert = False,
    later: Annotated[bool, typer.Option("--later", help="Also revert the later pushes of TABLE.")] = False,
    others: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="TABLE=ID", help="Revert a push of another table at the same moment."),
    ] = None,
    controller: Controller = None,
) -> None:
    """Restore the snapshot of TABLE that a push replaced. Refused if a subject was erased since that snapshot."""
    from lake_assets.serving.store import in_sight

    address = _controller(controller)
    if address:
        if later or others:
            raise UsageError("A controller reverts one push at a time.", remedy="Leave out --later and --with.")
        pinot_revert(table, entry_id, force=force, controller=address)
        return
    entries = _entries([f"{table}={entry_id}", *(others or [])])
    erased_at = _last_erasure()
    with _open_serving() as found:
        changes = found.store.revert_all(entries, force=force, later=later, erased_at=erased_at)
        sights = {name: in_sight(found.registry, name) for name in changes}
    for name, change in changes.items():
        segments = counted(len(change.deletions), "segment")
        typer.echo(f"{name} is as it was before {entries[name]}; {segments} no longer used.")
        typer.echo(sights[name])


@serving.command("clean-up")
def clean_up(table: TableName) -> None:
    """Delete segments of TABLE that old pushes replaced or left behind, or that are older than an erasure.

    The first run deletes the segments of an old push, the second one removes the push from the lineage.
    """
    erased_at = _last_erasure()
    with _open_serving() as found:
        change = found.store.clean_up(table, retention=found.retention, erased_at=erased_at)
    typer.echo(f"{table}: {counted(len(change.deletions), 'segment')} deleted.")


@serving.command()
def delete(
    table: TableName,
    segments: Annotated[list[str], typer.Argument(metavar="SEGMENT...", help="The names of the segments.")],
) -> None:
    """Delete unused segments of TABLE. Refused for segments that readers see or that the lineage names."""
    with _open_serving() as found:
        change = found.store.delete(table, segments)
    typer.echo(f"{table}: {counted(len(change.deletions), 'segment')} deleted.")


@serving.command()
def verify(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Default: all served tables.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Restore damaged segments from the table's source, if it has not changed.")
    ] = False,
    copies: Annotated[
        Path | None, typer.Option(help="A copy of LAKE_SERVING_FOLDER from which --repair restores segments first.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read all stored segments and compare their checksums with those registered at their push.

    The exit code is 1 if a segment is damaged, and was not restored.
    """
    from lake_assets.serving.upkeep import verify_table

    if copies and not repair:
        raise UsageError("--copies was given without --repair.", remedy="Add --repair, or leave out --copies.")
    checked = []
    with _open_serving() as found:
        for table in tables or found.registry.tables():
            verified = verify_table(found.registry, found.files, table)
            checked.append(_repaired(found, verified, copies) if repair else verified)
    render(checked, checked_segments, as_json=as_json)
    if any(table.damaged for table in checked):
        raise typer.Exit(1)


@serving.command()
def serve() -> None:
    """Answer queries over HTTP on loopback until interrupted: /query, /tables, /lineage, /health and /docs.

    With LAKE_SERVING_TOKEN, it also pushes and reverts by the calls of a controller of Apache Pinot: /segments.
    """
    from lake_assets.serving.http import endpoint
    from lake_assets.serving.http import serve as serve_http

    found = settings()
    with _open_serving() as opened:
        typer.echo(f"http://127.0.0.1:{found.serving_port}/docs")
        app = endpoint(opened, token=found.serving_token, quotas=_quotas(), erased_at=_last_erasure)
        serve_http(app, port=found.serving_port)


@pinot.command("push")
def pinot_push(
    table: TableName,
    archives: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Segments that Pinot built, .tar.gz; or .parquet."),
    ],
    force: ForcePush = False,
    new_schema: NewSchema = False,
    as_json: AsJson = False,
    controller: Controller = None,
) -> None:
    """Replace the segments of TABLE in the cluster by FILE..., all at once. A push that fails is reverted."""
    from lake_assets.serving.pinot import pinot_at

    with pinot_at(settings(), controller) as cluster:
        done = cluster.push(table, archives, force=force, new_schema=new_schema)
    render(done, pinot_pushed, as_json=as_json)


@pinot.command("list")
def pinot_list(table: TableName, as_json: AsJson = False, controller: Controller = None) -> None:
    """List the segments of TABLE that queries of the cluster see."""
    from lake_assets.serving.pinot import pinot_at

    with pinot_at(settings(), controller) as cluster:
        found = cluster.segments(table)
    render(found, pinot_segments, as_json=as_json)


@pinot.command("lineage")
def pinot_lineage(table: TableName, as_json: AsJson = False, controller: Controller = None) -> None:
    """List the pushes of TABLE in the cluster, newest first, and which of them can be reverted."""
    from lake_assets.serving.pinot import pinot_at

    with pinot_at(settings(), controller) as cluster:
        found = cluster.lineage(table)
    render(found, LINEAGE, as_json=as_json)


@pinot.command("revert")
def pinot_revert(
    table: TableName,
    entry_id: Annotated[str, typer.Argument(metavar="ID", help="The id that the push printed.")],
    force: ForceRevert = False,
    controller: Controller = None,
) -> None:
    """Restore the segments of TABLE that a push replaced. Not refused after an erasure: the cluster records none."""
    from lake_assets.serving.pinot import pinot_at

    with pinot_at(settings(), controller) as cluster:
        cluster.revert(table, entry_id, force=force)
        segments = cluster.segments(table)
    typer.echo(f"{table} is as it was before {entry_id}.")
    typer.echo(f"Readers of {table} see {counted(len(segments), 'segment')}: {', '.join(segments) or 'no rows'}.")


serving.add_typer(pinot, name="pinot")


SERVED: TableView[TableStatus] = TableView(
    (
        "table",
        "segments",
        "rows",
        Column("MB", lambda table: megabytes(table.size_bytes), right=True),
        Column("MB stored", lambda table: megabytes(table.stored_bytes), right=True),
        "as of",
    )
)

LINEAGE: TableView[EntryStatus] = TableView(
    (
        Column("entry", lambda entry: entry.id, whole=True),
        "state",
        "since=timestamp",
        Column("replaced", lambda entry: len(entry.segments_from)),
        Column("brought", lambda entry: len(entry.segments_to)),
        "can be reverted=goes_back",
    )
)


def rows_of(found: Result) -> Iterator[Part]:
    """Show the rows of a query under their columns."""
    columns = [_result_column(number, name) for number, name in enumerate(found.columns)]
    yield from TableView(columns)(found.rows)
    if found.truncated:
        yield f"Only the first {len(found.rows):,} rows are shown: LAKE_QUERY_ROWS."


def from_before(found: Iterable[OutdatedSegments]) -> Iterator[Part]:
    """Show which segments of served tables are older than an erasure, and the commands that remove them."""
    for table in found:
        if table.deleted:
            yield f"  {table.table}: {counted(table.deleted, 'segment')} from before deleted"
        if table.shown is None:
            segments = counted(table.left, "segment")
            yield _to_push(table, f"{segments} from before stored, and no ZooKeeper runs: `lake up`, then")
        elif table.shown:
            yield _to_push(table, f"readers see {counted(table.shown, 'segment')} from before:")
        elif table.left:
            yield _to_push(table, f"{counted(table.left, 'segment')} of a push that did not finish:", option=" --force")


def pushed(reports: Sequence[PushReport]) -> Iterator[Part]:
    """Show what was pushed, and the command that reverts it."""
    from lake_assets.serving.store import way_back

    for report in reports:
        segments = counted(len(report.segments), "segment")
        yield f"{report.table}: {report.rows:,} rows in {segments}, {megabytes(report.size_bytes)} MB."
    first, *others = reports
    together = {other.table: other.entry_id for other in others}
    yield f"To go back: {way_back(first.table, first.entry_id, together)}"


def checked_segments(tables: Sequence[VerifiedTable]) -> Iterator[Part]:
    """Show which segments are damaged, which were restored, and what to do about the others."""
    if not tables:
        yield "No table is served."
    for table in tables:
        segments = counted(table.segments, "segment")
        if table.damaged:
            yield failed(f"{table.table}: {len(table.damaged)} of {segments} damaged")
        else:
            yield succeeded(f"{table.table}: {segments} as pushed")
        for name in table.restored:
            yield f"  restored {name}"
        for segment in table.damaged:
            role = "read by queries" if segment.is_seen else "kept for a revert"
            yield failed(f"  {segment.info.name} ({role}): {segment.problem}")
        if table.damaged:
            yield f"  → {_to_restore(table)}"


def _to_restore(table: VerifiedTable) -> str:
    if any(segment.is_seen for segment in table.damaged):
        return (
            f"`lake serving verify {table.table} --repair` restores what its source still has. "
            f"Otherwise run `lake serving push {table.table}`."
        )
    return "Do not revert to these segments. The next pushes replace them."


def pinot_pushed(done: PinotPush) -> Iterator[Part]:
    """Show what was pushed to a Pinot cluster, and the command that reverts it."""
    yield f"{done.table}: {counted(len(done.segments), 'segment')} instead of {len(done.replaced)}."
    yield f"To go back: lake serving pinot revert {done.table} {done.entry_id}"


def pinot_segments(names: Sequence[str]) -> Iterator[Part]:
    """Show the segments of a table of a Pinot cluster, one on each line."""
    if not names:
        yield "No segments."
    yield from names


def _result_column(number: int, name: str) -> Column[Sequence[object]]:
    return Column(name, lambda row: None if row[number] is None else str(row[number]))


def _to_push(table: OutdatedSegments, what: str, option: str = "") -> Part:
    push = f"`lake serving push {table.table}{option}`"
    clean_up = f"`lake serving clean-up {table.table}`"
    return warning(f"  ! {table.table}: {what} {push}, then {clean_up}")


def failed_pushes() -> list[Problem]:
    """Return the served tables whose last push failed; none if no ZooKeeper runs, or nothing was ever pushed."""
    from lake_assets.connections.addresses import zookeeper_address

    found = settings()
    if not found.has_segments or zookeeper_address(found) is None:
        return []
    from lake_assets.serving.served_tables import push_problems

    with suppress(ServiceError):  # a ZooKeeper that does not answer is reported as a service
        return push_problems(found)
    return []


def _running_spark() -> SparkSession | None:
    """Return a session on the Connect server; None if there is none."""
    from lake_assets.connections.addresses import spark_remote
    from lake_assets.connections.spark import open_spark

    return open_spark(settings()) if spark_remote(settings()) else None


def _controller(address: str | None) -> str | None:
    """Return the controller that a command calls; None if it looks at ZooKeeper itself."""
    from lake_assets.connections.addresses import zookeeper_address

    found = settings()
    return address or (found.pinot_controller if zookeeper_address(found) is None else None)


def _quotas() -> dict[str, int | None]:
    """Return the declared quotas of served tables. A declaration that cannot be used has none."""
    from lake_assets.incremental.from_settings import open_pipeline

    with suppress(LakeError):
        targets = open_pipeline(settings()).targets
        return {target.served.name or target.name: target.served.quota_bytes for target in targets if target.served}
    return {}


def delete_replaced() -> list[OutdatedSegments]:
    """Return the segments that are older than the last erasure. If ZooKeeper runs, delete the replaced ones first."""
    from lake_assets.connections.addresses import zookeeper_address
    from lake_assets.serving.served_tables import segment_files
    from lake_assets.serving.upkeep import delete_replaced, stored_before

    erased_at = _last_erasure()
    files = segment_files(settings())
    if erased_at is None or not files.tables():
        return []
    if zookeeper_address(settings()) is None:
        return list(stored_before(files, erased_at=erased_at))
    with _open_serving() as found:
        return delete_replaced(found.store, retention=found.retention, erased_at=erased_at)


def searched_folders() -> list[FileSource]:
    """Return the segments that `lake erasure certify` searches."""
    from lake_assets.serving.upkeep import segment_folders

    try:
        with _open_serving() as found:
            states = found.registry.read(*found.files.tables())
    except ServiceError:  # without ZooKeeper, the files are searched nevertheless
        states = None
    return list(segment_folders(settings(), states))


def _sources() -> list[Source]:
    from lake_assets.engagement.lakes import metrics_locations
    from lake_assets.incremental.from_settings import open_pipeline
    from lake_assets.serving.sources import metrics_sources, pipeline_sources

    found = settings()
    return [*pipeline_sources(open_pipeline(found)), *metrics_sources(metrics_locations(found))]


def _repaired(found: Serving, verified: VerifiedTable, copies: Path | None) -> VerifiedTable:
    """Restore what can be restored; return the rest as damaged."""
    from lake_assets.connections.catalog import open_catalog
    from lake_assets.connections.storage import Folder
    from lake_assets.serving.store import SegmentFiles
    from lake_assets.serving.upkeep import restore_from_copies, restore_from_source, without

    table = verified.table
    left = verified
    if copies and left.damaged:
        left = without(left, restore_from_copies(found.files, SegmentFiles(Folder(copies)), table, left.lost))
    for source in _sources() if left.damaged else []:
        if source.name == table:
            left = without(left, restore_from_source(found.files, open_catalog(settings()), source, left.lost))
    return left


def _entries(words: list[str]) -> dict[str, str]:
    """Parse words of the form `TABLE=ID` into table → entry."""
    entries = dict(word.split("=", 1) for word in words if "=" in word)
    if len(entries) < len(words):
        raise UsageError(
            "--with is not TABLE=ID, or names a table twice.", remedy="Name each other table once, as TABLE=ID."
        )
    return entries


def _last_erasure() -> datetime | None:
    from lake_assets.connections.catalog import is_blank, open_catalog

    if is_blank(settings()):
        return None
    from lake_assets.incremental.engine.erasures import last_erasure

    return last_erasure(open_catalog(settings()))


def _open_serving() -> AbstractContextManager[Serving]:
    from lake_assets.serving.served_tables import serving_at

    return serving_at(zookeeper_hosts(), settings(), clock=lambda: datetime.now(UTC))
