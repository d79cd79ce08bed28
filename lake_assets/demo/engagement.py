"""The engagement demo: traffic, streams that Dagster runs, an erasure with its certificate, maintenance, and proofs.

Like the membership demo it starts all services, sends messages, and waits for what sensors and runs make of them. The
turns of a lake are watched in ZooKeeper, where the coordinator records them, so turns of runs of Dagster, of commands
and of other machines are seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from lake_assets.base.extras import installed
from lake_assets.connections.addresses import DASHBOARD_PATH, kafka_address, required, zookeeper_address
from lake_assets.connections.spark import open_spark
from lake_assets.coordination import zookeeper_client
from lake_assets.coordination.registry import Registry, decode_turn
from lake_assets.demo import home as services
from lake_assets.demo.engagement_simulator import (
    Message,
    Person,
    Simulation,
    batches,
    erasure,
    flawed,
    generate,
    org_names,
    replay,
    send,
    without_unmatched,
)
from lake_assets.demo.home import (
    PATIENCE_ON_SERVERS,
    START,
    check,
    console,
    expect_command,
    headline,
    play_on_services,
    prepare_home,
)
from lake_assets.demo.stage import runs_by_job
from lake_assets.engagement.known_requests import ingested_versions
from lake_assets.engagement.lake import EMAILS, STREAMS, TURNS
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.maintenance import is_cleaned_up
from lake_assets.engagement.metrics import metrics_are_behind, read_metrics
from lake_assets.engagement.monitoring import stream_status, unnotified_batches
from lake_assets.engagement.notifications import DATA_COMMIT, total_counts
from lake_assets.engagement.tables import DEAD_LETTER, ENGAGEMENT, open_tables
from lake_assets.incremental.declaration import Pipeline
from lake_assets.pages.charts import TakenTurn, turn_lines
from lake_assets.services import lifecycle

if TYPE_CHECKING:
    from kazoo.client import KazooClient
    from kazoo.protocol.states import ZnodeStat
    from pyspark.sql import SparkSession

    from lake_assets.coordination.rules import Turn
    from lake_assets.engagement.checkpoint import Checkpoint
    from lake_assets.engagement.lake import EngagementLake
    from lake_assets.engagement.tables import LakeTables
    from lake_assets.settings import Settings


@dataclass(frozen=True)
class RecordedTurn:
    """A state of a turn. at: When it was recorded, in seconds since 1970 by ZooKeeper's clock."""

    turn: Turn
    at: float


@dataclass(frozen=True)
class DoneTurn:
    """A turn that ended, with the picture's view of it."""

    turn: Turn
    taken: TakenTurn


def done_turns(records: Sequence[RecordedTurn]) -> list[DoneTurn]:
    """Return the turns that were done, in order. Pure.

    Nobody gets a turn before the last one is done. So if a turn's end is missing, because the next state followed at
    once, it ended when the turn of another began.

    Args:
        records: All states, in order. A turn whose beginning is missing seems to begin when it was done.
    """
    found: list[DoneTurn] = []
    running: RecordedTurn | None = None
    for record in records:
        if running is not None and running.turn.token != record.turn.token:
            if running.turn.name != record.turn.name:  # otherwise the stream goes on with its own turn
                found.append(_done(running, running.at, record.at))
            running = None
        if record.turn.state == "done":
            found.append(_done(record, running.at if running else record.at, record.at))
            running = None
        elif running is None:
            running = record
    return found


def _done(record: RecordedTurn, began: float, ended: float) -> DoneTurn:
    return DoneTurn(record.turn, TakenTurn(record.turn.name, began, ended))


class TurnLog:
    """Watches the registry of a lock from now on.

    Args:
        zk: A started client. The watch ends with it.
        lock_name: The lock.
    """

    def __init__(self, zk: KazooClient, lock_name: str) -> None:
        self._path = Registry(zk, lock_name).turn_path
        self._records: list[RecordedTurn] = []
        zk.DataWatch(self._path, self._note)

    def done(self) -> list[DoneTurn]:
        """Return the turns that were done so far, in order."""
        return done_turns(list(self._records))

    def _note(self, data: bytes | None, status: ZnodeStat | None) -> None:
        if data is not None and status is not None:
            self._records.append(RecordedTurn(decode_turn(data, self._path), float(status.last_modified)))


PARTITIONS = 2
POLL_SECONDS = 2.0


