"""A lake, its runners, everything that others do to it, and the oracle.

At each publish, the rows of all hours that do not wait equal a replay of the sources at the watermark that was just
committed. At the end, all targets equal a replay of what the raw tables hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotRefUpdate, SetSnapshotRefUpdate
from pyiceberg.table.update.snapshot import _OverwriteFiles

from lake_assets.base.hours import hour_key
from lake_assets.connections.catalog import open_catalog
from lake_assets.connections.spark import open_spark
from lake_assets.errors import (
    AuditFailed,
    ErasureStopped,
    HistoryCut,
    LakeError,
    TableMissing,
    TargetGone,
    TargetRolledBack,
    UsageError,
)
from lake_assets.incremental.engine import iceberg, publish
from lake_assets.incremental.engine.engine import OVERTAKEN, Engine, catch_up
from lake_assets.incremental.engine.iceberg import QUARANTINE, SESSION, OneCopyTransaction
from lake_assets.incremental.engine.model import NoSession, OpenedSession
from lake_assets.incremental.engine.state import has_state
from lake_assets.incremental.erasure.erase import erase
from lake_assets.incremental.operations.maintain import Maintainer, Policy
from lake_assets_tests.incremental.schedules.rows import (
    DIM,
    RAW,
    REFUSED,
    SOURCES,
    START,
    TARGETS,
    Row,
    arrow,
    moment,
    pipeline,
    replay,
    rows_in,
)
from lake_assets_tests.incremental.schedules.runner import COMMIT, COMMITTED, EVERY, POINT, Runner, watched

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from lake_assets.incremental.declaration import Target
    from lake_assets.settings import Settings

RUNNERS = 3
ACCOUNTS = ("x-01", "x-02", "x-03", "x-04")
ROUNDS = 30
"""So many rounds after which nothing may be left to do."""

LAST = 7
"""The latest hour of a stranger's rows. All raw tables are complete through it in the end."""

STOPS = (TargetGone, TargetRolledBack)
"""Errors with which a target waits for a person."""


class Violation(AssertionError):
    """Something that must hold does not."""


class Step(NamedTuple):
    """One step of a schedule. pick: which runner or table. seed: of all else that is drawn."""

    name: str
    pick: int
    seed: int


WEIGHTS = {
    "start": 10.0,
    "race": 8,
    "step": 16,
    "finish": 8,
    "die": 3,
    "lose": 4,
    "land": 10,
    "advance": 8,
    "fix": 3,
    "compact": 4,
    "expire": 4,
    "stranger": 2,
    "roll_back": 1,
    "roll_back_raw": 0.7,
    "drop": 0.5,
    "recreate": 0.5,
    "publish_by_hand": 0.8,
    "erase": 1,
    "external": 1.5,
}
"""Operation → how often it comes."""

ALWAYS = ("start", "race", "step", "finish", "land", "advance")
FIRST = ("land", "land", "advance", "advance", "advance", "advance")


def schedule(seed: int, length: int) -> list[Step]:
    """A random schedule. Each has its own stress: an operation is rare, usual or frequent in it."""
    random = Random(seed)
    weights = [w * (1 if name in ALWAYS else random.choice((0, 1, 1, 1, 3))) for name, w in WEIGHTS.items()]
    names = [*FIRST, *random.choices(list(WEIGHTS), weights, k=length)]
    picks = [*range(len(FIRST)), *(random.randrange(1000) for _ in range(length))]
    return [Step(name, pick, random.randrange(10**6)) for name, pick in zip(names, picks, strict=True)]


