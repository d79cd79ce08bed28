"""The table of faults as Markdown, and its place in a page. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.faults.player import Row

BEGIN = "<!-- faults: written by `make faults` -->"
END = "<!-- faults: end -->"

TITLES = {
    "spark": "Spark is killed",
    "zookeeper": "ZooKeeper is killed",
    "kafka": "Kafka is killed",
    "webserver": "the web UI is killed",
    "code": "the code server is killed",
    "daemon": "the daemon is killed",
    "worker": "the processes of the runs at work are killed",
    "guard": "the guard is killed",
    "supervisor": "the supervisor is killed",
    "services": "all services and runs are killed at once",
    "everything": "all processes are killed at once, supervisor and guard too; systemd starts the unit (played)",
    "disk": "the disk is full for 30 s",
}

HEADER = "| fault | healed without a hand | seconds | rows lost or doubled |\n| --- | --- | --- | --- |"


def table(rows: Sequence[Row]) -> str:
    """Return the table. Seconds: median, and the longest if there are several tries.

    The fault of a row is a key of `TITLES`, the name of a service that is killed, or a sentence.
    """
    cells = [(_title(row), _healed(row), _seconds(row.seconds), _wrong(row)) for row in rows]
    return "\n".join([HEADER, *(f"| {' | '.join(each)} |" for each in cells)])


def table_of_rounds(rows: Sequence[Row]) -> str:
    """Return the same for faults of which several share a round: those that came out alike share a row.

    Seconds: of the longest round.
    """
    alike: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        alike.setdefault((_healed(row), _wrong(row)), []).append(row)
    lines = [HEADER]
    for (healed, wrong), found in sorted(alike.items()):
        longest = max((seconds for row in found for seconds in row.seconds), default=None)
        shown = "–" if longest is None else f"at most {longest:.0f}"
        lines.append(f"| {'; '.join(map(_title, found))} | {healed} | {shown} | {wrong} |")
    return "\n".join(lines)


def _title(row: Row) -> str:
    return TITLES.get(row.fault, row.fault if " " in row.fault else f"{row.fault} is killed")


def _healed(row: Row) -> str:
    return f"{len(row.seconds)}/{row.tries}"


def _wrong(row: Row) -> str:
    return f"{row.lost} lost, {row.doubled} doubled" if row.lost or row.doubled else "0"


def written(page: str, text: str, *, begin: str = BEGIN, end: str = END) -> str:
    """Return a page with a text between its markers."""
    found = re.search(f"{re.escape(begin)}.*{re.escape(end)}", page, re.DOTALL)
    if found is None:
        raise ValueError(f"The page has no {begin} … {end}.")
    return f"{page[: found.start()]}{begin}\n\n{text}\n\n{end}{page[found.end() :]}"


def _seconds(seconds: Sequence[float]) -> str:
    if not seconds:
        return "–"
    typical = f"{median(seconds):.0f}"
    return typical if len(seconds) == 1 else f"{typical} (at most {max(seconds):.0f})"
