"""Maintenance that dies at its points: called again, it ends as if nothing had happened."""

from __future__ import annotations

from lake_assets.base.failpoints import MAINTENANCE_POINTS
from lake_assets.engagement.erasure import certify
from lake_assets.engagement.maintenance import maintain
from lake_assets.engagement.tables import ENGAGEMENT
from lake_assets.engagement.turn_order import MAINTENANCE
from lake_assets_tests.engagement.interrupted import arrive, contact, prepare, who
from lake_assets_tests.engagement.scenario import Alone, Traffic
from lake_assets_tests.engagement.world import World
from lake_assets_tests.outcomes import Outcomes

RETAIN_HOURS = 72


def maintenance_dies(world: World) -> dict[str, Outcomes]:
    """At each point, somebody having been erased just before."""
    mail = world.mail("maintained")
    prepare(mail, "retention")
    found = {point: ended(mail, point, number) for number, point in enumerate(MAINTENANCE_POINTS)}
    assert mail.whose() == mail.truth()
    return {MAINTENANCE: found}


def ended(mail: Traffic, point: str, number: int) -> str:
    """What files hold of the number-th person after the death, and that none does after the next maintenance."""
    arrive(mail, "retention")
    mail.run("retention")
    rows = mail.rows(ENGAGEMENT)
    mail.die(point, MAINTENANCE)
    left = "no file has" if is_nowhere(mail, number) else "files still have"
    done = maintain(mail.tables, mail.spark, Alone(), retain_hours=RETAIN_HOURS)
    assert mail.rows(ENGAGEMENT) == rows
    assert is_nowhere(mail, number)
    kept = "nothing old is kept" if done.kept_hours == 0 else "old versions are kept again"
    return f"{left} who was erased; the next one: {kept}, no file has them"


def is_nowhere(mail: Traffic, number: int) -> bool:
    """Whether no file has the number-th person, under either id."""
    org, lead = who(number)
    ids = (lead, contact(number))
    return all(certify(mail.tables.root, [mail.lake], org, id_, mail.servers).nowhere for id_ in ids)