class World:
    """One lake."""

    def __init__(self, home: Settings, seed: int) -> None:
        self.home = home
        self.pipeline = pipeline(Random(seed))
        self.sparks: dict[int, SparkSession] = {}
        self.catalog: Catalog = watched(open_catalog(home), self.committed)
        self.engine = self.engine_on(self.catalog, RUNNERS)
        self.engine.create_tables()
        self.runners: list[tuple[Runner, int, int]] = []
        """Each with its place, and with how much had been destroyed when it started."""
        self.counts: Counter[str] = Counter()
        self.rows: dict[tuple[str, int | None], list[Any]] = {(name, None): [] for name in (*RAW, *TARGETS)}
        """Table, snapshot → its rows, also of snapshots that have expired since."""
        self.numbers: dict[str, list[tuple[str, int]]] = {target: [] for target in TARGETS}
        self.touched: Counter[str] = Counter()
        self.destroyed = self.landings = self.ids = 0
        self.erasing: set[str] = set()
        self.erased: set[str] = set()
        self.excused: set[str] = set()
        self.refused = self.dropped = False
        self.violation: Violation | None = None

    def close(self) -> None:
        for runner, _, _ in self.runners:
            runner.die()
        for spark in self.sparks.values():
            spark.stop()

    def engine_on(self, catalog: Catalog, place: int) -> Engine:
        return Engine(
            catalog,
            self.pipeline,
            clock=lambda: datetime.now(UTC),
            spark=lambda: self.spark(place),
            erasure_key=lambda: b"key",
        )

    def spark(self, place: int) -> SparkSession:
        """A session for each place of a runner: processes share none."""
        if place not in self.sparks:
            self.sparks[place] = open_spark(self.home)
        return self.sparks[place]

    def load(self, name: str) -> Table:
        return iceberg.load(self.catalog, name)

    def find(self, name: str) -> Table | None:
        return iceberg.find(self.catalog, name)

    # The oracle

    def committed(self, name: str, updates: Sequence[Any]) -> None:
        """Called after each commit of anybody."""
        if name not in (*RAW, *TARGETS):
            return
        main = publish.main_id(iceberg.load(self.looking, name))
        self.rows_at(name, main)
        moved = [each for each in updates if isinstance(each, SetSnapshotRefUpdate) and each.ref_name == publish.TAG]
        if moved and self.violation is None:
            try:
                self.published(name, main)
            except Violation as violation:
                self.violation = violation

    @property
    def looking(self) -> Catalog:
        """A catalog at which no runner stands still."""
        if not hasattr(self, "_looking"):
            self._looking = open_catalog(self.home)
        return self._looking

    def published(self, name: str, main: int | None) -> None:
        self.counts["published"] += 1
        state = Engine(self.looking, self.pipeline, clock=lambda: datetime.now(UTC)).state(self.pipeline.target(name))
        if state.uuid is None or (state.uuid, state.n) in self.numbers[name]:
            raise Violation(f"{name}: session {state.n} a second time")
        self.numbers[name].append((state.uuid, state.n))
        sources = {source: self.rows_at(source, mark.snapshot_id) for source, mark in state.watermarks.items()}
        committed = state.committed
        last = None if committed.last_built is None else committed.last_built - START
        waiting = {hour - START for hour in committed.waiting}
        rows = self.rows_at(name, main)
        found = [row for row in rows if row[0] not in waiting]
        expected = [row for row in replay(name, sources, last) if row[0] not in waiting]
        if found != expected:
            raise Violation(
                f"{name} at the watermark of {state.session_id}, n {state.n}: {difference(found, expected)}"
            )
        back = {row[1 if name == DIM else 2] for row in rows} & self.erased - self.excused
        if back:
            raise Violation(f"{name}: erased accounts are back: {sorted(back)}")

    # Runners

    def do(self, operation: Step) -> None:
        name, pick, seed = operation
        getattr(self, name)(pick, Random(seed))
        self.counts[name] += 1
        if self.violation is not None:
            raise self.violation

    def begin(self, name: str, work: Callable[[Engine], object]) -> None:
        taken = {place for _, place, _ in self.runners}
        place = min(set(range(RUNNERS)) - taken)
        engine = self.engine_on(watched(open_catalog(self.home), self.committed), place)
        self.runners.append((Runner(name, lambda: work(engine)), place, self.destroyed))

    def start(self, pick: int, random: Random) -> None:
        if len(self.runners) == RUNNERS:
            return
        target = self.pipeline.target(TARGETS[pick % 3])
        hours = [START + hour for hour in random.sample(range(8), random.randint(1, 3))]
        works: dict[str, tuple[int, Callable[[Engine], object]]] = {
            "run": (12, lambda engine: engine.run(target)),
            "catch-up": (3, lambda engine: catch_up(engine, self.pipeline.targets, on_error=self.judge_of_catch_up)),
            "rebuild": (2, lambda engine: engine.rebuild(target, hours, run_id=str(pick))),
            "rebuild --reset": (0 if self.erasing else 1, lambda engine: engine.rebuild(target, hours, reset=True)),
            "rebuild of all": (1, lambda engine: engine.rebuild_all(target)),
            "repair": (1, lambda engine: engine.repair(target)),
            "carry": (1, lambda engine: engine.carry(target, why="maintenance")),
            "acknowledge": (1, lambda engine: engine.acknowledge(target)),
            "maintain": (1, lambda engine: self.maintain(engine, random.choice((*RAW, *TARGETS)))),
        }
        name = random.choices(list(works), [weight for weight, _ in works.values()])[0]
        self.begin(f"{name} {target.table}", works[name][1])
        if random.random() < 0.5:
            self.advance_runner(len(self.runners) - 1, (POINT,))

    def race(self, pick: int, random: Random) -> None:
        """While a session of a target stands still, something else happens to the target."""
        if len(self.runners) > RUNNERS - 2:
            self.finish(0, random)
        self.land(pick, random)
        self.advance(pick, random)
        target = self.pipeline.target(TARGETS[pick % 3])
        self.begin(f"run {target.table}", lambda engine: engine.run(target))
        first = self.runners[-1]
        for _ in range(random.randint(1, 4)):
            if first in self.runners:
                self.advance_runner(self.runners.index(first), random.choice(((POINT,), (POINT, COMMIT))))
        others = ("start", "start", "start", "external", "compact", "stranger", "fix", "land")
        other = random.choice(others)
        place = pick % 3 + (len(RAW) if other == "compact" else 0)
        before = [runner for runner, _, _ in self.runners]
        getattr(self, other)(place, random)
        for runner in [each for each in self.runners if each[0] not in before]:
            self.advance_runner(self.runners.index(runner))
        if first in self.runners and random.random() < 0.7:
            self.advance_runner(self.runners.index(first))

    def maintain(self, engine: Engine, name: str) -> object:
        assert engine.spark is not None
        policy = Policy(retain=timedelta(0), newest=1, compact_files=2, many_manifests=2)
        now = Engine(engine.catalog, self.pipeline, clock=lambda: datetime.now(UTC), spark=engine.spark)
        return Maintainer(now, policy).maintain(name)

    def judge_of_catch_up(self, error: Exception) -> None:
        self.judge("catch-up", error, destroyed=True, lost=True)

    def advance_runner(self, place: int, until: Sequence[str] = ()) -> None:
        runner, _, destroyed = self.runners[place]
        runner.go_on(until)
        if runner.over:
            del self.runners[place]
            if runner.error is not None:
                changed = self.destroyed > destroyed
                self.judge(runner.name, runner.error, destroyed=changed, lost=runner.has_lost)

    def judge(self, who: str, error: BaseException, *, destroyed: bool, lost: bool) -> None:
        """Whether an error is one that this runner may end with."""
        self.counts[type(error).__name__] += 1
        if isinstance(error, STOPS):
            if not any(self.touched.values()):
                self.violation = Violation(f"{who} stopped, and nobody had touched its target: {error}")
        elif isinstance(error, AuditFailed):
            if not self.refused:
                self.violation = Violation(f"{who}: an audit failed: {error}")
        else:
            allowed: list[type[BaseException]] = [*OVERTAKEN, ErasureStopped, HistoryCut]
            if lost:
                allowed.append(CommitStateUnknownException)
            if self.dropped:
                allowed.append(TableMissing)
            if who.startswith("external"):  # another session has ended its own
                allowed.append(UsageError)
            if not isinstance(error, tuple(allowed)) and not destroyed:
                self.violation = Violation(f"{who} failed: {type(error).__name__}: {error}")
                self.violation.__cause__ = error

    def step(self, pick: int, random: Random) -> None:
        if self.runners:
            until = random.choice((EVERY, (POINT, COMMIT), (POINT,), (COMMIT, COMMITTED)))
            self.advance_runner(pick % len(self.runners), until)

    def finish(self, pick: int, random: Random) -> None:
        if self.runners:
            self.advance_runner(pick % len(self.runners))

    def die(self, pick: int, random: Random) -> None:
        if self.runners:
            runner, _, _ = self.runners.pop(pick % len(self.runners))
            runner.die()

    def lose(self, pick: int, random: Random) -> None:
        if self.runners:
            runner, _, _ = self.runners[pick % len(self.runners)]
            runner.lost.append(random.choice(("done", "done", "undone")))

    # What happens to raw tables

    def through(self, name: str) -> int:
        hour = iceberg.complete_through(self.load(name), name)
        return -1 if hour is None else hour - START

    def held(self, name: str) -> list[Any]:
        """The rows of a table now."""
        found = self.find(name)
        return [] if found is None else self.rows_at(name, publish.main_id(found))

    def rows_at(self, name: str, snapshot_id: int | None) -> list[Any]:
        if (name, snapshot_id) not in self.rows:
            table = iceberg.load(self.looking, name)
            self.rows[name, snapshot_id] = rows_in(name, table.scan(snapshot_id=snapshot_id).to_arrow())
        return self.rows[name, snapshot_id]

    def land(self, pick: int, random: Random) -> None:
        """New rows of a raw table: now and then late, refused, for quarantine, delivered twice."""
        name = RAW[pick % 2]
        stored, rows = self.held(name), list[Row]()
        self.landings += 1
        for _ in range(random.randint(1, 4)):
            self.ids += 1
            hour = max(0, self.through(name) + 1 - random.choice((0, 0, 0, 0, -1, 1, 2, 4)))
            value = REFUSED if random.random() < 0.03 else random.randint(1, 9)
            number = None if random.random() < 0.04 else self.ids
            landed = self.landings * 1_000_000 + self.ids
            rows.append(Row(hour, number, random.choice(ACCOUNTS), value, landed))
        if stored and random.random() < 0.4:
            row = random.choice(stored)
            self.ids += 1
            again = row.landed + random.choice((-500_000, 500_000)) + self.ids
            rows.append(row._replace(value=row.value + random.randint(-2, 2), landed=again))
        self.refused = self.refused or any(row.value == REFUSED for row in rows)
        self.append(name, arrow(rows))

    def append(self, name: str, rows: Any) -> None:
        with OneCopyTransaction(self.load(name)) as transaction:
            transaction.append(rows.cast(transaction.table_metadata.schema().as_arrow()))

    def advance(self, pick: int, random: Random) -> None:
        """A raw table is complete through one hour more."""
        self.complete(RAW[pick % 2], self.through(RAW[pick % 2]) + 1)

    def complete(self, name: str, hour: int) -> None:
        with OneCopyTransaction(self.load(name)) as transaction:
            transaction.set_properties({iceberg.COMPLETE_THROUGH: hour_key(START + hour)})

    def fix(self, pick: int, random: Random) -> None:
        """A raw row is changed, or deleted."""
        name = RAW[pick % 2]
        stored = [row for row in self.held(name) if row.id is not None]
        if stored:
            row = random.choice(stored)
            kept = [] if random.random() < 0.5 else [row._replace(value=random.randint(10, 19))]
            self.overwrite(name, row, kept)

    def overwrite(self, name: str, row: Row, rows: Sequence[Row]) -> None:
        same = f"id = {row.id} and event_ts = '{moment(row.hour, row.id or 0).isoformat()}'"
        table = self.load(name)
        table.overwrite(arrow(rows).cast(table.schema().as_arrow()), same)

    def roll_back_raw(self, pick: int, random: Random) -> None:
        """A source loses what its newest snapshots did; an erasure, too."""
        self.go_back(RAW[pick % 2], random)

    def go_back(self, name: str, random: Random) -> bool:
        table = self.find(name)
        line = list(publish.ancestors(table))[1:4] if table else []
        if table is None or not line:
            return False
        table.manage_snapshots().set_current_snapshot(snapshot_id=random.choice(line).snapshot_id).commit()
        self.excused |= self.erased | self.erasing
        self.refused = True
        return True

    # What happens to any table

    def compact(self, pick: int, random: Random) -> None:
        """All files of some partitions become one each."""
        name = (*RAW, *TARGETS)[pick % 5]
        table = self.find(name)
        if table is None or publish.main_id(table) is None:
            return
        files = [task.file for task in table.scan().plan_files()]
        chosen = {str(file.partition) for file in files if random.random() < 0.7}
        old = [file for file in files if str(file.partition) in chosen]
        if old:
            rewrite(table, old, rows_in_files(table, old), Operation.REPLACE)

    def expire(self, pick: int, random: Random) -> None:
        """Only the newest snapshots of main stay, and those that a branch or a tag names."""
        name = (*RAW, *TARGETS)[pick % 5]
        table = self.find(name)
        if table is None:
            return
        kept = {ref.snapshot_id for ref in table.metadata.refs.values()}
        kept.update(each.snapshot_id for each in list(publish.ancestors(table))[: random.randint(1, 3)])
        old = [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
            self.destroyed += 1

    # What people and other programs do to targets

    def stranger(self, pick: int, random: Random) -> None:
        """Another program writes to a target."""
        name = TARGETS[pick % 3]
        table = self.find(name)
        if table is None:
            return
        held = self.held(name)
        if held and random.random() < 0.6:
            at = moment(random.choice(held)[0], 0)
            table.delete(f"at >= '{at.isoformat()}' and at < '{(at + timedelta(hours=1)).isoformat()}'")
        else:
            self.append(name, self.foreign_rows(table, random))

    def foreign_rows(self, table: Table, random: Random) -> Any:
        schema = table.schema().as_arrow()
        first = 0 if publish.tag_id(table) is None else -1  # what stands before the first session stays
        values: dict[str, Any] = {"at": moment(random.randint(first, LAST), 59), "account": "stranger"}
        row = {field.name: values.get(field.name, 99) for field in schema}
        return schema.empty_table().from_pylist([row], schema=schema)

    def roll_back(self, pick: int, random: Random) -> None:
        if self.go_back(TARGETS[pick % 3], random):
            self.touched[TARGETS[pick % 3]] += 1

    def drop(self, pick: int, random: Random) -> None:
        """A target is dropped, and now and then created again by somebody."""
        name = TARGETS[pick % 3]
        if self.find(name) is None:
            return
        self.catalog.drop_table(name)
        self.dropped = True
        self.touched[name] += 1
        self.destroyed += 1
        logged = {number for _, number in self.logged(name)}
        self.numbers[name] = [each for each in self.numbers[name] if each[1] in logged]  # else nothing knows of it
        if random.random() < 0.5:
            iceberg.create_target(self.catalog, self.pipeline.target(name))

    def recreate(self, pick: int, random: Random) -> None:
        """CREATE OR REPLACE TABLE by somebody, with a row."""
        name = TARGETS[pick % 3]
        table = self.find(name)
        if table is None or publish.main_id(table) is None:
            return
        without_main = (RemoveSnapshotRefUpdate(ref_name="main"),)  # type: ignore[call-arg]
        self.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid),), without_main)
        self.append(name, self.foreign_rows(self.load(name), random))
        self.touched[name] += 1

    def publish_by_hand(self, pick: int, random: Random) -> None:
        """A person makes a staged snapshot main."""
        name = TARGETS[pick % 3]
        table = self.find(name)
        if table is None:
            return
        main = publish.main_id(table)
        staged = [
            each
            for each in table.metadata.snapshots
            if each.parent_snapshot_id == main and each.snapshot_id != main and has_state(each)
        ]
        if staged:
            chosen = random.choice(staged)
            table.manage_snapshots().set_current_snapshot(snapshot_id=chosen.snapshot_id).commit()
            self.touched[name] += 1
            self.excused |= self.erased | self.erasing

    def erase(self, pick: int, random: Random) -> None:
        account = ACCOUNTS[pick % len(ACCOUNTS)]
        if len(self.runners) == RUNNERS or self.erasing:
            return
        self.erasing.add(account)
        self.destroyed += 1
        self.begin(f"erase {account}", lambda engine: self.erase_now(engine, account))

    def erase_now(self, engine: Engine, account: str) -> None:
        self.destroyed += 1
        erase(engine, "account", account, now=datetime.now(UTC) + timedelta(days=2))
        self.destroyed += 1
        self.erasing.discard(account)
        self.erased.add(account)

    def external(self, pick: int, random: Random) -> None:
        """Another program writes a session, or dies on the way."""
        if len(self.runners) < RUNNERS:
            target = self.pipeline.target(TARGETS[pick % 3])
            steps = random.choice((1, 2, 3, 3, 3, 3))
            self.begin(f"external {target.table}", lambda engine: self.write_session(engine, target, steps))

    def write_session(self, engine: Engine, target: Target, steps: int) -> None:
        opened = engine.open_session(target)
        if isinstance(opened, NoSession) or steps == 1:
            return
        hours = {hour - START for hour in opened.plan.hour_numbers}
        if hours and not self.write_hours(engine.catalog, target, opened, hours):
            return
        if steps == 3:
            try:
                engine.publish_session(target)
            except LakeError as error:
                if type(error) is not LakeError or opened.plan.load != "append":
                    raise
                self.counts["written again by another program"] += 1
                self.write_session(engine, target, steps)  # rows were delivered again: as an overwrite
                return
            engine.commit_session(target)
            self.counts["published by another program"] += 1

    def write_hours(self, catalog: Catalog, target: Target, opened: OpenedSession, hours: set[int]) -> bool:
        """Stage what an external program makes of planned hours; False if it cannot, as rows must be replaced."""
        name = target.table
        upto = {each.source: self.rows_at(each.source, each.to_snapshot_id) for each in opened.plan.sources}
        rows = Counter(replay(name, upto, max(hours)))
        table, old = iceberg.load(catalog, name), []
        if opened.plan.load == "append":
            since = {each.source: self.rows_at(each.source, each.from_snapshot_id) for each in opened.plan.sources}
            before = Counter(replay(name, since, max(hours)))
            if before - rows:
                return False
            rows -= before
        else:
            rows = Counter({row: times for row, times in rows.items() if row[0] in hours})
            files = [task.file for task in table.scan().plan_files()]
            old = [file for file in files if file.partition[0] is not None and file.partition[0] - START in hours]
        schema = table.schema().as_arrow()
        made = []
        for row in rows.elements():
            at = moment(row[0], 0 if name == DIM else row[1])
            made.append({"at": at, **dict(zip(schema.names[1:], row[1:], strict=True))})
        new = schema.empty_table().from_pylist(made, schema=schema)
        rewrite(table, old, new, Operation.OVERWRITE if old else Operation.APPEND, {publish.WAP_ID: opened.wap_id})
        return True

    # The end

    def settle(self) -> None:
        """Whatever has happened: nobody is wedged, and in the end each target is what it must be."""
        asleep, self.runners = self.runners, []
        self.fix_refused_rows()
        hour = max(LAST, *(self.through(name) + 1 for name in RAW))
        for name in RAW:
            self.complete(name, hour)
        self.run_until_quiet()
        self.runners = asleep
        while self.runners:  # woken long after
            self.advance_runner(0)
            if self.violation is not None:
                raise self.violation
        self.run_until_quiet()
        for account in sorted(self.erasing):
            try:
                self.erase_now(self.engine, account)
            except ErasureStopped as stopped:  # a dropped table has left its files
                if not self.dropped:
                    raise Violation(f"{account} cannot be erased: {stopped}") from stopped
        self.run_until_quiet()
        rows: dict[str, list[Any]] = {name: self.held(name) for name in RAW}
        for name in TARGETS:
            rows[name] = replay(name, {source: rows[source] for source in SOURCES[name]}, hour)
            if self.held(name) != rows[name]:
                raise Violation(f"{name} at the end: {difference(self.held(name), rows[name])}")
            self.check_log(name)
        quarantined = Counter((row["target"], row["row_hash"]) for row in self.scan(QUARANTINE))
        if any(number > 1 for number in quarantined.values()):
            raise Violation(f"rows are quarantined twice: {quarantined}")

    def fix_refused_rows(self) -> None:
        for name in RAW:
            for row in self.held(name):
                if row.value == REFUSED and row.id is not None:
                    self.overwrite(name, row, [row._replace(value=1)])

    def run_until_quiet(self) -> None:
        for _ in range(ROUNDS):
            if not sum(self.settles(name) for name in TARGETS):
                return
        raise Violation(f"not quiet after {ROUNDS} rounds")

    def settles(self, name: str) -> bool:
        """Run a target's next session, or do what its error asks a person for. Returns whether anything was done."""
        target = self.pipeline.target(name)
        try:
            found = self.engine.run(target)
        except STOPS as stop:
            self.counts[type(stop).__name__] += 1
            if not self.touched[name]:
                raise Violation(f"{name} stopped, and nobody had touched it: {stop}") from stop
            if isinstance(stop, TargetRolledBack):
                self.engine.repair(target)
            else:
                self.engine.rebuild(target, [], reset=True)
            return True
        finally:
            if self.violation is not None:
                raise self.violation
        return not isinstance(found, NoSession)

    def scan(self, name: str, where: str = "true") -> list[dict[str, Any]]:
        table = self.load(name)
        return [dict(row) for row in table.scan(where).to_arrow().to_pylist()] if table.current_snapshot() else []

    def logged(self, name: str) -> Iterator[tuple[str, int]]:
        for row in self.scan(SESSION, f"process_name = '{name}'"):
            if row["state"] == "committed":
                yield row["session_id"], row["revision"]

    def check_log(self, name: str) -> None:
        numbers = Counter(number for _, number in self.logged(name))
        twice = [number for number, times in numbers.items() if times > 1]
        missing = {number for _, number in self.numbers[name]} - set(numbers)
        if twice or missing:
            raise Violation(f"etl.session has sessions {twice} of {name} twice, and lacks {sorted(missing)}")


