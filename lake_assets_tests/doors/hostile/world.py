"""Several hostile tables in one data directory, with an innocent one, played step by step with the `lake` command."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from lake_assets_tests.doors.hostile.oracle import difference, selected, target_rows
from lake_assets_tests.doors.hostile.tables import HOUR, STARTS, Hostile, draw, new_rows
from lake_assets_tests.doors.hostile.writing import CannotWrite, Programs, quoted, session
from lake_assets_tests.doors.lake_door import Done, LakeDoor

NO_MESSAGE = ("Traceback", "report it", "OverflowError", "RecursionError", "INTERNAL_ERROR", "Py4J", "JVM stacktrace")
"""What no message for people contains."""

INNOCENT = "prod.innocent"


@dataclass(frozen=True)
class Finding:
    """Something that is not as it has to be.

    Attributes:
        kind: `wrong rows`, `no message`, `no remedy`, `refused` though nothing foresaw it, `unnamed`, `remedy` that
            does not help, `innocent` target that is wrong, `endless`.
        label: The table, `seed/number`.
    """

    kind: str
    label: str
    step: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} | {self.label} | {self.step} | {' / '.join(self.text.strip().splitlines())}"


@dataclass
class Outcome:
    """What a world showed: findings, and how its tables ended."""

    findings: list[Finding] = field(default_factory=list)
    equal: int = 0
    right: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0


def tables_of(seed: int, *, count: int, steps: int, hours: int) -> list[Hostile]:
    """Draw the tables of a world, which share an era."""
    eras = random.Random(seed).choices(list(STARTS), weights=[10, 5, 2, 2, 1])
    return [draw(seed, number, eras[0], steps=steps, hours=hours) for number in range(count)]


class World:
    """The play of one data directory."""

    def __init__(self, lake: LakeDoor, remote: str, tables: list[Hostile]) -> None:
        self.lake, self.tables = lake, tables
        self.outcome = Outcome()
        self.innocent: list[tuple[str, int]] = []
        lake.home.mkdir(parents=True, exist_ok=True)
        self.spark = session(remote, lake.home)
        self.programs = Programs(lake.folder, lake.catalog, self.spark)
        lake.environment["LAKE_START"] = STARTS[tables[0].era]

    def play(self) -> Outcome:
        """Play all lives to their ends."""
        began = time.monotonic()
        try:
            self._begin()
            for step in range(1 + max(len(table.life) for table in self.tables)):
                self._step(step)
        finally:
            self.spark.stop()
            self.outcome.seconds = time.monotonic() - began
        self.outcome.right = [table.label for table in self.living]
        return self.outcome

    @property
    def living(self) -> list[Hostile]:
        return [table for table in self.tables if table.ended is None]

    def _begin(self) -> None:
        catalog = self.lake.catalog
        for namespace in ("prod", "raw", "core", "etl"):
            catalog.create_namespace_if_not_exists(namespace)
        fields = (
            NestedField(1, "id", StringType()), NestedField(2, "at", TimestamptzType()), NestedField(3, "v", LongType())
        )  # fmt: skip
        catalog.create_table(INNOCENT, Schema(*fields))
        self._append_innocent()
        for table in self.tables:
            if table.origin == "foreign":
                self._attempt(table, "create", lambda table=table: self._create(table))
        self._declare()
        while True:
            done = self.lake.run("init")
            if not done.code:
                return
            if not self._refuse(done, "init"):
                self._find_refused(done)
            self._declare()

    def _find_refused(self, done: Done) -> None:
        """Find the table because of which `lake init` fails without naming it: without it, something else is said."""
        living = self.living
        for table in living:
            table.ended = "left out for a try"
            self._declare()
            again = self.lake.run("init")
            if not again.code or again.err != done.err:
                self.outcome.findings.append(Finding("unnamed", table.label, "init", _tail(done.err)))
                return
            table.ended = None
        raise AssertionError(f"lake init refuses whatever is declared:\n{done.text}")

    def _create(self, table: Hostile) -> None:
        self.programs.create(table)
        self.programs.append(table, new_rows(table, first=True))
        self.programs.declare_complete(table)

    def _attempt(self, table: Hostile, operation: str, act: Any) -> None:
        """Do something as another program; a table that no program can change so is left out."""
        try:
            act()
        except CannotWrite as error:
            self._leave_out(table, f"{operation}: {error}")
        except Exception as error:  # as above: Spark or pyiceberg refuses
            self._leave_out(table, f"{operation}: {type(error).__name__} {str(error)[:300]}")

    def _leave_out(self, table: Hostile, why: str) -> None:
        table.ended = why
        self.outcome.left_out.append(f"{table.label} {why}")

    def _refuse(self, done: Done, step: str) -> bool:
        """Take tables out that a message names; return whether there is one."""
        named = [table for table in self.living if _message(table, done.err)]
        for table in named:
            self._refused(table, step, _message(table, done.err))
        return bool(named)

    def _refused(self, table: Hostile, step: str, text: str) -> None:
        problem = self._unfit(text)
        if problem is None and not _may_refuse(table, text):
            problem = "refused"
        if problem is not None:
            self._find(problem, table, step, text)
        self.outcome.refused.append(f"{table.label} {step}: {' '.join(text.split())}")
        table.ended = text

    def _unfit(self, text: str) -> str | None:
        """Return what is wrong with a message for people."""
        found = next((word for word in NO_MESSAGE if word in text), None)
        if "/lake_assets/" in text:
            found = "our own code is named"
        if found:
            return f"no message ({found})"
        return None if "→" in text else "no remedy"

    def _step(self, step: int) -> None:
        for table in self.living:
            for operation in table.life[step - 1] if step else ["nothing"]:
                if table.ended is None:
                    what = f"step {step}, {operation}"
                    self._attempt(table, what, lambda t=table, o=operation: self._change(t, o, step))
        if step:
            self._append_innocent()
        for table in self.living[step : step + 1]:
            self._look(self.lake.run("plan", f"{table.name}_t"), table, f"{step} plan")
        done = self._catch_up(step)
        if done is None:
            return
        self._judge_innocent(step, done)
        for table in self.living:
            operations = "+".join(table.life[step - 1]) if step else "load"
            self._judge(table, f"{step} {operations}", done)

    def _change(self, table: Hostile, operation: str, step: int) -> None:
        if table.origin == "raw":
            self._land(table, first=not step)
            return
        table.done.append(operation)
        self.programs.change(table, operation)
        if step:
            self.programs.declare_complete(table)

    def _land(self, table: Hostile, *, first: bool) -> None:
        rows = new_rows(table, first=first)
        file = self.programs.file_to_land(table, rows)
        done = self.lake.run("land", table.table, file)
        if done.code:
            self._refused(table, "land", done.text)
            return
        table.landed = time.time_ns() // 1000
        table.rows += rows
        self.programs.declare_complete(table)

    def _look(self, done: Done, table: Hostile, step: str) -> None:
        problem = self._unfit(done.text) if done.code else None
        if problem:
            self.outcome.findings.append(Finding(problem, table.label, step, _tail(done.text)))

    def _catch_up(self, step: int) -> Done | None:
        try:
            return self.lake.run("catch-up", "--force")
        except AssertionError as error:
            labels = " ".join(table.label for table in self.living)
            self.outcome.findings.append(Finding("endless", labels, f"{step} catch-up", _tail(str(error))))
            for table in self.living:
                table.ended = "endless"
            return None

    def _judge_innocent(self, step: int, done: Done) -> None:
        rows = self.lake.rows("core.innocent_t")
        found = sorted((row["id"], row["v"]) for row in rows)
        if found != sorted(self.innocent):
            labels = " ".join(table.label for table in self.living)
            text = f"{len(found)} of {len(self.innocent)} rows; {_tail(done.text)}"
            self.outcome.findings.append(Finding("innocent", labels, str(step), text))

    def _judge(self, table: Hostile, step: str, done: Done) -> None:
        """Compare a target with its replay; if it differs, a message has to say why, and its remedy is tried once."""
        wrong = self._difference(table)
        message = _message(table, done.text)
        problem = self._unfit(message) if message else None
        if problem is not None:
            self._find(problem, table, step, message)
        elif wrong is None:
            self.outcome.equal += 1
        elif message:
            self._judge_refusal(table, step, message, wrong)
        else:
            said = " / ".join(line[:150] for line in done.text.splitlines() if f".{table.name}" in line)
            self._find("wrong rows", table, step, f"{said[:500]} / {wrong}")

    def _judge_refusal(self, table: Hostile, step: str, message: str, wrong: str) -> None:
        remedy = re.search(r"`lake ((?:rebuild|repair) [^`]*)`", message)
        shown = f"{table.label} {step}: {' '.join(message.split())}"
        if remedy is not None and "TARGET" not in remedy[1]:
            followed = self.lake.run(*remedy[1].split())
            self.lake.run("catch-up", "--force")
            still = self._difference(table)
            if still is None:
                self.outcome.refused.append(f"{shown} (right after it)")
                return
            self._find("remedy", table, step, f"after `lake {remedy[1]}`: {still} / {_tail(followed.text)}")
        elif not _may_refuse(table, message):
            self._find("refused", table, step, f"{_tail(message)} / {wrong}")
        self.outcome.refused.append(f"{shown} ({wrong})")
        table.ended = message

    def _find(self, kind: str, table: Hostile, step: str, text: str) -> None:
        self.outcome.findings.append(Finding(kind, table.label, step, _tail(text)))
        table.ended = text

    def _difference(self, table: Hostile) -> str | None:
        try:
            found = self.lake.table(table.target).scan().to_arrow()
        except Exception as error:  # no such table, or one that pyiceberg cannot read
            return f"{table.target} cannot be read: {type(error).__name__} {error}"
        return difference(table, target_rows(table, found))

    def _append_innocent(self) -> None:
        row = (f"i{len(self.innocent)}", len(self.innocent))
        self.innocent.append(row)
        table = self.lake.catalog.load_table(INNOCENT)
        moment = pa.array([self.tables[0].start + len(self.innocent) * HOUR // 4], pa.timestamp("us", "UTC"))
        columns = [pa.array([row[0]], pa.large_string()), moment, pa.array([row[1]], pa.int64())]
        table.append(pa.Table.from_arrays(columns, schema=table.schema().as_arrow()))

    def _declare(self) -> None:
        """Write the declarations of all tables that are played on, and of the innocent one."""
        for file in (self.lake.folder / "tables").glob("h*.*"):
            file.unlink()
        modules = []
        documents: list[dict[str, Any]] = [
            {
                "table": "core.innocent_t",
                "mode": "stateless",
                "sources": [{"table": INNOCENT, "time_column": "at", "key": "id"}],
                "key": "id",
                "time_column": "at",
                "sql": "SELECT id, at, v FROM innocent",
                "audits": ["source_target_counts", "unique_key"],
            }
        ]
        for table in self.living:
            if table.language == "yaml":
                documents.append(yaml_declaration(table))
            else:
                module = f"own_{table.name}"
                (self.lake.folder / f"{module}.py").write_text(python_declaration(table))
                modules.append(f"{module}:PIPELINE")
        self.lake.declare(*documents)
        self.lake.environment["LAKE_PIPELINES"] = ",".join([self.lake.environment["LAKE_PIPELINES"], *modules])


def _message(table: Hostile, text: str) -> str:
    """Return the errors of an output that name a table, with their remedies."""
    found: list[str] = []
    is_named = False
    for line in text.splitlines():
        if line[:1].strip():
            is_named = line.startswith(("Error", "Warning")) and bool(re.search(rf"\b{table.name}(_t)?\b", line))
        if is_named and line not in found:
            found.append(line)
    return "\n".join(found)


PERMITTED: tuple[tuple[str, Callable[[Hostile], bool]], ...] = (
    (r"does not read .* rightly", lambda table: table.writer == "ms"),
    (r"no (finite )?number", lambda table: table.origin == "raw" and not table.is_finite),
    (r"belong to lake-assets", lambda table: any(column.name.lower().startswith("_lake_") for column in table.columns)),
    (r"(does not exist|should have the column|has no column|is gone)", lambda table: "rename used" in table.done),
    (
        r"(should have the column|type|lake check|lake init|long|double|decimal)",
        lambda table: "widen" in table.done,
    ),
    (r"(replaced|lake check|lake init|should have the column)", lambda table: "replace" in table.done),
    (r"(?i)\btime\b", lambda table: any(column.kind == "time" for column in table.columns)),
    (r"_file|_pos", lambda table: any(column.name in ("_file", "_pos") for column in table.columns)),
    (r"", lambda table: len({column.name.lower() for column in table.columns}) < len(table.columns)),
)
"""Text of a message → whether a table may be refused with it. Every other refusal is a finding."""


def _may_refuse(table: Hostile, message: str) -> bool:
    return any(re.search(text, message) and fits(table) for text, fits in PERMITTED)


def _tail(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines()[-6:])[-900:]


def query(table: Hostile, source: str) -> str:
    """Return the SQL of a target."""
    time = quoted(table.time.name)
    if table.mode == "stateful":
        return (
            f"SELECT date_trunc('hour', {time}) AS hour_, count(*) AS n,"
            f" count(DISTINCT {quoted(table.key.name)}) AS keys"
            f" FROM {source} GROUP BY date_trunc('hour', {time})"
        )
    if table.mode == "sequential":
        return (
            "WITH c AS (SELECT total AS n, hour_ AS at_ FROM previous UNION ALL"
            f" SELECT 1 AS n, {time} AS at_ FROM {source} WHERE {time} >= (SELECT min(hour) FROM session_hours))"
            " SELECT h.hour AS hour_, CAST(sum(c.n) AS bigint) AS total FROM session_hours h"
            " JOIN c ON c.at_ < h.hour + INTERVAL 1 HOUR GROUP BY h.hour"
        )
    columns = ", ".join(f"{sql} AS {name}" for name, sql, _, _ in selected(table))
    return f"SELECT {columns} FROM {source}"


def _target_columns(table: Hostile) -> dict[str, str]:
    if table.mode == "stateful":
        return {"hour_": "timestamptz", "n": "long", "keys": "long"}
    if table.mode == "sequential":
        return {"hour_": "timestamptz", "total": "long"}
    return {name: kind for name, _, kind, _ in selected(table)}


def _identity(table: Hostile) -> tuple[str, str]:
    return ("hour_", "hour_") if table.mode in ("stateful", "sequential") else ("key_", "time_")


RULE = "n % 7 = 3 -- every seventh"


def yaml_declaration(table: Hostile) -> dict[str, Any]:
    """Return the attributes of a target in YAML."""
    source: dict[str, Any] = {"table": table.table, "time_column": table.time.name, "key": table.key.name}
    if table.rule:
        source["rules"] = {"the number is 'odd'": RULE}
    if table.origin == "raw":
        source["columns"] = {column.name: column.kind for column in table.columns}
    key, time_column = _identity(table)
    document: dict[str, Any] = {
        "table": table.target,
        "mode": {"stateful": {"stateful": {"load": "changed"}}}.get(table.mode, table.mode),
        "sources": [source],
        "key": key,
        "time_column": time_column,
        "sql": query(table, table.name),
        "audits": ["unique_key", *(["source_target_counts", "no_missing_events"] if table.mode == "stateless" else [])],
    }
    if table.mode == "sequential":
        document["columns"] = _target_columns(table)
    return document


def python_declaration(table: Hostile) -> str:
    """Return a module with the pipeline of a target."""
    modes = {"stateless": "Stateless()", "corrected": "Stateless()", "stateful": "Stateful(load='changed')"}
    key, time_column = _identity(table)
    columns = f"columns={ {column.name: column.kind for column in table.columns}!r}, " if table.origin == "raw" else ""
    rules = f", rules=(Rule('the number is odd', {RULE!r}),)" if table.rule else ""
    versions = """, keep="last", order_by="version", deleted="op = 'D'" """ if table.mode == "corrected" else ""
    body = f"rows.selectExpr(*{[f'{sql} AS {name}' for name, sql, _, _ in selected(table)]!r})"
    if table.mode == "stateful":
        hour = f"date_trunc('hour', {quoted(table.time.name)}) AS hour_"
        keys = f"{quoted(table.key.name)} AS key_"
        counts = "F.count('*').alias('n'), F.countDistinct('key_').alias('keys')"
        body = f"rows.selectExpr({hour!r}, {keys!r}).groupBy('hour_').agg({counts})"
    return f'''from pyspark.sql import functions as F
from lake_assets import Pipeline, RawTable, Rule, Source, Stateful, Stateless, audits, incremental_asset

RAW = RawTable({table.table!r}, {columns}time_column={table.time.name!r})


@incremental_asset(
    mode={modes[table.mode]},
    sources=[Source({table.table!r}, time_column={table.time.name!r}, key={table.key.name!r}{rules}{versions})],
    key={key!r},
    time_column={time_column!r},
    columns={_target_columns(table)!r},
    audits=[audits.unique_key()],
)
def {table.name}_t(session, rows):
    """Hostile rows."""
    return {body}


PIPELINE = Pipeline(raw=(RAW,), targets=({table.name}_t,), start={STARTS[table.era]!r})
'''


def play(folder: Path, remote: str, tables: list[Hostile]) -> Outcome:
    """Play a world in an empty folder."""
    return World(LakeDoor(folder, {"LAKE_SPARK_REMOTE": remote}), remote, tables).play()
