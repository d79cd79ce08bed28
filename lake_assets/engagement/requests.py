"""Requests to convert, merge, delete and erase ids, and what they come to. Pure; `grouped` applies them on Spark.

Replay defines the right result: the requests in order of (executed_at, Kafka partition, offset), each acting on every
row whose current id is its old_id. Following edges to their end gives other results, because it ignores time: after
2→3 and then 1→2, the rows of 1 stay at 2. So requests are processed backwards: when a request is reached, the effect
of all later requests is known.

Time decides, not the batch that a row or a request comes in: a request acts on the rows that have its old_id when it
is executed and that engaged until then; one with an engagement_date acts on those of that day (UTC) alone. Walked
backwards in time, each request adds one span to its old_id: from the former request of that id to its own time. A day
is a part of a span, so dated requests need nothing else.

Replay defines the right result: a record is put in place after the rows of its request have moved, and later requests
move it. The record of an engagement that was executed last is current.

Cut-offs come from the time of the request, not from a clock. So a request removes the same rows whenever it is
applied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Literal, get_args

from lake_assets.errors import UsageError

Op = Literal["convert", "merge", "delete"]
OPS: tuple[Op, ...] = get_args(Op)

PERSON = "who_id"
"""The column with the id of a person. Requests of earlier versions all name it, and erasures follow it alone."""

SENT_AT = "sent_at"
"""Field and column with the time at which an engagement was sent, null if its message does not say it; of a record: of
its request. Of several messages about an engagement, the one sent last counts."""


@dataclass(frozen=True, slots=True)
class DatedEnds:
    """Where rows of one id end, if the day on which they engaged decides. days: those that differ from the others."""

    others: str | None
    days: Mapping[date, str | None]


End = str | DatedEnds | None
"""Where rows of one id end; None if they are deleted."""

FinalIds = dict[str, End]
"""Id → where its rows end. Ids that keep their rows are absent."""


@dataclass(frozen=True, slots=True)
class Record:
    """An engagement that a request carries. It replaces the row of its engagement_id, or is inserted, under its ids.

    Attributes:
        day: UTC day on which it engaged; None if only requests without a date act on it.
        ids: Further id column → its id.
    """

    engagement_id: str
    who_id: str
    day: date | None = None
    ids: Mapping[str, str | None] = field(default_factory=dict)

    def id_of(self, column: str) -> str | None:
        return self.who_id if column == PERSON else self.ids.get(column)


@dataclass(frozen=True, slots=True)
class MutationRequest:
    """A request to move all rows of old_id to new_id (convert, merge), or to delete them.

    Attributes:
        new_id: Has no meaning for a delete.
        executed_at: When the sender executed the operation.
        partition: Kafka partition of the message.
        offset: Kafka offset of the message.
        record: Put in place after the rows have moved, so this request does not move it.
        engagement_date: UTC day; the request acts on rows of that day alone. None: on all.
        column: The id column that it names.

    Raises:
        UsageError: The op is unknown, or a convert or merge has no new_id.
    """

    request_id: str
    op: Op
    old_id: str
    new_id: str | None
    executed_at: datetime
    partition: int
    offset: int
    record: Record | None = None
    engagement_date: date | None = None
    column: str = PERSON

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise UsageError(f"Request {self.request_id} asks for {self.op!r}.", remedy=f"Ask for one of {OPS}.")
        if self.op != "delete" and self.new_id is None:
            raise UsageError(f"Request {self.request_id}, a {self.op}, has no new_id.", remedy="Name the new_id.")

    @property
    def target(self) -> str | None:
        """The id under which the request leaves the rows of old_id; None if it deletes them."""
        return None if self.op == "delete" else self.new_id


def in_order(requests: Iterable[MutationRequest]) -> list[MutationRequest]:
    """Return the requests in the order of replay, each request id once."""
    first: dict[str, MutationRequest] = {}
    for request in sorted(requests, key=_position):
        first.setdefault(request.request_id, request)
    return list(first.values())


def prepend(request: MutationRequest, final_ids: FinalIds) -> End:
    """Add a request to the map of all later requests of its column, and return where rows of its old_id end then."""
    target, day = request.target, request.engagement_date
    final = None if target is None else final_ids.get(target, target)
    if day is not None:
        later = final_ids.get(request.old_id, request.old_id)
        days = later.days if isinstance(later, DatedEnds) else {}
        final = DatedEnds(of_day(later, None), {**days, day: of_day(final, day)})
    final_ids[request.old_id] = final
    return final


def of_day(end: End, day: date | None) -> str | None:
    """Return where rows of a day end; None for a day that no request names."""
    if not isinstance(end, DatedEnds):
        return end
    return end.others if day is None else end.days.get(day, end.others)


def _position(request: MutationRequest) -> tuple[datetime, int, int, str, str, str, str]:
    """Return the sort key of replay. The parts after the offset matter only if two requests have the same offset."""
    return (
        request.executed_at,
        request.partition,
        request.offset,
        request.request_id,
        request.op,
        request.old_id,
        request.new_id or "",
    )


@dataclass(frozen=True, slots=True)
class Alias:
    """Rows of old_id that are there since a time with after < time <= until belong to new_id.

    A row is there since it engaged, or since it was sent if that was before.

    Attributes:
        new_id: None if the rows are deleted.
        after: None for no bound.
        day: UTC day. Rows that engaged on it have only the aliases of their id for this day. None: all other rows.
    """

    old_id: str
    new_id: str | None
    after: datetime | None
    until: datetime
    day: date | None = None


def aliases(requests: Iterable[MutationRequest]) -> list[Alias]:
    """Return where requests of one org and column lead rows.

    Args:
        requests: Requests in any order.

    Returns:
        Aliases in order; those of one id and day do not overlap. A row without an alias keeps its id.
    """
    return changed_aliases((), requests, ())


def changed_aliases(
    applied: Iterable[MutationRequest], batch: Iterable[MutationRequest], arrived: Collection[str]
) -> list[Alias]:
    """Return where a batch leads rows of one org and column, by the ids that they were sent with.

    All requests act on a row in order of time, in whatever batches they came. So a request may change the way of rows
    that later requests have moved before.

    Args:
        applied: Requests of former batches, in any order.
        batch: Requests that are applied only now.
        arrived: Ids with new rows, on which no request has acted.

    Returns:
        Aliases in order; those of one id and day do not overlap. A row without an alias stays where it is.
    """
    applied_requests = in_order(applied)
    before, after = _spans(applied_requests), _spans(in_order([*applied_requests, *batch]))
    found: list[Alias] = []
    for old_id in sorted(after):
        former, spans = before.get(old_id, []), after[old_id]
        days = {day for _, end in (*former, *spans) if isinstance(end, DatedEnds) for day in end.days}
        is_new, of_others = old_id in arrived, list[Alias]()
        for day in (None, *sorted(days)):
            pieces = [*_pieces(old_id, day, former, spans)]
            changed = [piece for piece, was in pieces if piece.new_id != was or (is_new and piece.new_id != old_id)]
            of_others = of_others if day else changed
            # Else rows of the day would have the aliases of the others.
            found += [piece for piece, _ in pieces] if day and of_others else changed
    return found


_Spans = list[tuple[datetime, End]]
"""The times of the requests of an id, the last one first, each with where rows end that meet it and all later ones."""


def _spans(ordered: list[MutationRequest]) -> dict[str, _Spans]:
    final_ids: FinalIds = {}
    found: dict[str, _Spans] = {}
    for request in reversed(ordered):
        found.setdefault(request.old_id, []).append((request.executed_at, prepend(request, final_ids)))
    return found


def _pieces(old_id: str, day: date | None, former: _Spans, spans: _Spans) -> Iterator[tuple[Alias, str | None]]:
    """Yield where rows of a day, or of no named day, end by spans, and ended by former ones, in order of time."""
    # Of requests at the same instant, the first one decides.
    before, after = ({until: of_day(end, day) for until, end in each} for each in (former, spans))
    untils = sorted({*before, *after})
    was: str | None = old_id
    now: str | None = old_id
    ends = []
    for until in reversed(untils):
        was, now = before.get(until, was), after.get(until, now)
        ends.append((now, was))
    for start, until, (new_id, former_id) in zip([None, *untils], untils, reversed(ends), strict=False):
        yield Alias(old_id, new_id, start, until, day), former_id


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """The current record of an engagement.

    Attributes:
        request_id: The request that carries the record.
        who_id: Final id of the record; None if it is deleted.
        ids: Further id column → its final id.
    """

    engagement_id: str
    request_id: str
    who_id: str | None
    ids: Mapping[str, str | None] = field(default_factory=dict)


def place_records(requests: Iterable[MutationRequest]) -> list[PlacedRecord]:
    """Return the current record of each engagement, sorted by engagement_id: of those executed last, the first one.

    Args:
        requests: Requests of one org, in any order.
    """
    since: dict[str, datetime] = {}
    final_ids: defaultdict[str, FinalIds] = defaultdict(dict)
    found: dict[str, PlacedRecord] = {}
    for request in reversed(in_order(requests)):
        record = request.record
        if record is not None and since.setdefault(record.engagement_id, request.executed_at) == request.executed_at:
            found[record.engagement_id] = _placed(request.request_id, record, final_ids)
        prepend(request, final_ids[request.column])
    return [found[engagement_id] for engagement_id in sorted(found)]


def _placed(request_id: str, record: Record, final_ids: Mapping[str, FinalIds]) -> PlacedRecord:
    """Return where a record ends. A request that deletes the id of any column deletes it."""
    ends: dict[str, str | None] = {}
    for column in (PERSON, *record.ids):
        identity = record.id_of(column)
        if identity is None:
            ends[column] = None
            continue
        ends[column] = of_day(final_ids.get(column, {}).get(identity, identity), record.day)
        if ends[column] is None:
            return PlacedRecord(record.engagement_id, request_id, None)
    return PlacedRecord(record.engagement_id, request_id, ends.pop(PERSON), ends)


RetentionOp = Literal["ttl", "gdpr"]
RETENTION_OPS: tuple[RetentionOp, ...] = get_args(RetentionOp)
TTL_DAYS = (1, 36_500)
"""Minimum and maximum number of days that an org may keep engagements, so that every cut-off is a valid date."""


@dataclass(frozen=True, slots=True)
class RetentionRequest:
    """A request of an org to keep engagements for ttl_days (ttl), or to erase the person with who_id (gdpr).

    Attributes:
        requested_at: When the sender made the request.

    Raises:
        UsageError: The op is unknown, or its value is missing or out of range.
    """

    request_id: str
    op: RetentionOp
    ttl_days: int | None
    who_id: str | None
    requested_at: datetime

    def __post_init__(self) -> None:
        if self.op not in RETENTION_OPS:
            raise UsageError(
                f"Request {self.request_id} asks for {self.op!r}.",
                remedy=f"Ask for one of {RETENTION_OPS}.",
            )
        if self.op == "ttl":
            check_ttl_days(f"Request {self.request_id}", self.ttl_days)
        if self.op == "gdpr" and self.who_id is None:
            raise UsageError(f"Request {self.request_id}, a gdpr, has no who_id.", remedy="Name the who_id.")


def check_ttl_days(who: str, days: int | None) -> None:
    """Check that a number of days is within `TTL_DAYS`.

    Args:
        who: Subject of the error message.

    Raises:
        UsageError: It is None or out of range.
    """
    minimum, maximum = TTL_DAYS
    if days is None or not minimum <= days <= maximum:
        raise UsageError(f"{who} keeps {days} days.", remedy=f"Keep {minimum} to {maximum} days.")


def cut_off(requests: Iterable[RetentionRequest]) -> datetime | None:
    """Return the time, exclusive, before which engagements of an org are deleted; None without a ttl request."""
    latest: datetime | None = None
    for request in requests:
        if request.op == "ttl" and request.ttl_days is not None:
            oldest_kept = request.requested_at - timedelta(days=request.ttl_days)
            latest = oldest_kept if latest is None else max(latest, oldest_kept)
    return latest


def erased_ids(
    requests: Iterable[RetentionRequest], links: Iterable[MutationRequest]
) -> dict[str, tuple[datetime, str]]:
    """Return every id of the erased persons of one org.

    Ids belong to one person if conversions and merges that were executed until the erasure was requested connect them,
    in either direction. Requests that have met no row count: rows of their old id may arrive later. If an id served two
    persons, both are erased.

    Args:
        requests: Retention requests of the org.
        links: Mutation requests of the org.

    Returns:
        Id → time until which its engagements are erased, inclusive, and the least id of the person; sorted by id.
    """
    import networkx as nx  # a fifth of a second, and few requests erase

    graph: nx.Graph[str] = nx.Graph()
    in_order = sorted(links, key=lambda link: link.executed_at)
    erasures = [request for request in requests if request.op == "gdpr"]
    found: dict[str, tuple[datetime, str]] = {}
    added = 0
    for erasure in sorted(erasures, key=lambda erasure: erasure.requested_at):
        graph.add_node(str(erasure.who_id))
        while added < len(in_order) and in_order[added].executed_at <= erasure.requested_at:
            link = in_order[added]
            if link.target is not None:
                graph.add_edge(link.old_id, link.target)
            added += 1
        person = nx.node_connected_component(graph, str(erasure.who_id))
        found |= dict.fromkeys(person, (erasure.requested_at, min(person)))
    return dict(sorted(found.items()))
