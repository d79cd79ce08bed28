"""Turns that are hit with the lock in hand: killed, and stopped for longer than their session while another goes on."""

from __future__ import annotations

from lake_assets.base.failpoints import CLAIM_CHECKED, HALF_OPTIMIZED, PAUSE
from lake_assets.coordination import zookeeper_client
from lake_assets.engagement import maintenance
from lake_assets.engagement.lake import STREAMS
from lake_assets.engagement.tables import ENGAGEMENT
from lake_assets.engagement.turn import coordinator, take_turn
from lake_assets.engagement.turn_order import MAINTENANCE
from lake_assets.errors import TurnRefused
from lake_assets_tests.engagement.interrupted import arrive, left, settle
from lake_assets_tests.engagement.maintained import RETAIN_HOURS
from lake_assets_tests.engagement.scenario import PATIENCE_SECONDS, SESSION_SECONDS, Traffic
from lake_assets_tests.engagement.world import SEEN, World
from lake_assets_tests.outcomes import Outcomes

KILLED = {"about to write its data": "before-data", "about to unlock": "before-unlock"}
OVERTAKEN = {
    "about to write its claim": CLAIM_CHECKED,
    "about to write its intent": "before-intent",
    "about to write its data": "before-data",
    "with its data recorded": "recorded-data",
}


def in_turn(world: World) -> dict[str, Outcomes]:
    """A turn of ingestion, with the coordinator."""
    mail = world.mail("turns", zookeeper=world.zookeeper)
    found = {f"killed with the lock (`kill -9`), {place}": killed(mail, point) for place, point in KILLED.items()}
    found["killed, after it has unlocked"] = killed_without_the_lock(mail)
    for place, point in OVERTAKEN.items():
        found[f"stopped, {place}; overtaken; continued"] = overtaken(mail, point)
    found["maintenance is stopped, between two statements; overtaken; continued"] = maintenance_overtaken(mail)
    settle(mail)
    return {SEEN: found}


def killed(mail: Traffic, point: str) -> str:
    """The turn is killed (`kill -9`). Mutation asks next, then ingestion."""
    arrive(mail, "ingestion")
    attempt = mail.start(PAUSE + point)
    attempt.stopped()
    attempt.kill()
    todo = left(mail, "ingestion")
    assert refused(mail) == "the last turn, of ingestion, is not done"
    arrive(mail, "ingestion")
    take(mail)
    return f"mutation is refused; ingestion does: {todo}"


def killed_without_the_lock(mail: Traffic) -> str:
    """The turn dies when it is over: whoever is next need not wait."""
    arrive(mail, "ingestion")
    mail.die("after-unlock")
    todo = left(mail, "ingestion")
    with zookeeper_client(str(mail.home.zookeeper), session_seconds=SESSION_SECONDS) as zk:
        stream = mail.stream("mutation")
        predecessor = take_turn(stream, coordinator(stream, zk, mail.spark, timeout=1), max_wait=0).predecessor
    arrive(mail, "ingestion")
    take(mail)
    return f"mutation has its turn, after {predecessor}; ingestion does: {todo}"


def refused(mail: Traffic) -> str | None:
    """Why mutation gets no turn, once the lock is free."""
    with zookeeper_client(str(mail.home.zookeeper), session_seconds=SESSION_SECONDS) as zk:
        mutation = coordinator(mail.stream("mutation"), zk, mail.spark, timeout=PATIENCE_SECONDS)
        assert mutation.lock()
        try:
            mutation.register()
        except TurnRefused as error:
            return error.reason
        finally:
            mutation.give_up()
    return None


def overtaken(mail: Traffic, point: str) -> str:
    """The turn is stopped (SIGSTOP) for longer than its session; another one is taken; the first goes on (SIGCONT)."""
    arrive(mail, "ingestion")
    attempt = mail.start(PAUSE + point)
    attempt.stopped()
    todo = left(mail, "ingestion")
    arrive(mail, "ingestion")
    take(mail)
    epoch = mail.tables.claims.token()
    attempt.go_on()
    said = attempt.said()
    assert mail.tables.claims.token() == epoch, "a former holder's token is left"
    return f"the other does: {todo}; it stops: {said}"


def maintenance_overtaken(mail: Traffic) -> str:
    """As `overtaken`, after the rows were sorted: another maintenance is taken, and ingestion after it."""
    with zookeeper_client(str(mail.home.zookeeper), session_seconds=SESSION_SECONDS) as zk:
        for name in STREAMS[1:]:
            stream = mail.stream(name)
            take_turn(stream, coordinator(stream, zk, mail.spark, timeout=PATIENCE_SECONDS), max_wait=PATIENCE_SECONDS)
        attempt = mail.start(PAUSE + HALF_OPTIMIZED, MAINTENANCE)
        attempt.stopped()
        maintenance.take_turn(mail.tables, mail.spark, zk, max_wait=PATIENCE_SECONDS, retain_hours=RETAIN_HOURS)
    arrive(mail, "ingestion")
    take(mail)
    version = mail.tables.version(ENGAGEMENT)
    attempt.go_on()
    said = attempt.said()
    assert mail.tables.version(ENGAGEMENT) == version
    return f"the other ends, and ingestion after it; it stops: {said}"


def take(mail: Traffic) -> None:
    """A turn of ingestion with a batch. It waits for the lock longer than a session lasts."""
    with zookeeper_client(str(mail.home.zookeeper), session_seconds=SESSION_SECONDS) as zk:
        stream = mail.stream()
        coordinated = coordinator(stream, zk, mail.spark, timeout=PATIENCE_SECONDS)
        assert take_turn(stream, coordinated, max_wait=PATIENCE_SECONDS).batch
