"""A stand-in for the controller of a Pinot cluster: a real HTTP server that answers the calls as Pinot documents them.

It keeps the lineage by `lake_assets.serving.lineage`. It is not Pinot: no server loads the segments that it
is given.
"""

from __future__ import annotations

import io
import socket
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Annotated, Literal

import uvicorn
from fastapi import FastAPI, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field

from lake_assets.errors import ServingError
from lake_assets.serving.lineage import Change, SegmentLineage, end_replace, revert_replace, routed, start_replace
from lake_assets_tests.serving.scenario import now

SECRET = "Basic c2VjcmV0"
TABLE = "members"

Offline = Annotated[Literal["OFFLINE"], Query(alias="type")]
EntryId = Annotated[str, Query(alias="segmentLineageEntryId")]


class StartReplaceSegmentsRequest(BaseModel):
    sources: list[str] = Field(alias="segmentsFrom")
    targets: list[str] = Field(alias="segmentsTo")


@dataclass
class Controller:
    """A cluster with one table. failing: calls that are refused. lost_replies: done, but told to fail."""

    port: int = 0
    lineage: SegmentLineage = field(default_factory=lambda: SegmentLineage("members_OFFLINE"))
    uploaded: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)
    lost_replies: set[str] = field(default_factory=set)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def seen(self) -> list[str]:
        """What queries see."""
        return sorted(routed(self.lineage, self.uploaded))

    def written(self, change: Change) -> None:
        """Keep the new lineage, and delete what it gives up."""
        self.lineage = change.lineage
        self.uploaded -= change.deletions

    @property
    def states(self) -> list[str]:
        return [entry.state.value for entry in self.lineage.entries.values()]


def app_of(found: Controller) -> FastAPI:
    app = FastAPI()
    add_faults(app, found)
    add_segments(app, found)
    add_replacements(app, found)
    return app


def add_faults(app: FastAPI, found: Controller) -> None:
    @app.middleware("http")
    async def faults(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.headers.get("Authorization") != SECRET:
            return Response("Permission is denied", 403)
        call = f"{request.method} {request.url.path.rsplit('/', 1)[-1]}"
        if call in found.failing:
            return Response("refused", 500)
        answer = await call_next(request)
        return Response("lost", 500) if call in found.lost_replies else answer


def add_segments(app: FastAPI, found: Controller) -> None:
    @app.get(f"/segments/{TABLE}")
    def segments(routed: Annotated[bool, Query(alias="excludeReplacedSegments")] = False) -> list[dict[str, list[str]]]:
        return [{"OFFLINE": found.seen if routed else sorted(found.uploaded)}]

    @app.post("/v2/segments")
    async def upload(
        request: Request,
        table: Annotated[Literal["members"], Query(alias="tableName")],
        kind: Annotated[Literal["OFFLINE"], Query(alias="tableType")],
        refresh: Annotated[bool, Query(alias="allowRefresh")] = True,
    ) -> dict[str, str]:
        name = name_in(only_file(request.headers["Content-Type"], await request.body()))
        if refresh:
            raise HTTPException(400, "This stand-in takes no push that may replace a segment under its name")
        if name in found.uploaded:
            raise HTTPException(409, "Segment already exists")
        found.uploaded.add(name)
        return {"status": f"Successfully uploaded segment: {name} of table: {table}_{kind}"}


def add_replacements(app: FastAPI, found: Controller) -> None:
    @app.post(f"/segments/{TABLE}/startReplaceSegments")
    def start(
        kind: Offline, body: StartReplaceSegmentsRequest, force: Annotated[bool, Query(alias="forceCleanup")] = False
    ) -> dict[str, str]:
        with refusing():
            begun = start_replace(
                found.lineage,
                segments_from=body.sources,
                segments_to=body.targets,
                routed=found.seen,
                now=now(),
                force=force,
            )
        found.written(begun)
        return {"segmentLineageEntryId": begun.entry_id}

    @app.post(f"/segments/{TABLE}/endReplaceSegments")
    def end(kind: Offline, entry_id: EntryId) -> None:
        with refusing():
            found.written(end_replace(found.lineage, entry_id, ready=found.uploaded, now=now()))

    @app.post(f"/segments/{TABLE}/revertReplaceSegments")
    def revert(kind: Offline, entry_id: EntryId, force: Annotated[bool, Query(alias="forceRevert")] = False) -> None:
        with refusing():
            found.written(revert_replace(found.lineage, entry_id, present=found.uploaded, now=now(), force=force))


@contextmanager
def refusing() -> Iterator[None]:
    """As Pinot's controller answers what its lineage refuses."""
    try:
        yield
    except ServingError as error:
        raise HTTPException(500, str(error)) from error


@contextmanager
def controller() -> Iterator[Controller]:
    """A controller that listens as long as the block lasts."""
    listening = socket.create_server(("127.0.0.1", 0))  # calls made before the thread serves wait in its queue
    found = Controller(listening.getsockname()[1])
    server = uvicorn.Server(uvicorn.Config(app_of(found), log_level="critical", lifespan="off"))
    thread = Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield found
    finally:
        server.should_exit = True
        thread.join()


def archive(folder: Path, name: str) -> Path:
    """A file with what the client reads of a segment: its name, where Pinot's tools put it."""
    file, words = folder / f"{name}-of-pinot.tar.gz", f"segment.table.name = members\nsegment.name = {name}\n".encode()
    with tarfile.open(file, "w:gz") as packed:
        for member, held in (("creation.meta", b"crc"), ("metadata.properties", words)):
            info = tarfile.TarInfo(f"{name}/v3/{member}")
            info.size = len(held)
            packed.addfile(info, io.BytesIO(held))
    return file


def name_in(packed: bytes) -> str:
    with tarfile.open(fileobj=io.BytesIO(packed)) as opened:
        return opened.getnames()[0].split("/")[0]


def only_file(content_type: str, body: bytes) -> bytes:
    """The file of a multipart form. Pinot refuses a form with more than one."""
    boundary = content_type.partition("boundary=")[2].encode()
    _, part, end = body.split(b"--" + boundary)
    assert end.strip() == b"--"
    return part.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
