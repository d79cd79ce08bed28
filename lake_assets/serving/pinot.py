"""Pushes by a controller: that of an Apache Pinot cluster, or `lake serving serve`, which answers the same calls.

A client of the controller's REST calls: list, lineage, start, upload, end, revert. The lineage is the controller's, and
what it refuses is raised as `ServingError`. Segments are archives that Pinot's own tools have built, or Parquet files
for `lake serving serve`.

Source: Pinot 1.x, `PinotSegmentRestletResource.getSegments`, `PinotSegmentUploadDownloadRestletResource`
(`uploadSegmentAsMultiPartV2`, `startReplaceSegments`, `endReplaceSegments`, `revertReplaceSegments`).
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import httpx

from lake_assets.base.failpoints import reach
from lake_assets.base.hours import from_milliseconds
from lake_assets.errors import ServingError, UsageError, pinot_refused
from lake_assets.serving.lineage import LineageEntry, SegmentLineage, State
from lake_assets.serving.registry import TableState, checked_segment, checked_table
from lake_assets.serving.store import EntryStatus, entries_status, new_push_id, segment_name
from lake_assets.settings import Settings

OFFLINE = "OFFLINE"
"""The type of table that is pushed to; Pinot's other types read from a stream."""

CALL_SECONDS = 60.0
END_SECONDS = 660.0
"""Before it ends a replacement, the controller waits up to ten minutes for servers to load all segments."""

METADATA_FILE = "metadata.properties"
NAME_KEY = "segment.name"
"""The key in `METADATA_FILE` of an archive under which the segment's name stands."""

Parameters: TypeAlias = Mapping[str, str | bool]


@dataclass(frozen=True)
class PinotPush:
    """A completed push.

    Attributes:
        table: Of the cluster.
        entry_id: Its lineage entry.
        segments: The pushed segments.
        replaced: The segments that queries read before.
    """

    table: str
    entry_id: str
    segments: tuple[str, ...]
    replaced: tuple[str, ...]


