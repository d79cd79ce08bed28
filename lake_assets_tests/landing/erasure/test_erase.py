"""Who is erased is in no landed file of either zone, whoever died on the way; all others' records are as they were."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from lake_assets.base.failpoints import FILE_POINTS, LANDED_ERASURE_POINTS
from lake_assets.base.hours import milliseconds
from lake_assets.errors import ErasureStopped, FilesDiffer
from lake_assets.incremental.erasure.certificate import Finding, certify
from lake_assets.landing.erasure import LandedErasure, landed_folders
from lake_assets.landing.heal import decide
from lake_assets.landing.records import Record, Shard
from lake_assets.landing.state import SharedState
from lake_assets_tests.incremental.crash_matrix import die
from lake_assets_tests.landing.erasing_child import erase_account, erased
from lake_assets_tests.landing.scenario import EVER, NOW, TOPIC, Landed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

GONE, OTHER = "account-to-be-erased", "account-to-be-erased-not"
DEAD = Shard(TOPIC, dead_letters=True)
SENT = milliseconds(NOW) - 60_000
LATER = NOW + timedelta(minutes=2)


def signup(offset: int, account: str, *, at: int = SENT) -> Record:
    """A message that happened when it was sent."""
    moment = (NOW + timedelta(milliseconds=at - milliseconds(NOW))).isoformat()
    row = {"signup_id": f"s{offset}", "account_id": account, "event_ts": moment}
    return Record(0, offset, at, account.encode(), json.dumps(row).encode())


def torn(offset: int, account: str) -> Record:
    """A dead letter."""
    return Record(0, offset, SENT, None, f'{{"account_id": "{account}", "event_'.encode())


@dataclass
class Zones(Landed):
    """Two zones that land what a test says, as a tailer would."""

    next: int = field(default=0, init=False)

    def take(self, *accounts: str, dead: str | None = None, at: int = SENT, zones: str = "ab") -> list[Record]:
        """A file of these accounts' signups, and one of a dead letter that names somebody; the signups of others."""
        first, last = self.next, self.next + len(accounts) - 1 + bool(dead)
        records = [signup(first + number, account, at=at) for number, account in enumerate(accounts)]
        for zone in zones:
            if dead:
                self.add(zone, DEAD, (first, last), [torn(last, dead)])
            self.add(zone, Shard(TOPIC), (first, last), records)
        self.next = last + 1
        return [r for r in records if r.key != GONE.encode()]

    def add(self, zone: str, shard: Shard, span: tuple[int, int], records: list[Record]) -> None:
        writer = self.writers[zone]
        writer.land(writer.zone.draft(str(shard), {0: span}, records), now=self.clock)

    def requests(self) -> list[int]:
        return [request.sent_through for request in SharedState(self.manifest).deletions(TOPIC)]


@pytest.fixture
def zones(bare_home: Settings) -> Zones:
    return Zones(bare_home)


def where(catalog: Catalog, settings: Settings) -> tuple[Finding, ...]:
    found = certify(catalog, "account", GONE, beside=[*landed_folders(settings)])
    assert found.undecoded == ()
    return found.findings


def test_who_is_erased_is_in_no_landed_file_and_a_second_time_nothing_is_done(
    zones: Zones, catalog: Catalog, bare_home: Settings
) -> None:
    kept = zones.take(GONE, OTHER, "b", dead=GONE) + zones.take("c", "d", "e", dead=OTHER)
    for zone in "ab":
        zones.run("columns", zone)
    kept += zones.take("f", GONE)
    found = where(catalog, bare_home)
    told = {(f.table, f.kind, f.referenced) for f in found}
    assert told == {
        (f"{TOPIC}, zone {zone}", kind, by)
        for zone in "ab"
        for kind, by in [
            ("landed file", "main"),
            ("landed file", "history"),
            ("dead letters", "main"),
            ("dead letters", "history"),
        ]
    }
    assert {f.occurrences for f in found} == {1}

    done = erased(bare_home, GONE)
    assert (done.scrubbed, done.removed, done.waits) == (10, 18, ())
    zones.assert_equal()
    assert where(catalog, bare_home) == ()
    for zone in "ab":
        assert zones.records(zone) == sorted([*kept, torn(7, OTHER)])
    assert zones.requests() == [milliseconds(NOW)]

    for at in (NOW, LATER):
        assert erased(bare_home, GONE, at=at) == LandedErasure()
    assert zones.requests() == [milliseconds(NOW)]


