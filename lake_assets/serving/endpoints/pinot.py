"""Pushes to an Apache Pinot cluster: the protocol of `lineage`, carried out by the cluster's controller.

A thin client of the controller's REST calls: list, start, upload, end, revert. It decides nothing: the lineage is the
controller's, and its refusals come back as `PinotRefused`. Segments are archives that Pinot's own tools have built.

Source: Pinot 1.x, `PinotSegmentRestletResource.getSegments`, `PinotSegmentUploadDownloadRestletResource`
(`uploadSegmentAsMultiPartV2`, `startReplaceSegments`, `endReplaceSegments`, `revertReplaceSegments`).
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import httpx

from lake_assets.base.failpoints import reach
from lake_assets.errors import UsageError
from lake_assets.serving.errors import PinotRefused
from lake_assets.serving.lineage.znrecord import checked_segment, checked_table
from lake_assets.settings import Settings

OFFLINE = "OFFLINE"
"""The type of a table that is pushed to; Pinot's others are fed from a stream."""

CALL_SECONDS = 60.0
END_SECONDS = 660.0
"""The controller waits up to ten minutes for servers to have all segments, before it ends a replacement."""

METADATA, NAME_KEY = "metadata.properties", "segment.name"
"""The file of a segment's archive that holds its name, and the key."""

Parameters: TypeAlias = Mapping[str, str | bool]


@dataclass(frozen=True)
class PinotPush:
    """A push that the cluster switched to. replaced: what was queried before."""

    table: str
    entry_id: str
    segments: tuple[str, ...]
    replaced: tuple[str, ...]


class PinotController:
    """One cluster's controller. http: its base address and what it asks for are set."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def segments(self, table: str) -> tuple[str, ...]:
        """The segments of a table that queries see, by name. `PinotRefused` if there is no such table."""
        answer = self._call("GET", f"/segments/{checked_table(table)}", {"excludeReplacedSegments": True})
        try:
            return tuple(sorted(name for of_type in answer.json() for name in of_type.get(OFFLINE, ())))
        except (ValueError, TypeError, AttributeError) as error:
            raise self._not_pinot(answer) from error

    def push(self, table: str, archives: Sequence[Path], *, force: bool = False) -> PinotPush:
        """Replace all that queries see of a table by the segments of these archives. Whatever fails is reverted.

        force: revert what is in progress and in the way: for the push after one that died. Raises `UsageError` for a
        file that is no segment, `PinotRefused`.
        """
        files = _by_name(archives)
        replaced = self.segments(table)
        entry_id = self._start(table, replaced, tuple(files), force=force)
        try:
            reach("pinot-started")
            for name, archive in files.items():
                self._upload(table, name, archive)
            reach("pinot-uploaded")
            self._replace(table, "end", {"segmentLineageEntryId": entry_id}, seconds=END_SECONDS)
        except BaseException as error:
            self._give_up(table, entry_id, error)
            raise
        reach("pinot-ended")
        return PinotPush(table, entry_id, tuple(files), replaced)

    def revert(self, table: str, entry_id: str, *, force: bool = False) -> None:
        """Go back to what an entry replaced. force: also an entry in progress. `PinotRefused`."""
        self._replace(table, "revert", {"segmentLineageEntryId": entry_id, "forceRevert": force})

    def _start(self, table: str, sources: Sequence[str], targets: Sequence[str], *, force: bool) -> str:
        named = {"segmentsFrom": list(sources), "segmentsTo": list(targets)}
        answer = self._replace(table, "start", {"forceCleanup": force}, json=named)
        try:
            return str(answer.json()["segmentLineageEntryId"])
        except (ValueError, TypeError, KeyError) as error:
            raise self._not_pinot(answer) from error

    def _upload(self, table: str, name: str, archive: Path) -> None:
        """No segment is ever replaced under its name: queries would see it before the end."""
        where: Parameters = {
            "tableName": table,
            "tableType": OFFLINE,
            "allowRefresh": False,
            "enableParallelPushProtection": True,
        }
        try:
            with archive.open("rb") as file:
                self._call("POST", "/v2/segments", where, files={name: (f"{name}.tar.gz", file)})
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
        """Reverts a push that failed. If that fails too, its error says so, and a forced push does it."""
        try:
            self.revert(table, entry_id, force=True)
        except PinotRefused as second:
            error.add_note(f"It could not be reverted: {second}")

    def _call(self, method: str, path: str, parameters: Parameters, **body: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, params=parameters, **body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PinotRefused(f"{method} {path}", f"no answer: {error!r}") from error
        if answer.status_code != HTTPStatus.OK:
            raise PinotRefused(f"{method} {path}", f"{answer.status_code}, {answer.text}")
        return answer

    def _not_pinot(self, answer: httpx.Response) -> PinotRefused:
        return PinotRefused(f"{answer.request.method} {answer.request.url.path}", f"no such answer: {answer.text}")


@contextmanager
def pinot_at(settings: Settings) -> Iterator[PinotController]:
    """The cluster that the settings name, while the block lasts. `UsageError` if they name none."""
    if settings.pinot_controller is None:
        raise UsageError(
            "No Pinot cluster is named.", remedy="Set LAKE_PINOT_CONTROLLER to its controller: http://host:9000."
        )
    secret = settings.pinot_authorization
    headers = {} if secret is None else {"Authorization": secret.get_secret_value()}
    with httpx.Client(base_url=settings.pinot_controller, headers=headers, timeout=CALL_SECONDS) as http:
        yield PinotController(http)


def segment_of(archive: Path) -> str:
    """The name of the segment in a `.tar.gz` that Pinot built; the file may be called otherwise. `UsageError`."""
    try:
        with tarfile.open(archive, "r:gz") as packed:
            names = [name for member in packed for name in _names_in(packed, member)]
    except (OSError, EOFError, zlib.error, tarfile.TarError, UnicodeError) as error:
        raise _no_segment(archive, str(error)) from error
    if len(names) != 1:
        raise _no_segment(archive, f"{len(names)} times it has a {METADATA} with a {NAME_KEY}")
    return checked_segment(names[0])


def _names_in(packed: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[str]:
    """What a file of an archive says of the segment's name."""
    file = packed.extractfile(member) if PurePosixPath(member.name).name == METADATA else None
    for line in file or ():
        key, _, value = line.decode().partition("=")
        if key.strip() == NAME_KEY:
            yield value.strip()


def _by_name(archives: Sequence[Path]) -> dict[str, Path]:
    """Segment → its archive."""
    found = {segment_of(archive): archive for archive in archives}
    if len(found) < len(archives):
        raise UsageError("Two of the files hold a segment of the same name.", remedy="Name each segment once.")
    return found


def _no_segment(archive: Path, why: str) -> UsageError:
    return UsageError(
        f"{archive} is no segment of Pinot: {why}.", remedy="Build it with Pinot: `pinot-admin.sh CreateSegment`."
    )
