"""Curves of figures: which sizes they need, and how they are shown in docs/sizing.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.event_log import Work
from benchmarks.faults.table import written
from benchmarks.sizing.picture import drawn
from lake_assets.settings import PROJECT

PAGE = PROJECT / "docs" / "sizing.md"
PICTURES = PROJECT / "docs" / "pictures"


@dataclass(frozen=True)
class Size:
    """What a session meets.

    Attributes:
        rows: Rows of the session.
        executors: Executors with one core each; 0: one process with two threads.
        partitions: Those of the target.
        snapshots: Those of the source and of the target.
    """

    rows: int
    executors: int
    partitions: int
    snapshots: int


@dataclass(frozen=True)
class Figures:
    """What a session cost.

    Attributes:
        load: Load average of the machine after it.
        seconds: Its wall time.
        cpu_session: Processor time of the process of the session, in seconds.
        cpu_spark: That of the driver and of its executors.
        requests: Those to the object store, by method; `LIST` for those that list it.
        written_mb: Size of the objects that it added.
        peak_session_mb: Largest resident size of the process of the session.
        peak_driver_mb: That of the driver.
        tasks: The tasks of Spark.
    """

    size: Size
    load: float
    seconds: float
    cpu_session: float
    cpu_spark: float
    requests: dict[str, int]
    written_mb: float
    peak_session_mb: float
    peak_driver_mb: float
    tasks: Work

    @property
    def reads(self) -> int:
        """Requests that read."""
        return self.requests.get("GET", 0) + self.requests.get("HEAD", 0)

    @property
    def writes(self) -> int:
        """Requests that write, and those that list: they have the same price."""
        return sum(self.requests.get(name, 0) for name in ("PUT", "POST", "LIST"))


MILLION = 1_000_000
SMALL = Size(rows=100_000, executors=0, partitions=100, snapshots=100)


@dataclass(frozen=True)
class Curve:
    """One of the sizes is varied, and the others stay.

    Attributes:
        name: Of its option, its table and its picture.
        field: The size that is varied.
        base: The others.
        values: Those that are measured if the command names none.
    """

    name: str
    field: str
    base: Size
    values: tuple[int, ...]

    def sizes(self, values: Sequence[int]) -> list[Size]:
        """Return the sizes with these values, ascending."""
        return [replace(self.base, **{self.field: value}) for value in sorted(values)]

    def value(self, found: Figures) -> int:
        """Return what the curve varies."""
        return int(getattr(found.size, self.field))

    def figures(self, found: Sequence[Figures]) -> list[Figures]:
        """Return the figures that belong to the curve, ascending."""
        own = [each for each in found if each.size in self.sizes([self.value(each)])]
        return sorted(own, key=self.value)


ROWS = (MILLION, 3 * MILLION, 10 * MILLION, 30 * MILLION, 100 * MILLION)
CURVES = (
    Curve("rows", "rows", SMALL, ROWS),
    Curve("rows-on-cluster", "rows", replace(SMALL, executors=2), ROWS),
    Curve("executors", "executors", replace(SMALL, rows=MILLION), (1, 2, 3, 4)),
    Curve("partitions", "partitions", SMALL, (100, 1_000, 10_000, 100_000)),
    Curve("snapshots", "snapshots", SMALL, (100, 1_000, 10_000)),
)

COLUMNS: dict[str, Callable[[Figures], str]] = {
    "wall, s": lambda found: f"{found.seconds:.1f}",
    "CPU of Spark, s": lambda found: f"{found.cpu_spark:.1f}",
    "CPU of the session, s": lambda found: f"{found.cpu_session:.1f}",
    "reads": lambda found: f"{found.reads:,}",
    "writes": lambda found: f"{found.writes:,}",
    "written, MB": lambda found: f"{found.written_mb:,.1f}",
    "spilled, MB": lambda found: f"{found.tasks.spilled / MILLION:,.0f}",
    "driver, MB": lambda found: f"{found.peak_driver_mb:,.0f}",
    "session, MB": lambda found: f"{found.peak_session_mb:,.0f}",
}


def read(file: Path) -> list[Figures]:
    """Return the figures of a file; none if there is no file."""
    if not file.exists():
        return []
    found = []
    for line in file.read_text().splitlines():
        values = json.loads(line)
        values |= {"size": Size(**values["size"]), "tasks": Work(**values["tasks"])}
        found.append(Figures(**values))
    return found


def table(curve: Curve, found: Sequence[Figures]) -> str:
    """Return the figures of a curve as a table of Markdown."""
    lines = [[curve.field, *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    for each in found:
        lines.append([f"{curve.value(each):,}", *(value(each) for value in COLUMNS.values())])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def picture(curve: Curve, found: Sequence[Figures]) -> str:
    """Return the figures of a curve as a picture in SVG."""
    cpu = {
        "Spark": [each.cpu_spark for each in found],
        "its tasks": [each.tasks.cpu for each in found],
        "process of the session": [each.cpu_session for each in found],
    }
    requests = {"reads": [each.reads for each in found], "writes": [each.writes for each in found]}
    megabytes = {
        "written": [each.written_mb for each in found],
        "peak of the driver": [each.peak_driver_mb for each in found],
        "peak of the session": [each.peak_session_mb for each in found],
    }
    panels = {"processor time, s": cpu, "requests": requests, "MB": megabytes}
    return drawn(curve.field, [curve.value(each) for each in found], panels)


def write_page(found: Sequence[Figures]) -> None:
    """Write the curves that the page has a place for, each with a table and a picture. One figure is no curve."""
    for curve in CURVES:
        own = curve.figures(found)
        begin, end = f"<!-- {curve.name}: written by `benchmarks.sizing` -->", f"<!-- {curve.name}: end -->"
        if len(own) > 1 and begin in PAGE.read_text():
            name = f"sizing-{curve.name}.svg"
            (PICTURES / name).write_text(picture(curve, own))
            text = f"{table(curve, own)}\n\n![By {curve.field}](pictures/{name})"
            PAGE.write_text(written(PAGE.read_text(), text, begin=begin, end=end))