@dataclass
class Stage:
    """The parts of the demo, and what was printed so far.

    Attributes:
        servers: Kafka's `host:port`.
        log: The turns that the coordinator records.
        shown_turns: Number of turns that were looked at.
        shown_batches: Stream → its last batch that was printed.
    """

    home: Settings
    spark: SparkSession
    tables: LakeTables
    servers: str
    log: TurnLog
    shown_turns: int = 0
    shown_batches: dict[str, int] = field(default_factory=dict)

    @property
    def lake(self) -> EngagementLake:
        return self.tables.lake

    def open(self, simulation: Simulation) -> None:
        """Create topics and tables, and register the orgs of the simulation. Sensors do nothing before."""
        orgs = [word for org in org_names(simulation) for word in ("--org", org)]
        expect_command(self.home, 0, "engagement", "init", self.lake.name, *orgs, "--partitions", str(PARTITIONS))

    def send(self, messages: Sequence[Message]) -> None:
        sent = send(self.servers, messages)
        counts = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(sent.items()))
        console.print(f"  [cyan]→[/] {counts}")

    def wait_until_idle(self, *, cleaned_up: bool = False) -> None:
        """Wait until the runs of Dagster have processed all messages, and print each batch when it is done.

        Args:
            cleaned_up: Whether to wait for maintenance and for the metrics, too.
        """

        def busy() -> list[str]:
            found = self._unread() or self._new_rows()
            if not found and cleaned_up and not is_cleaned_up(self.tables):
                return ["maintenance"]
            return found or (["the metrics"] if cleaned_up and metrics_are_behind(self.tables) else [])

        services.wait_until_idle(self.home, busy, self._show_new_turns, poll_seconds=POLL_SECONDS)

    def status(self) -> None:
        services.run_command(self.home, "engagement", "status", self.lake.name)

    def each_turn_was_a_run(self) -> bool:
        """Return whether all who take turns had some, and none that no run of Dagster took."""
        turns = Counter(done.turn.name for done in self.log.done())
        runs = runs_by_job(self.home)
        return all(0 < turns[name] <= runs[f"{self.lake.name}_{name}_job"] for name in TURNS)

    def _unread(self) -> list[str]:
        found = []
        for name in STREAMS:
            status = stream_status(self.tables, name, self.servers)
            if status.lag or status.unfinished:
                found.append(f"{status.app_name} ({status.lag} offsets behind)")
        return found

    def _new_rows(self) -> list[str]:
        """Return that mutation has not looked at the newest rows yet, which may be late."""
        last = self._checkpoint("mutation")
        if last is None:
            return []
        left = last.done.get(DATA_COMMIT) or last.batch.reads[ENGAGEMENT]
        return ["mutation (new rows may be late)"] if ingested_versions(self.tables, left) else []

    def _checkpoint(self, name: str) -> Checkpoint | None:
        return self.tables.checkpoints.read(f"{self.lake.name}.{name}")

    def _show_new_turns(self) -> None:
        done = self.log.done()
        for turn in done[self.shown_turns :]:
            self._show_turn(turn)
        self.shown_turns = len(done)

    def _show_turn(self, done: DoneTurn) -> None:
        """Print a turn with a batch, or a maintenance. A batch that a later turn has replaced since is left out."""
        name = done.turn.name
        follows = f"follows {done.turn.predecessor}" if done.turn.predecessor else "is the first"
        seconds = f"[dim]{done.taken.ended - done.taken.began:.1f} s[/]"
        if name not in STREAMS:
            console.print(f"  [green]■[/] {name} {follows} {seconds}")
            return
        last = self._checkpoint(name)
        if last is None or not last.finished or self.shown_batches.get(name) == last.batch.batch_id:
            return
        self.shown_batches[name] = last.batch.batch_id
        changed = _describe(self._counts(last))
        console.print(f"  [green]■[/] {name} {follows}: batch {last.batch.batch_id}: {changed} {seconds}")

    def _counts(self, batch: Checkpoint) -> dict[str, int]:
        """Return the rows that a batch inserted, updated and deleted, and its dead letters."""
        counts: dict[str, int] = {}
        data, dead = batch.done.get(DATA_COMMIT), batch.done.get("dead_letter")
        if data is not None:
            counts |= asdict(total_counts(self.tables.commit_at(ENGAGEMENT, data)))
        if dead is not None:
            counts["dead letters"] = total_counts(self.tables.commit_at(DEAD_LETTER, dead)).inserted
        return counts