def test_what_lands_late_goes_and_what_was_sent_afterwards_stays_until_it_is_erased(
    zones: Zones, catalog: Catalog, bare_home: Settings
) -> None:
    zones.take(GONE)
    erased(bare_home, GONE)
    zones.take(GONE, "b")
    back = signup(zones.next, GONE, at=milliseconds(NOW) + 1)
    zones.take(GONE, at=back.timestamp)
    assert erased(bare_home, GONE).scrubbed == 4
    assert [r for r in zones.records("a") if r.key == GONE.encode()] == [back]
    assert erased(bare_home, GONE, at=LATER).scrubbed == 6
    assert zones.requests() == [milliseconds(NOW), milliseconds(LATER)]
    assert where(catalog, bare_home) == ()
    zones.assert_equal()


def test_what_happened_before_goes_though_it_was_sent_afterwards_as_the_door_has_it(
    zones: Zones, bare_home: Settings
) -> None:
    late = signup(0, GONE)._replace(timestamp=milliseconds(LATER))
    for zone in "ab":
        zones.add(zone, Shard(TOPIC), (0, 0), [late])
    erased(bare_home, GONE)
    assert zones.records("a") == []


def test_an_erasure_that_dies_anywhere_is_finished_by_the_next(
    zones: Zones, catalog: Catalog, bare_home: Settings
) -> None:
    kept = zones.take(GONE, "b", dead=GONE) + zones.take(OTHER, GONE)
    for point in (LANDED_ERASURE_POINTS[0], *FILE_POINTS[1:4], LANDED_ERASURE_POINTS[1], FILE_POINTS[-1]):
        die(bare_home, GONE, point, work=erase_account)
        assert zones.requests() == [milliseconds(NOW)], point
    assert erased(bare_home, GONE).waits == ()
    assert [len(writer.zone.drop_drafts(EVER)) for writer in zones.writers.values()] == [1, 0]
    zones.assert_equal()
    assert zones.records("a") == zones.records("b") == kept
    assert where(catalog, bare_home) == ()


def test_a_zone_that_lags_and_a_file_in_quarantine_are_waited_for(
    zones: Zones, catalog: Catalog, bare_home: Settings
) -> None:
    early = zones.take("e", GONE)
    late = zones.take(GONE, "b", zones="a")
    with pytest.raises(ErasureStopped, match=r"replaced files of raw\.signups in zone a stay"):
        erased(bare_home, GONE).require_done()
    assert {f.table for f in where(catalog, bare_home)} == {f"{TOPIC}, zone a"}
    zones.next = 2
    zones.take(GONE, "b", zones="b")
    erased(bare_home, GONE).require_done()
    assert zones.records("b") == early + late

    zones.add("a", Shard(TOPIC), (4, 4), [signup(4, "c")])
    with pytest.raises(FilesDiffer):
        zones.add("b", Shard(TOPIC), (4, 4), [signup(4, GONE)])
    with pytest.raises(ErasureStopped, match=r"1 of raw\.signups in zone b are in quarantine"):
        erased(bare_home, GONE).require_done()
    assert [(f.table, f.referenced) for f in where(catalog, bare_home)] == [(f"{TOPIC}, zone b", "quarantine")]
    (bad,) = zones.manifest.entries(verdicts=("quarantined",))
    decide(list(zones.writers.values()), "b", bad.file.name, "discard", now=NOW)
    zones.add("b", Shard(TOPIC), (4, 4), [signup(4, "c")])
    erased(bare_home, GONE).require_done()
    assert where(catalog, bare_home) == ()
    zones.assert_equal()


def test_a_draft_that_died_is_found_and_goes_when_it_is_old(
    zones: Zones, catalog: Catalog, bare_home: Settings
) -> None:
    zones.take("b")
    draft = zones.writers["a"].zone.draft(str(Shard(TOPIC)), {0: (9, 9)}, [signup(9, GONE)])
    note = bare_home.landing_folder / "note.txt"
    note.write_text(GONE)
    assert [(f.table, f.kind) for f in where(catalog, bare_home)] == [("zone a", "draft"), (None, "other")]
    note.unlink()
    os.utime(draft.path, times=(0, 0))
    assert erased(bare_home, GONE).removed == 3
    assert where(catalog, bare_home) == ()


def test_a_home_that_never_landed_anything_gets_no_manifest(catalog: Catalog, bare_home: Settings) -> None:
    assert erased(bare_home, GONE).scrubbed == 0
    assert where(catalog, bare_home) == ()
    assert not (bare_home.home / "landing.db").exists()
    assert not bare_home.landing_folder.exists()
