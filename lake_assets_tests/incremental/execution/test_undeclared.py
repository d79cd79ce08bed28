"""What a job may name of a target that no pipeline declares, and what cannot be right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.transforms import DayTransform, HourTransform

from lake_assets.base.hours import DAY, HOUR
from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import Source, Stateful
from lake_assets.incremental.engine.iceberg import WAP_ENABLED
from lake_assets.incremental.engine.session_log import create_tables
from lake_assets.incremental.engine.undeclared import Named, find_target, remember
from lake_assets.membership import PIPELINE

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.incremental.declaration import Target

SCHEMA = pa.schema([("order_id", pa.string()), ("ordered_at", pa.timestamp("us", tz="UTC"))])


@pytest.fixture
def shop(catalog: Catalog) -> Catalog:
    """Two tables of one short name, a target by hours and one by days, and one that has no partitions."""
    create_tables(catalog)
    for namespace in ("shop", "mall"):
        catalog.create_namespace(namespace)
    for name in ("shop.orders", "shop.items", "mall.items", "shop.order_fact", "shop.daily", "shop.flat"):
        catalog.create_table(name, SCHEMA)
    for name, transform in (("shop.order_fact", HourTransform()), ("shop.daily", DayTransform())):
        with catalog.load_table(name).update_spec() as update:
            update.add_field("ordered_at", transform, "at")
    return catalog


def found(catalog: Catalog, name: str, sources: str | None = None, pattern: int | None = None) -> Target:
    return find_target(catalog, PIPELINE, name, Named(None, sources, pattern))


def test_a_time_column_is_the_named_one_or_the_declared_one_or_that_of_the_partitions(shop: Catalog) -> None:
    target = found(shop, "order_fact", " orders | ordered_at, signups,daily,core.cancel_fact", 2)
    assert target.sources == (
        Source("shop.orders", "ordered_at"),
        Source("raw.signups", "event_ts"),
        Source("shop.daily", "ordered_at"),
        Source("core.cancel_fact", "canceled_at"),
    )
    assert (target.table, target.mode, target.time_column, target.grain) == (
        "shop.order_fact",
        Stateful(),
        "ordered_at",
        HOUR,
    )
    assert found(shop, "daily", "orders|ordered_at", 1).grain == DAY


def test_what_was_named_is_remembered_and_may_be_named_anew(shop: Catalog) -> None:
    first = found(shop, "order_fact", "orders|ordered_at", 1)
    remember(shop, PIPELINE, first, "load_orders")
    assert found(shop, "shop/order_fact").sources == first.sources
    assert shop.load_table("shop.order_fact").properties[WAP_ENABLED] == "true"
    assert found(shop, "order_fact", pattern=2).mode == Stateful()
    assert found(shop, "order_fact", "daily").sources == (Source("shop.daily", "ordered_at"),)
    location = shop.load_table("shop.order_fact").metadata_location
    remember(shop, PIPELINE, first, None)
    remember(shop, PIPELINE, first, "load_orders")
    assert shop.load_table("shop.order_fact").metadata_location == location, "nothing is new"
    with pytest.raises(UsageError, match="is written by the process 'load_orders', and not by 'p'"):
        remember(shop, PIPELINE, first, "p")


@pytest.mark.parametrize(
    ("name", "sources", "pattern", "said"),
    [
        ("order_fact", None, None, "There is no target 'order_fact'"),
        ("order_fact", None, 1, "have to be named: --src-tables"),
        ("order_fact", "orders|ordered_at", None, "have to be named: --etl-pattern-id"),
        ("shop.nothing", "orders|ordered_at", 1, "CREATE TABLE lake.shop.nothing"),
        ("items", "orders|ordered_at", 1, "mall.items and shop.items"),
        ("flat", "orders|ordered_at", 1, "not partitioned by hours or days"),
        ("raw.signups", "orders|ordered_at", 1, "raw table of the pipeline"),
        ("session", "orders|ordered_at", 1, "table of the engine"),
        ("order_fact", "ordres|ordered_at", 2, "names 'ordres', which is no table"),
        ("order_fact", "shop.ordres|ordered_at", 2, "Did you mean 'shop.orders'"),
        ("order_fact", "items|ordered_at", 2, "mall.items and shop.items"),
        ("order_fact", "orders", 2, "one of its timestamps: ordered_at"),
        ("order_fact", "orders|at", 2, "no column 'at'"),
        ("order_fact", "orders|order_id", 2, "'order_id' as string, which is no time"),
        ("order_fact", "signups|evnt_ts", 2, "no column 'evnt_ts'"),
        ("order_fact", "orders|ordered_at,", 2, "names no source"),
        ("order_fact", "orders|", 2, "names no source"),
        ("order_fact", "orders|a|b", 2, "names no source"),
        ("order_fact", "orders|ordered_at,shop.orders|ordered_at", 2, "twice"),
        ("order_fact", "order_fact", 2, "source of itself"),
        ("order_fact", "orders|ordered_at,signups", 1, "2 sources"),
        ("order_fact", "orders|ordered_at", 3, "--etl-pattern-id is 3"),
        ("signup_fact", None, 2, "is declared as stateless, which is 1"),
        ("signup_fact", "raw.signups|landed_at", None, "is declared with 'raw.signups|event_ts'"),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(
    shop: Catalog, name: str, sources: str | None, pattern: int | None, said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        found(shop, name, sources, pattern)
    assert said in f"{refused.value.problem} {refused.value.remedy}"
