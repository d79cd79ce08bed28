"""Views of landed files and their zones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lake_assets.base.hours import hour_key
from lake_assets.pages.terminal.render import Column, Part, TableView, counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lake_assets.landing.accept import Accepted
    from lake_assets.landing.dead_letters import DeadLetters, LandedAgain
    from lake_assets.landing.heal import Finding, Repaired, Verification
    from lake_assets.landing.loading import Loaded
    from lake_assets.landing.manifest import Entry, ShardStatus
    from lake_assets.landing.state import Loss

SHOWN_LETTERS = 20
SHOWN_CHARACTERS = 100

SHARDS: TableView[ShardStatus] = TableView(
    (
        Column("shard", lambda shard: shard.shard, whole=True),
        "zone",
        "verified",
        "provisional",
        "quarantined",
        "records",
        "bytes",
        Column("next offsets", lambda shard: _offsets(shard)),
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


def dead_letters(found: DeadLetters) -> Iterator[Part]:
    """Show the newest dead letters, a line each, then how many there are of each reason."""
    for letter in found.newest[-SHOWN_LETTERS:]:
        sent = f"{letter.sent:%Y-%m-%d %H:%M:%S}" if letter.sent else "no time"
        yield f"p{letter.partition}:{letter.offset}  {sent}  {letter.reason}  {letter.value[:SHOWN_CHARACTERS]}"
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
    return "" if value is None else str(value)[:SHOWN_CHARACTERS]


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


def _offsets(shard: ShardStatus) -> str:
    return " ".join(f"p{partition}:{offset}" for partition, offset in shard.next.items())
