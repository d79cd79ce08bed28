"""The engagement demo: traffic, streams that Dagster runs, an erasure with its certificate, maintenance, and proofs.

Like the membership demo it starts all services, sends messages, and waits for what sensors and runs make of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lake_assets.base.extras import installed
from lake_assets.connections.addresses import DASHBOARD_PATH, kafka_address, required, zookeeper_address
from lake_assets.connections.spark import open_spark
from lake_assets.coordination import zookeeper_client
from lake_assets.demo.engagement_lake.stage import Stage
from lake_assets.demo.engagement_lake.turn_log import TurnLog
from lake_assets.demo.engagement_simulator import Message, Simulation, batches, generate
from lake_assets.demo.engagement_simulator.replay import Person, erasure, flawed, replay, without_unmatched
from lake_assets.demo.home import PATIENCE_ON_SERVERS, START, prepare_home
from lake_assets.demo.output import console, headline
from lake_assets.demo.services import play_on_services
from lake_assets.engagement.metrics.refresh import read_metrics
from lake_assets.engagement.model.configuration.metric_groups import EMAILS
from lake_assets.engagement.model.lake import TURNS
from lake_assets.engagement.model.lakes import EMAIL_EVENT
from lake_assets.engagement.model.table_schemas import DEAD_LETTER, ENGAGEMENT
from lake_assets.engagement.model.tables import open_tables
from lake_assets.engagement.monitoring.audits import unnotified_batches
from lake_assets.incremental.declaration import Pipeline
from lake_assets.pages.dashboard import page_of_lake
from lake_assets.pages.page import write
from lake_assets.pages.turn_chart import turn_lines
from lake_assets.services import lifecycle

if TYPE_CHECKING:
    from lake_assets.settings import Settings

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


def run(*, keep_up: bool, on_servers: bool = False) -> bool:
    """Play all scenes in the data directory of the settings.

    Args:
        keep_up: If every proof holds, leave the services running at the end.
        on_servers: Whether the settings name servers and folders, all of them made for this demo.

    Returns:
        Whether all proofs hold.

    Raises:
        ServiceError: A service did not start, or a scene took too long.
        UsageError: The data directory is not the demo's own.
    """
    home = prepare_home(on_servers=on_servers, fixed=SETTINGS)
    succeeded = play_on_services(home, _play, keep_up=keep_up)
    if succeeded and keep_up:
        _show_addresses(home)
    return succeeded


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


def _play(home: Settings) -> bool:
    spark = open_spark(home)
    servers = required(kafka_address(home), "Kafka")
    try:
        with zookeeper_client(required(zookeeper_address(home), "ZooKeeper")) as zk:
            stage = Stage(home, spark, open_tables(home, LAKE), servers, TurnLog(zk, LAKE.lock))
            return _play_scenes(stage)
    finally:
        spark.stop()


@dataclass(frozen=True)
class _Expected:
    """What must be left at the end. rows: engagement id → person. dead_letters: reason → number."""

    rows: Mapping[str, Person]
    dead_letters: Counter[str]


def _play_scenes(stage: Stage) -> bool:
    stage.open(SIMULATION)
    messages = without_unmatched(generate(SIMULATION, LAKE), LAKE)
    reasons = _play_traffic(stage, messages)
    replayed = replay(messages, LAKE)
    [(person, _)] = Counter(replayed.rows.values()).most_common(1)
    _play_erasure(stage, person, at=messages[-1].timestamp)
    is_erased = _certify_all(stage, replayed.ids(person))
    expected = _Expected(replayed.without(person), reasons)
    succeeded = _check_proofs(stage, expected, is_erased=is_erased)
    _show_turns(stage)
    if installed("pages"):
        _write_dashboard(stage)
    return succeeded


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


def _certify_all(stage: Stage, ids: set[Person]) -> bool:
    headline("The certificate", "Every file is decoded and searched for each id of the erased person.")
    results = [stage.certify(id_) for id_ in sorted(ids)]
    return all(results)


def _show_turns(stage: Stage) -> None:
    headline("The coordinator", "Each block is a turn. No two streams have the lock at once, and each follows its own.")
    turns = [done.taken for done in stage.log.done()]
    for line in turn_lines(turns, TURNS):
        console.print(f"  {line}", highlight=False)


def _write_dashboard(stage: Stage) -> None:
    file = write(page_of_lake(stage.tables), stage.home.home / f"{LAKE.name}.html")
    headline("The dashboard", f"It is {file}; `lake engagement dashboard {LAKE.name} --serve` serves it.")


def _check_proofs(stage: Stage, expected: _Expected, *, is_erased: bool) -> bool:
    headline("The proofs", f"A replay of all messages, one by one, leaves {len(expected.rows):,} rows.")
    tables, spark = stage.tables, stage.spark
    rows = tables.read(spark, ENGAGEMENT).select("engagement_id", "org_id", "who_id", "kind").collect()
    found = sorted((row["engagement_id"], (row["org_id"], row["who_id"])) for row in rows)
    dead_letters = tables.read(spark, DEAD_LETTER).select("reason").collect()
    reasons = Counter(row["reason"] for row in dead_letters)
    proofs = {
        "rows equal the replay, each once": found == sorted(expected.rows.items()),
        "each broken message is one dead letter with its reason": reasons == expected.dead_letters,
        "each data commit has one notification": not unnotified_batches(tables),
        "metrics count the emails that are left": _metrics_equal(stage, Counter(row["kind"] for row in rows)),
        "no file of the lake has an id of the erased person": is_erased,
        "each turn was taken by a run of Dagster": stage.each_turn_was_a_run(),
    }
    for what, holds in proofs.items():
        console.print(f"  [green]✓[/] {what}" if holds else f"  [red]✗ {what}[/]")
    return all(proofs.values())


def _metrics_equal(stage: Stage, kinds: Counter[str]) -> bool:
    """Compare the metrics with the number of emails of each kind."""
    metrics = read_metrics(stage.tables).to_pydict()
    return all(sum(metrics[kind]) == kinds[kind] for kind in EMAILS.kinds)