class PinotController:
    """A cluster's controller. http: a client with the controller's base address and the authorization that it needs."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def segments(self, table: str) -> tuple[str, ...]:
        """Return the segments of a table that queries read, by name.

        Raises:
            ServingError: There is no such table.
        """
        return self._segments(table, routed=True)

    def _segments(self, table: str, *, routed: bool) -> tuple[str, ...]:
        answer = self._call("GET", f"/segments/{checked_table(table)}", {"excludeReplacedSegments": routed})
        try:
            return tuple(sorted(name for by_type in answer.json() for name in by_type.get(OFFLINE, ())))
        except (ValueError, TypeError, AttributeError) as error:
            raise self._not_pinot(answer) from error

    def lineage(self, table: str) -> list[EntryStatus]:
        """Return the entries of a table, the newest first.

        Raises:
            ServingError: The table has no lineage.
        """
        answer = self._call("GET", f"/segments/{checked_table(table)}/lineage", {"type": OFFLINE})
        try:
            entries = {
                entry_id: LineageEntry(
                    id=entry_id,
                    segments_from=tuple(entry["segmentsFrom"]),
                    segments_to=tuple(entry["segmentsTo"]),
                    state=State(entry["state"]),
                    timestamp=from_milliseconds(entry["timestamp"]),
                )
                for entry_id, entry in answer.json()["lineageEntries"].items()
            }
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self._not_pinot(answer) from error
        present = self._segments(table, routed=False)
        return entries_status(TableState(SegmentLineage(table, entries), None, frozenset(present)))

    def push(self, table: str, archives: Sequence[Path], *, force: bool = False, new_schema: bool = False) -> PinotPush:
        """Replace all segments of a table by those in archives. Any failure reverts the push.

        Args:
            table: Of the cluster.
            archives: Segments that Pinot built, `.tar.gz`; or Parquet files, for `lake serving serve`.
            force: Whether to revert conflicting entries in progress. It repairs a push that died.
            new_schema: Whether the columns may differ from those that readers see; `lake serving serve` asks for it.

        Raises:
            UsageError: A file is not a segment.
            ServingError: The controller refused a call, or did not answer.
        """
        files = _by_name(table, archives)
        replaced = self.segments(table)
        entry_id = self._start(table, replaced, tuple(files), force=force)
        try:
            reach("pinot-started")
            for name, archive in files.items():
                self._upload(table, name, archive, {"newSchema": True} if new_schema else {})
            reach("pinot-uploaded")
            self._replace(table, "end", {"segmentLineageEntryId": entry_id}, seconds=END_SECONDS)
        except BaseException as error:
            self._give_up(table, entry_id, error)
            raise
        reach("pinot-ended")
        return PinotPush(table, entry_id, tuple(files), replaced)

    def revert(self, table: str, entry_id: str, *, force: bool = False) -> None:
        """Return to the segments that an entry has replaced.

        Args:
            table: Of the cluster.
            entry_id: Of the table's lineage.
            force: Whether to revert also an entry in progress.

        Raises:
            ServingError: The controller refused the call, or did not answer.
        """
        self._replace(table, "revert", {"segmentLineageEntryId": entry_id, "forceRevert": force})

    def _start(self, table: str, sources: Sequence[str], targets: Sequence[str], *, force: bool) -> str:
        body = {"segmentsFrom": list(sources), "segmentsTo": list(targets)}
        answer = self._replace(table, "start", {"forceCleanup": force}, json=body)
        try:
            return str(answer.json()["segmentLineageEntryId"])
        except (ValueError, TypeError, KeyError) as error:
            raise self._not_pinot(answer) from error

    def _upload(self, table: str, name: str, archive: Path, more: Parameters) -> None:
        """No segment is replaced under its own name, because queries would see it before the end."""
        parameters: Parameters = {
            "tableName": table,
            "tableType": OFFLINE,
            "allowRefresh": False,
            "enableParallelPushProtection": True,
            **more,
        }
        try:
            with archive.open("rb") as file:
                self._call("POST", "/v2/segments", parameters, files={name: (f"{name}{_suffix(archive)}", file)})
        except OSError as error:
            raise UsageError(f"{archive} cannot be read: {error}.", remedy="Give access, and push again.") from error

    def _replace(
        self,
        table: str,
        verb: str,
        parameters: Parameters,
        *,
        json: object = None,
        seconds: float = CALL_SECONDS,
    ) -> httpx.Response:
        path = f"/segments/{checked_table(table)}/{verb}ReplaceSegments"
        return self._call("POST", path, {"type": OFFLINE, **parameters}, json=json, timeout=seconds)

    def _give_up(self, table: str, entry_id: str, error: BaseException) -> None:
        """Revert the push. If that fails, the error gets a note; a forced push repeats it."""
        try:
            self.revert(table, entry_id, force=True)
        except ServingError as second:
            error.add_note(f"The push could not be reverted: {second}")

    def _call(self, method: str, path: str, parameters: Parameters, **body: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, params=parameters, **body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise pinot_refused(f"{method} {path}", f"no answer: {error!r}") from error
        if answer.status_code != HTTPStatus.OK:
            raise pinot_refused(f"{method} {path}", f"{answer.status_code}, {answer.text}")
        return answer

    def _not_pinot(self, answer: httpx.Response) -> ServingError:
        call = f"{answer.request.method} {answer.request.url.path}"
        return pinot_refused(call, f"unexpected answer: {answer.text}")


@contextmanager
def pinot_at(settings: Settings, address: str | None = None) -> Iterator[PinotController]:
    """Connect to a controller for the block. address: None for the one that the settings name.

    Raises:
        UsageError: They name none.
    """
    address = address or settings.pinot_controller
    if address is None:
        raise UsageError(
            "No Pinot cluster is configured.", remedy="Set LAKE_PINOT_CONTROLLER to its controller: http://host:9000."
        )
    headers = {}
    if settings.pinot_authorization is not None:
        headers["Authorization"] = settings.pinot_authorization.get_secret_value()
    with httpx.Client(base_url=address, headers=headers, timeout=CALL_SECONDS) as http:
        yield PinotController(http)


def segment_of(archive: Path) -> str:
    """Return the name of the segment in a `.tar.gz` that Pinot built; the file itself may have another name.

    Raises:
        UsageError: The file is not such an archive.
    """
    names: list[str] = []
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for member in packed:
                names.extend(_names_in(packed, member))
    except (OSError, EOFError, zlib.error, tarfile.TarError, UnicodeError) as error:
        raise _not_a_segment(archive, str(error)) from error
    if len(names) != 1:
        raise _not_a_segment(archive, f"it has {len(names)} times a {METADATA_FILE} with a {NAME_KEY}")
    return checked_segment(names[0])


def _names_in(packed: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[str]:
    """The segment names in a file of an archive."""
    if PurePosixPath(member.name).name != METADATA_FILE:
        return
    for line in packed.extractfile(member) or ():
        key, _, value = line.decode().partition("=")
        if key.strip() == NAME_KEY:
            yield value.strip()


def _suffix(file: Path) -> str:
    return ".parquet" if file.suffix == ".parquet" else ".tar.gz"


def _by_name(table: str, archives: Sequence[Path]) -> dict[str, Path]:
    """Segment → its file. Parquet has no name of a segment, so it gets one that was never used."""
    push_id, now = new_push_id(), datetime.now(UTC)
    found = {}
    for number, file in enumerate(archives):
        is_parquet = _suffix(file) == ".parquet"
        found[segment_name(table, push_id, now, number) if is_parquet else segment_of(file)] = file
    if len(found) < len(archives):
        raise UsageError("Two of the files contain a segment of the same name.", remedy="Name each segment once.")
    return found


def _not_a_segment(archive: Path, why: str) -> UsageError:
    return UsageError(
        f"{archive} is not a segment of Pinot: {why}.",
        remedy="Build it with Pinot: `pinot-admin.sh CreateSegment`.",
    )