def difference(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """How rows differ from those that were expected."""
    surplus = list((Counter(found) - Counter(expected)).elements())
    missing = list((Counter(expected) - Counter(found)).elements())
    return f"surplus {surplus[:4]}, missing {missing[:4]} ({len(found)} rows of {len(expected)})"


class _Rewrite(_OverwriteFiles):
    """Files for files. pyiceberg has no summary for a `replace`: it is that of an overwrite, called so."""

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        called, self._operation = self._operation, Operation.OVERWRITE
        found = super()._summary(snapshot_properties or {})
        self._operation = called
        return Summary(called, **found.additional_properties)


def rewrite(
    table: Table,
    old: Sequence[DataFile],
    rows: pa.Table,
    operation: Operation,
    summary: Mapping[str, str] | None = None,
) -> None:
    """Put rows in the place of data files, in one commit. summary: of a snapshot that is staged; None: it is main."""
    with table.transaction() as transaction:
        branch = None if summary else "main"
        producer = _Rewrite(operation, transaction, table.io, snapshot_properties=dict(summary or {}), branch=branch)
        for file in old:
            producer.delete_data_file(file)
        for file in _dataframe_to_data_files(transaction.table_metadata, rows, table.io):
            producer.append_data_file(file)
        producer.commit()


def rows_in_files(table: Table, files: Sequence[DataFile]) -> pa.Table:
    tasks = [FileScanTask(data_file=file) for file in files]
    return ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
