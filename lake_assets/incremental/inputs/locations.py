"""The present metadata location of each table.

Each commit gives a table a new metadata file, so a table whose location is unchanged is unchanged. A catalog in a
database returns all locations in one query. Another catalog is asked for each table, for at most `LOADS_PER_LOOK` of
them in one look.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from lake_assets.connections.clients.sql_catalog import locations_in
from lake_assets.errors import TableDamaged
from lake_assets.incremental.metadata import tables

LOADS_PER_LOOK = 100
"""Tables that one look loads at most, if the catalog has to be asked for each table."""


class Locations:
    """Looks at the locations of the tables of a catalog, and remembers those of tables that have to be loaded."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def look(self, catalog: Catalog, names: Collection[str]) -> dict[str, str]:
        """Return table → location of its present metadata. Tables that do not exist are left out.

        If the catalog has to be asked for each of many tables, some locations are those of an earlier look: successive
        looks take all tables in turn.
        """
        if isinstance(catalog, SqlCatalog):
            found = locations_in(catalog)
        else:
            self._load_some(catalog, names)
            found = self._known
        return {name: location for name in names if (location := found.get(name)) is not None}

    def _load_some(self, catalog: Catalog, names: Collection[str]) -> None:
        """Load tables that no look has loaded yet, then those whose turn is the longest time ago."""
        unknown = [name for name in names if name not in self._known]
        known = [name for name in self._known if name in names]
        for name in islice([*unknown, *known], LOADS_PER_LOOK):
            self._known.pop(name, None)  # the order of the keys is that of the turns
            self._known[name] = _location(catalog, name)


def _location(catalog: Catalog, name: str) -> str | None:
    try:
        table = tables.find(catalog, name)
    except TableDamaged as error:  # a session that reads the table reports it
        return f"damaged: {error}"
    return None if table is None else table.metadata_location
