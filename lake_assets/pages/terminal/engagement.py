"""Views of engagement lakes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from lake_assets.errors import ErrorText
from lake_assets.pages.terminal import erasure
from lake_assets.pages.terminal.render import Column, Part, TableView, counted, moment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lake_assets.engagement.dead_letters import Accepted, Letters
    from lake_assets.engagement.erasure import LakeCertificate
    from lake_assets.engagement.id_graph import Component, ComponentSize, Move
    from lake_assets.engagement.maintenance import MaintenanceReport, Reclaimed
    from lake_assets.engagement.metrics import Refresh
    from lake_assets.engagement.monitoring import StreamStatus
    from lake_assets.engagement.notifications import BatchEffect, Changes
    from lake_assets.engagement.turn import TurnReport

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


def changes(found: Changes) -> Iterator[Part]:
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
        after = "" if end.after is None else f" after {moment(end.after)}"
        goal = "are deleted" if end.new_id is None else f"end at {end.new_id}"
        yield f"{end.old_id}: rows engaged{after} until {moment(end.until)} {goal}"
    if len(found.requests) > SHOWN_ROWS:
        yield f"Only the first {SHOWN_ROWS} requests are shown; --json has all."


REQUESTS: TableView[Move] = TableView(
    ("executed at", "op", "from=old_id", "to=new_id", "rows of=engagement_date", "status", "request=request_id")
)


def dead_letters(found: Sequence[Letters]) -> Iterator[Part]:
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


def certificate(found: LakeCertificate) -> Iterator[Part]:
    """Show the files of the lakes that still hold an id, and how long Kafka keeps messages of it."""
    yield from erasure.certificate(found)
    for kept in found.kafka:
        until = f"until {kept.until:%Y-%m-%d %H:%M} at the latest" if kept.until else "without a limit"
        yield f"  Kafka keeps {counted(kept.messages, 'message')} of {kept.topic} {until}"
