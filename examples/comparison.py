"""A table of the lake compared with the rows that pandas computes, and the lines that say how it went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from lake_assets.incremental.engine.iceberg import load

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

SAMPLE = 10
"""Number of rows that a difference shows."""


@dataclass(frozen=True)
class Comparison:
    """One table of the lake compared with pandas.

    Attributes:
        table: Name of the table.
        rows: Number of rows of the lake. It differs from `expected` if the lake has a row twice.
        expected: Number of rows that pandas computed.
        missing: Rows that only pandas has.
        unexpected: Rows that only the lake has.
    """

    table: str
    rows: int
    expected: int
    missing: pd.DataFrame
    unexpected: pd.DataFrame

    @property
    def equal(self) -> bool:
        """Whether the lake has exactly the rows of pandas."""
        return self.rows == self.expected and self.missing.empty and self.unexpected.empty

    def lines(self) -> Iterator[str]:
        """Yield what a person reads: one line, and the first rows of each difference."""
        if self.equal:
            yield f"✓ {self.table}: {self.rows:,} rows, equal to pandas"
            return
        yield f"✗ {self.table}: {self.rows:,} rows, {self.expected:,} by pandas"
        for what, rows in (("missing", self.missing), ("unexpected", self.unexpected)):
            if len(rows):
                yield f"  {len(rows):,} {what}, such as\n{rows.head(SAMPLE).to_string()}"


def compare(catalog: Catalog, expected: Mapping[str, pd.DataFrame]) -> list[Comparison]:
    """Compare tables with their expected rows. `landed_at` of a table is left out.

    Args:
        catalog: The catalog of the lake.
        expected: Table → its rows.
    """
    return [_compared(catalog, table, rows) for table, rows in expected.items()]


def _compared(catalog: Catalog, name: str, rows: pd.DataFrame) -> Comparison:
    import pyarrow as pa

    # Both sides get the table's types, so that only values can differ.
    table = load(catalog, name)
    schema = pa.schema([field for field in table.schema().as_arrow() if field.name != "landed_at"])
    found = table.scan(selected_fields=tuple(schema.names)).to_arrow().select(schema.names).cast(schema)
    wanted = pa.Table.from_pandas(rows, schema=schema, preserve_index=False)
    both = wanted.to_pandas().merge(found.to_pandas(), how="outer", indicator=True)
    side = both.pop("_merge")
    return Comparison(
        table=name,
        rows=found.num_rows,
        expected=wanted.num_rows,
        missing=both[side == "left_only"],
        unexpected=both[side == "right_only"],
    )
