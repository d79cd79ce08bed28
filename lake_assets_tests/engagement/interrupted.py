"""Batches whose attempts die: more messages come, the next attempt goes on, and what it finds is told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from lake_assets.base.failpoints import batch_points
from lake_assets.engagement.batch import run_batch
from lake_assets.engagement.lake import STREAMS, StreamName
from lake_assets_tests.engagement.scenario import ORGS, START, Alone, Traffic

if TYPE_CHECKING:
    from lake_assets.engagement.checkpoint import Checkpoint
    from lake_assets_tests.outcomes import Outcomes

POISON = [b"{", b'{"org_id": "acme"}', b"\xff"]
LEADS = 7
MAILS = len(ORGS) * LEADS
"""So many emails hold each pair of an org and a lead once: there are so many people to be converted, or erased."""
ASKED = START + timedelta(days=2)
"""When people are asked to be erased: after their rows, and after their conversion."""
ANEW = "a new batch"


def arrive(mail: Traffic, name: StreamName) -> None:
    """More messages of a stream: each makes or changes rows, or is a dead letter. Emails come again: the first one of
    all, and one of these, twice.
    """
    if name == "ingestion":
        first = len(mail.sent)
        mail.send(range(first, first + len(ORGS)), POISON)
        mail.resend([mail.sent[0], mail.sent[first], mail.sent[first]])
        return
    mail.spoil(name, POISON[:1])
    if name == "mutation":
        convert(mail)
    else:
        erase(mail)


def who(number: int) -> tuple[str, str]:
    """Org and lead of an email."""
    return ORGS[number % len(ORGS)], f"lead {number % LEADS}"


def contact(number: int) -> str:
    """What the lead of an email becomes."""
    return f"contact {number}"


def convert(mail: Traffic) -> None:
    """A lead that was not converted before becomes a contact."""
    number = len(mail.requests)
    org, lead = who(number)
    mail.ask(org, "convert", lead, contact(number))


def erase(mail: Traffic) -> None:
    """A person who was not erased before goes: the lead is asked for, the contact has the rows. A request for the same
    that is not sound is no reason to keep the name.
    """
    number = len(mail.erased) // 2
    org, lead = who(number)
    mail.retain(org, "gdpr", ASKED, who_id=lead)
    mail.spoil("retention", [json.dumps({"org_id": org, "op": "gdpr", "who_id": lead}).encode()])
    mail.erased |= {(org, lead), (org, contact(number))}


def prepare(mail: Traffic, name: StreamName) -> None:
    """Rows for requests to meet; for an erasure also requests and dead letters that name each person."""
    if name == "ingestion":
        return
    letters = (dict(zip(("org_id", "who_id"), who(number), strict=True)) for number in range(MAILS))
    mail.send(range(MAILS), [json.dumps(letter).encode() for letter in letters] if name == "retention" else [])
    mail.run()
    if name == "retention":
        for _ in range(MAILS):
            convert(mail)
        mail.run("mutation")


def points_of(mail: Traffic, name: StreamName) -> tuple[str, ...]:
    """The points of a batch; those of its turn aside."""
    return batch_points(mail.stream(name).commit_names)[:-2]


def opened(mail: Traffic, name: StreamName) -> Checkpoint | None:
    """The batch that an attempt has begun and none has ended."""
    found = mail.tables.checkpoints.read(mail.lake.app_name(name))
    return None if found is None or found.finished else found


def left(mail: Traffic, name: StreamName) -> str:
    """What the next attempt has to do: processes of the batch that is open, or a new batch."""
    batch = opened(mail, name)
    if batch is None:
        return ANEW
    tables = {commit.name: commit.table for commit in mail.stream(name).commits}
    seen = {of: mail.tables.last_batch(tables[of], mail.lake.app_id(name, of)) for of in batch.unfinished}
    return ", ".join(f"{of} (written)" if seen[of] == batch.batch.batch_id else of for of in batch.unfinished)


def go_on(mail: Traffic, name: StreamName) -> None:
    """An attempt that nothing happens to: it does what was left, with the messages of the batch that was open."""
    batch = opened(mail, name)
    report = mail.run(name)
    assert report.resumed == (batch is not None)
    if batch is not None:
        assert report.batch == batch.batch
        assert tuple(report.commits) == batch.unfinished


def die(mail: Traffic, name: StreamName, deaths: Sequence[str]) -> Outcomes:
    """Attempts die at these points, one by one, with more messages before each. Point → what was left there."""
    found: dict[str, str] = {}
    for point in deaths:
        arrive(mail, name)
        mail.die(point, name)
        said = left(mail, name)
        assert found.setdefault(point, said) == said, point
    return found


def settle(mail: Traffic) -> None:
    """Batches until none is due; then all is as if nothing had happened."""
    for name in STREAMS:
        while run_batch(mail.stream(name), Alone()):
            pass
    mail.assert_true()


def reached(all_points: Sequence[str], after: str) -> Sequence[str]:
    """The points that an attempt comes to after one has died: all behind the place where it goes on."""
    when, _, process = after.partition("-")
    if when == "written":
        return all_points[all_points.index(f"before-{process}") :]
    place = all_points.index(after) + (when != "before")
    return all_points[place:] or all_points


def stretches(deaths: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """The same deaths in stretches of so many at most, each of which begins with the last one of the former."""
    return (deaths[start : start + most] for start in range(0, len(deaths) - 1, most - 1))


def walk(ways: Mapping[str, Sequence[str]], start: str, hub: str) -> list[str]:
    """A walk over all ways, from point to point. hub: where all points lead to, and from where all are reached."""
    todo = {point: list(further) for point, further in ways.items()}
    found = [start]
    while any(todo.values()):
        at = found[-1]
        found.append(todo[at].pop(0) if todo[at] else next((p for p in ways[at] if todo[p]), hub))
    return found
