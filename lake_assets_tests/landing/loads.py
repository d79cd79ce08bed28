"""Loading of what `scenario` lands, into a raw table of its home, without Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from pyiceberg.catalog import Catalog

from lake_assets.base.failpoints import EXIT_CODE
from lake_assets.connections.catalog import open_catalog
from lake_assets.incremental.engine.erasures import Erasure, Erasures
from lake_assets.incremental.engine.iceberg import create_raw, load
from lake_assets.landing.files import ZONES, zone_of
from lake_assets.landing.loading import Loader
from lake_assets.landing.manifest import open_manifest
from lake_assets.landing.messages import feed_of, feeds
from lake_assets.landing.records import Record
from lake_assets.membership import PIPELINE
from lake_assets.settings import Settings, settings
from lake_assets_tests.landing.scenario import NOW, TOPIC
from lake_assets_tests.processes import Child, environment

FEED = feed_of(feeds(PIPELINE), TOPIC)


@dataclass
class Meanwhile(Erasures):
    """Has something happen once, when a loader has read its rows, and not committed them."""

    opened: Catalog
    act: Callable[[], object]
    acted: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__init__(self.opened)

    def rows(self) -> list[Erasure]:
        if not self.acted:
            self.acted = True
            self.act()
        return super().rows()


def signup(offset: int, account: str = "account", partition: int = 0) -> Record:
    """A message as the topic's feed takes it."""
    row = {"signup_id": f"s{offset}", "account_id": account, "event_ts": "2026-01-01T00:00:00"}
    return Record(partition, offset, offset, account.encode(), json.dumps(row).encode())


def loader(
    home: Settings,
    *,
    provisional: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
    now: datetime = NOW,
) -> Loader:
    """What loads partition 0 of the topic."""
    catalog = open_catalog(home)
    create_raw(catalog, FEED.raw)
    zones = [zone_of(home, zone) for zone in ZONES]
    erasures = Meanwhile(catalog, meanwhile)
    subjects = PIPELINE.subjects
    return Loader(catalog, open_manifest(home), zones, FEED, [0], subjects, erasures, lambda: now, provisional)


def die(home: Settings, point: str) -> None:
    """Load in a process of its own, which dies at a point."""
    assert Child(_load, "", environment(home, point)).end() == EXIT_CODE, f"the loader did not come to {point}"


def _load(_: str) -> str:
    return str(list(loader(settings()).load()))


def rows(home: Settings) -> list[str]:
    """The signups of the raw table, sorted."""
    table = load(open_catalog(home), FEED.raw.table)
    found: list[str] = table.scan().to_arrow()["signup_id"].to_pylist()
    return sorted(found)
