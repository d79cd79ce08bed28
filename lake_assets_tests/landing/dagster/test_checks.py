"""What the check of two zones says: file, offsets and both checksums of what differs, and what waits too long."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lake_assets.errors import FilesDiffer
from lake_assets.landing.dagster import AGREE, ZONES_EQUAL, compare_zones, load_key, zones_equal_evaluation
from lake_assets.settings import Settings
from lake_assets_tests.landing.scenario import DEADLINE, NOW, TOPIC, Landed, sent


def test_what_differs_is_named_with_offsets_and_both_checksums(bare_home: Settings) -> None:
    landed = Landed(bare_home)
    landed.land("a", 0, 0)
    with pytest.raises(FilesDiffer):
        landed.land("b", 0, 0, [sent(0, 0), sent(0, 1)])
    at_once = compare_zones(landed.manifest, TOPIC, now=NOW, deadline=DEADLINE)
    (bad,) = (entry.file for entry in at_once.quarantined)
    (good,) = landed.files("a")
    for part in (bad.name, "zone b", "p0:[0:2]", str(bad.checksum), str(good.checksum)):
        assert part in at_once.description
    event = zones_equal_evaluation(TOPIC, at_once)
    assert (event.asset_key, event.check_name, event.passed) == (load_key(TOPIC), ZONES_EQUAL, False)
    later = compare_zones(landed.manifest, TOPIC, now=NOW + DEADLINE + timedelta(seconds=1), deadline=DEADLINE)
    assert f"{good.name} of zone a" in later.description
    landed.writers["b"].manifest.discard("b", bad.name)
    landed.land("b", 0, 0)
    assert compare_zones(landed.manifest, TOPIC, now=NOW, deadline=DEADLINE).description == AGREE
