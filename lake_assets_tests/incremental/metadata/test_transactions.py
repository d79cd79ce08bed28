"""A transaction that copies its metadata once for each update has the metadata that pyiceberg computes each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update.snapshot import ExpireSnapshots

from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.iceberg import OneCopyTransaction
from lake_assets_tests.incremental.scenario import landed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

Step = Callable[[Transaction], object]


def test_after_each_update_the_metadata_are_those_that_pyiceberg_computes(catalog: Catalog) -> None:
    landed(catalog, "a")
    table = landed(catalog, "b")
    rows = table.scan().to_arrow().cast(table.schema().as_arrow())
    with OneCopyTransaction(table) as transaction:
        for step in steps(table, rows):
            step(transaction)
            assert stored(transaction.table_metadata) == stored(computed(transaction))
            assert transaction.table_metadata is transaction.table_metadata
        assert computed(transaction) is not computed(transaction)  # else this class has become superfluous
    found = iceberg.load(catalog, "raw.signups")
    assert (found.scan().count(), found.properties["lake.note"]) == (4, "seen")
    assert len(found.metadata.snapshots) == 2


def test_a_table_that_is_read_again_meanwhile_is_where_the_updates_go_on(catalog: Catalog) -> None:
    table = landed(catalog, "a")
    transaction = OneCopyTransaction(table)
    transaction.set_properties({"lake.note": "seen"})
    assert transaction.table_metadata.properties["lake.note"] == "seen"
    landed(catalog, "b")
    table.refresh()  # replaces the table's metadata, which the transaction then starts from
    assert len(transaction.table_metadata.snapshots) == 2


def steps(table: Table, rows: pa.Table) -> list[Step]:
    oldest = table.metadata.snapshots[0].snapshot_id
    return [
        lambda transaction: transaction.table_metadata,
        lambda transaction: transaction.set_properties({"lake.note": "seen"}),
        lambda transaction: transaction.append(rows),
        lambda transaction: ExpireSnapshots(transaction).by_ids([oldest]).commit(),
    ]


def computed(transaction: Transaction) -> TableMetadata:
    """What pyiceberg's own property computes."""
    own: Any = vars(Transaction)["table_metadata"].fget
    assert own
    result: TableMetadata = own(transaction)
    return result


def stored(metadata: TableMetadata) -> dict[str, object]:
    """All of the metadata but the times, which come from the clock at each computation."""
    return metadata.model_copy(update={"last_updated_ms": 0}).model_dump()
