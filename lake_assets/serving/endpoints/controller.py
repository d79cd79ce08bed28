"""The calls of a controller of Apache Pinot, over the served tables: segments, their lineage, and their replacement.

Paths, parameters and answers are those of Pinot's `PinotSegmentRestletResource` and
`PinotSegmentUploadDownloadRestletResource` (1.5). Segments are Parquet files. A name with its type, orders_OFFLINE, is
the table orders. What the lineage refuses is answered with 500, as Pinot does, and as {"code", "error"}.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field, SecretStr

from lake_assets.base.hours import milliseconds
from lake_assets.errors import UsageError
from lake_assets.serving.errors import TableNotServed, TokenNeeded
from lake_assets.serving.lineage.lineage import SegmentLineage
from lake_assets.serving.lineage.znrecord import checked_table
from lake_assets.serving.served_tables import Serving

OFFLINE = "OFFLINE"
UPLOADS = "/v2/segments"
COPY_BYTES = 1 << 20
TO_TYPE = "Served tables have the type OFFLINE: type=OFFLINE."

Type = Annotated[str, Query(alias="type")]
EntryId = Annotated[str, Query(alias="segmentLineageEntryId")]


class StartReplaceSegmentsRequest(BaseModel):
    """The body of a start, as Pinot has it."""

    sources: list[str] = Field([], alias="segmentsFrom")
    targets: list[str] = Field([], alias="segmentsTo")


def controller(
    serving: Serving,
    *,
    token: SecretStr | None,
    guard: Any,
    quotas: Mapping[str, int | None],
    erased_at: Callable[[], datetime | None],
) -> APIRouter:
    """Return the calls.

    Args:
        serving: The served tables.
        token: Of the endpoint. Without one, calls that change a table are refused: any page in a browser could call.
        guard: For the OpenAPI page.
        quotas: Table → the most bytes that its segments may take; otherwise that of the settings.
        erased_at: Returns the time of the last erasure.
    """
    calls = APIRouter(dependencies=[guard])

    def changes() -> None:
        if token is None:
            raise TokenNeeded

    writing = [Depends(changes)]

    @calls.get("/segments/{table}")
    def segments(
        table: str,
        kind: Type = OFFLINE,
        routed: Annotated[bool, Query(alias="excludeReplacedSegments")] = False,
    ) -> list[dict[str, list[str]]]:
        """The segments of a table; those that readers see, if replaced ones are excluded."""
        name = _table(table, kind)
        state = serving.registry.read(name)[name]
        return [{OFFLINE: sorted(state.routed if routed else state.segments)}]

    @calls.get("/segments/{table}/lineage")
    def lineage(table: str, kind: Type = "") -> dict[str, Any]:
        """The lineage of a table, in the order of time."""
        name = _table(table, kind)
        state = serving.registry.read(name)[name]
        if state.version is None:
            raise TableNotServed(name, serving.registry.tables())
        return lineage_json(name, state.lineage)

    @calls.post("/segments/{table}/startReplaceSegments", dependencies=writing)
    def start(
        table: str,
        body: StartReplaceSegmentsRequest,
        kind: Type = "",
        force: Annotated[bool, Query(alias="forceCleanup")] = False,
    ) -> dict[str, str]:
        """Start a replacement of segments by others, which are uploaded then."""
        name = _table(table, kind)
        entry_id = serving.writer.start_replace(name, body.sources, body.targets, force=force)
        return {"segmentLineageEntryId": entry_id}

    @calls.post("/segments/{table}/endReplaceSegments", dependencies=writing)
    def end(table: str, entry_id: EntryId, kind: Type = "") -> None:
        """Complete a replacement: readers see the new segments from now on."""
        serving.writer.end_replace(_table(table, kind), entry_id)

    @calls.post("/segments/{table}/revertReplaceSegments", dependencies=writing)
    def revert(
        table: str, entry_id: EntryId, kind: Type = "", force: Annotated[bool, Query(alias="forceRevert")] = False
    ) -> None:
        """Revert a replacement: readers see what it replaced."""
        serving.writer.revert(_table(table, kind), entry_id, force=force, erased_at=erased_at())

    @calls.delete("/segments/{table}/{segment}", dependencies=writing)
    def delete(table: str, segment: str) -> dict[str, str]:
        """Delete a segment that the lineage does not need."""
        serving.writer.delete(_table(table, OFFLINE), [segment])
        return {"status": "Segment deleted"}

    @calls.post(UPLOADS, dependencies=writing)
    async def upload(
        request: Request,
        table: Annotated[str, Query(alias="tableName")],
        kind: Annotated[str, Query(alias="tableType")] = OFFLINE,
        new_schema: Annotated[bool, Query(alias="newSchema")] = False,
    ) -> dict[str, str]:
        """Upload a segment that a replacement in progress names: a multipart form with one Parquet file."""
        name = _table(table, kind)
        with TemporaryDirectory(prefix="lake-push-") as folder:
            body = Path(folder) / "body"
            with body.open("wb") as file:
                async for part in request.stream():
                    await run_in_threadpool(file.write, part)
            with only_file(body, request.headers.get("Content-Type", "")) as (segment, content):
                await run_in_threadpool(
                    serving.writer.upload, name, segment, content, quota=quotas.get(name), new_schema=new_schema
                )
        return {"status": f"Successfully uploaded segment: {segment} of table: {name}_{OFFLINE}"}

    return calls


def lineage_json(table: str, lineage: SegmentLineage) -> dict[str, Any]:
    """Return a lineage as Pinot's `SegmentLineage.toJsonObject` does."""
    entries = sorted(lineage.entries.values(), key=lambda entry: entry.timestamp)
    found: dict[str, Any] = {
        "tableNameWithType": f"{table}_{OFFLINE}",
        "lineageEntries": {
            entry.id: {
                "segmentsFrom": entry.segments_from,
                "segmentsTo": entry.segments_to,
                "state": entry.state,
                "timestamp": milliseconds(entry.timestamp),
            }
            for entry in entries
        },
    }
    if lineage.custom_map is not None:
        found["customMap"] = lineage.custom_map
    return found


@contextmanager
def only_file(body: Path, content_type: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and the content of the one file of a multipart form. body: the form, in a folder of its own.

    Raises:
        UsageError: It is no such form.
    """
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    wrong = UsageError(
        "The upload is no multipart form with one file.",
        remedy="Send multipart/form-data with one Parquet file, named after its segment.",
    )
    if boundary is None or not body.stat().st_size:
        raise wrong
    mark = f"\r\n--{boundary[1]}".encode()
    content = body.with_name("content")
    with body.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as found:
        head = found.find(b"\r\n\r\n")
        end = found.find(mark, head)
        named = re.search(rb'(?i)filename="([^"]+)"', found[: max(head, 0)])
        if head < 0 or named is None or found[end : end + len(mark) + 2] != mark + b"--":
            raise wrong
        with content.open("wb") as file:
            for start in range(head + 4, end, COPY_BYTES):
                file.write(found[start : min(start + COPY_BYTES, end)])
    name = Path(named[1].decode(errors="replace")).name
    yield re.sub(r"\.(?:parquet|tar\.gz)$", "", name), content


def _table(name: str, kind: str) -> str:
    """Return the served table that a call names."""
    if name.endswith("_REALTIME") or kind.upper() != OFFLINE:
        raise UsageError(
            "Table type should either be offline or realtime." if not kind else f"{name} has no type {kind}.",
            remedy=TO_TYPE,
        )
    return checked_table(name.removesuffix(f"_{OFFLINE}"))
