"""The newest state of each process in a log table, as a mark that changes when that state changes.

All processes share a log table, so its location moves with each session of any process. The newest state of a process
is in one file, which manifests name with the process and the revision.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.catalog import Catalog

from lake_assets.incremental.execution.session_log import files_by_process
from lake_assets.incremental.metadata import tables

Mark = tuple[int, str]
"""The newest revision of a process, and the path of the file that has it."""


class LogMarks:
    """The marks of one log table.

    Args:
        name: The table: `etl.session` or `etl.high_watermark`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._location: str | None = None
        self._marks: Mapping[str, Mark] | None = {}

    def look(self, catalog: Catalog, location: str | None) -> Mapping[str, Mark] | None:
        """Return process → mark. None if the files do not tell: another program has rewritten or damaged the table.

        Args:
            catalog: The catalog.
            location: Where the metadata of the table is; None if it does not exist.
        """
        if location is None:
            return {}
        if location != self._location:
            self._marks = self._read(catalog)
            self._location = location
        return self._marks

    def _read(self, catalog: Catalog) -> Mapping[str, Mark] | None:
        newest: dict[str, Mark] = {}
        try:
            files = files_by_process(tables.load(catalog, self.name))
        except Exception:  # of many kinds; each target that reads the log then says what is wrong with it
            return None
        if files is None:
            return None
        for process, found in files.items():
            marks = [(file.last, file.path) for file in found if file.last is not None]
            if len(marks) < len(found):
                return None
            newest[process] = max(marks)
        return newest