def _describe(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "no row changed"


LAKE = EMAIL_EVENT
SIMULATION = Simulation(orgs=6, people=150, touches=1_000, poison=0, missing=0, retention=0)
"""Every message is sound, so the replay gives the right rows. Requests that never find an engagement are left out."""

PARTS = 2
NO_TABLES = Pipeline(raw=(), targets=(), start=START)
"""The pipeline of the demo: there is nothing but the lake."""

SETTINGS = {
    "LAKE_LAKES": LAKE.name,
    "LAKE_PIPELINES": f"{__name__}:NO_TABLES",
    # Short, because somebody waits. Maintenance is rarer: it would find hardly anything to do.
    "LAKE_INGESTION_SECONDS": "5",
    "LAKE_MUTATION_SECONDS": "5",
    "LAKE_RETENTION_SECONDS": "5",
    "LAKE_ENGAGEMENT_MAINTENANCE_SECONDS": "120",
    # A scene is a dozen runs, one after the other.
    "LAKE_SETTLE_SECONDS": str(PATIENCE_ON_SERVERS),
}


def run(*, keep_up: bool, on_servers: bool = False) -> None:
    """Play all scenes in the data directory of the settings.

    Args:
        keep_up: If every proof holds, leave the services running at the end.
        on_servers: Whether the settings name servers and folders, all of them made for this demo.

    Raises:
        LakeError: A proof does not hold.
        ServiceError: A service did not start, or a scene took too long.
        UsageError: The data directory is not the demo's own.
    """
    home = prepare_home(on_servers=on_servers, fixed=SETTINGS)
    play_on_services(home, _play, keep_up=keep_up)
    if keep_up:
        _show_addresses(home)


def _show_addresses(home: Settings) -> None:
    ui = lifecycle.ui_address(home)
    lines = {
        "The graph of the lake": f"{ui}/locations/lake_assets/asset-groups/engagement_{LAKE.name}",
        "The runs of its streams": f"{ui}/runs",
        "The dashboard": f"{ui}{DASHBOARD_PATH}/{LAKE.name}",
        "What the streams do": f"LAKE_HOME={home.home} lake engagement status {LAKE.name}",
        "More traffic": f"LAKE_HOME={home.home} lake engagement simulate {LAKE.name} --seed 2",
    }
    for what, where in lines.items():
        console.print(f"  {what:<24} {where}")
    console.print("  [dim]The streams take turns every few seconds, until the services are stopped.[/]")


def _play(home: Settings) -> None:
    spark = open_spark(home)
    servers = required(kafka_address(home), "Kafka")
    try:
        with zookeeper_client(required(zookeeper_address(home), "ZooKeeper")) as zk:
            stage = Stage(home, spark, open_tables(home, LAKE), servers, TurnLog(zk, LAKE.lock))
            _play_scenes(stage)
    finally:
        spark.stop()


def _play_scenes(stage: Stage) -> None:
    stage.open(SIMULATION)
    messages = without_unmatched(generate(SIMULATION, LAKE), LAKE)
    reasons = _play_traffic(stage, messages)
    replayed = replay(messages, LAKE)
    [(person, _)] = Counter(replayed.rows.values()).most_common(1)
    _play_erasure(stage, person, at=messages[-1].timestamp)
    headline("The certificate", "Every file is decoded and searched for each id of the erased person.")
    for org, who_id in sorted(replayed.ids(person)):
        expect_command(stage.home, 0, "erasure", "certify", "org", org, who_id)
    _check_proofs(stage, replayed.without(person), reasons)
    headline("The coordinator", "Each block is a turn. No two streams have the lock at once, and each follows its own.")
    for line in turn_lines([done.taken for done in stage.log.done()], TURNS):
        console.print(f"  {line}", highlight=False)
    if installed("pages"):
        headline("The dashboard", f"`lake engagement dashboard {LAKE.name} --serve` serves it.")
        expect_command(stage.home, 0, "engagement", "dashboard", LAKE.name)


def _play_traffic(stage: Stage, messages: list[Message]) -> Counter[str]:
    """Send all messages in parts, and broken ones with the first part; return the reasons of the broken ones."""
    broken = list(flawed(messages, LAKE))
    extra = [message for message, _ in broken]
    part_size = -(-len(messages) // PARTS)
    for number, part in enumerate(batches(messages, part_size), start=1):
        headline(
            f"Traffic, part {number} of {PARTS}",
            "Emails, calls, conversions, merges and deletions; some are late. Sensors request turns; runs take them.",
        )
        stage.send(part + extra)
        stage.status()
        stage.wait_until_idle()
        extra = []
    return Counter(reason for _, reason in broken)


def _play_erasure(stage: Stage, person: Person, *, at: int) -> None:
    org, who_id = person
    headline(
        "An erasure",
        f"{who_id} of {org} has the most engagements. This person is erased under every id. Maintenance then removes"
        " old files that still mention the person, at once.",
    )
    stage.send([erasure(person, LAKE, at)])
    stage.wait_until_idle(cleaned_up=True)
    stage.status()


def _check_proofs(stage: Stage, expected: Mapping[str, Person], reasons: Counter[str]) -> None:
    """Check what is left at the end. expected: engagement id → person. reasons: of dead letters → number."""
    headline("The proofs", f"A replay of all messages, one by one, leaves {len(expected):,} rows.")
    tables, spark = stage.tables, stage.spark
    rows = tables.read(spark, ENGAGEMENT).select("engagement_id", "org_id", "who_id", "kind").collect()
    found = sorted((row["engagement_id"], (row["org_id"], row["who_id"])) for row in rows)
    dead_letters = tables.read(spark, DEAD_LETTER).select("reason").collect()
    check("rows equal the replay, each once", found == sorted(expected.items()), expected=True)
    found_reasons = Counter(row["reason"] for row in dead_letters)
    check("each broken message is one dead letter with its reason", found_reasons, reasons)
    check("each data commit has one notification", list(unnotified_batches(tables)), [])
    kinds, metrics = Counter(row["kind"] for row in rows), read_metrics(tables).to_pydict()
    emails = {kind: kinds[kind] for kind in EMAILS.kinds}
    check("metrics count the emails that are left", {kind: sum(metrics[kind]) for kind in emails}, emails)
    check("each turn was taken by a run of Dagster", stage.each_turn_was_a_run(), expected=True)
