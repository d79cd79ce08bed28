"""Transactions of pyiceberg that compute the table's pending metadata once for each update.

A commit asks its transaction for the metadata some twenty times. pyiceberg applies all updates again and copies the
whole result each time, which takes longer than the rest of the commit.
"""

from __future__ import annotations

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate

Inputs = tuple[TableMetadata, tuple[TableUpdate, ...]]


class OneCopyTransaction(Transaction):
    """A transaction whose `table_metadata` is computed anew only after the table or the updates have changed."""

    def __init__(self, table: Table, autocommit: bool = False) -> None:
        super().__init__(table, autocommit)
        self._computed: tuple[Inputs, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the updates so far; nobody may change it."""
        # Metadata and tuples of updates are replaced, never changed, so that they are the same says that all is.
        metadata, updates = self._table.metadata, self._updates
        if not updates:
            return metadata
        if self._computed is not None:
            (known_metadata, known_updates), result = self._computed
            if known_metadata is metadata and known_updates is updates:
                return result
        result = super().table_metadata
        self._computed = ((metadata, updates), result)
        return result
