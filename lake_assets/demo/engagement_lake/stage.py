"""The parts that the scenes of the engagement demo use, and what they wait for.

The demo only sends messages and looks. Dagster's sensors request the turns, and its runs take them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from lake_assets.demo import services
from lake_assets.demo.dagster_api import runs_by_job
from lake_assets.demo.engagement_lake.turn_log import DoneTurn, TurnLog
from lake_assets.demo.engagement_simulator import Message, org_names, send
from lake_assets.demo.output import console
from lake_assets.engagement.erasure.certificate import certify
from lake_assets.engagement.maintenance.maintain import is_cleaned_up
from lake_assets.engagement.metrics.refresh import metrics_are_behind
from lake_assets.engagement.model.kafka_topic import KafkaTopic
from lake_assets.engagement.model.lake import STREAMS, TURNS
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, ENGAGEMENT
from lake_assets.engagement.monitoring.status import stream_status
from lake_assets.engagement.notifications.notify import DATA_COMMIT, total_counts
from lake_assets.engagement.streams.late_arrivals import ingested_versions
from lake_assets.pages.terminal import engagement as views
from lake_assets.pages.terminal.render import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lake_assets.demo.engagement_simulator import Simulation
    from lake_assets.demo.engagement_simulator.replay import Person
    from lake_assets.engagement.model.checkpoint import Checkpoint
    from lake_assets.engagement.model.lake import EngagementLake
    from lake_assets.engagement.model.tables import LakeTables
    from lake_assets.settings import Settings

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
        for name in STREAMS:
            KafkaTopic(self.servers, self.lake.topic(name)).create(PARTITIONS)
        self.tables.create(self.spark)
        self.tables.register_orgs(dict.fromkeys(org_names(simulation)))

    def send(self, messages: Sequence[Message]) -> None:
        sent = send(self.servers, messages)
        counts = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(sent.items()))
        console.print(f"  [cyan]→[/] {counts}")

    def wait_until_idle(self, *, cleaned_up: bool = False) -> None:
        """Wait until the runs of Dagster have processed all messages, and print each batch when it is done.

        Requests may still be pending then: those whose rows come with the next messages, or never.

        Args:
            cleaned_up: Whether to wait for maintenance and for the metrics, too.
        """

        def busy() -> list[str]:
            return self._unread() or self._new_rows() or (self._behind() if cleaned_up else [])

        services.wait_until_idle(self.home, busy, self._show_new_turns, poll_seconds=POLL_SECONDS)

    def status(self) -> None:
        services.run_command(self.home, "engagement", "status", self.lake.name)

    def certify(self, person: Person) -> bool:
        """Print the certificate of an id; return whether no file of the lake has the id."""
        org, who_id = person
        console.print(f"  [cyan]?[/] lake erasure certify org {org} {who_id}")
        found = certify(self.tables.root, [self.lake], org, who_id, self.servers)
        show(views.certificate(found))
        return found.nowhere

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

    def _behind(self) -> list[str]:
        if not is_cleaned_up(self.tables):
            return ["maintenance"]
        return ["the metrics"] if metrics_are_behind(self.tables) else []

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
