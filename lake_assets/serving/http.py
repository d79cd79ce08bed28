"""The HTTP endpoint over served tables, for loopback: queries, tables, lineage, health, its OpenAPI page, and the calls
of a controller of Apache Pinot, which change tables.

An error is answered as {"problem", "remedy"}. With a token, all requests except /health need `Authorization: Bearer
<token>`, also the OpenAPI page. They are refused by their head, before a byte of the body is read: FastAPI by itself
reads the whole body before it asks for the token, and uvicorn waits for ever for a head.

The paths, parameters and answers of a controller are those of Pinot's `PinotSegmentRestletResource` and
`PinotSegmentUploadDownloadRestletResource` (1.5). Segments are Parquet files. A name with its type, orders_OFFLINE, is
the table orders. What the lineage refuses is answered with 500, as Pinot does, and as {"code", "error"}, too.
"""

from __future__ import annotations

import asyncio
import mmap
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from kazoo.exceptions import KazooException
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from starlette.exceptions import HTTPException as StarletteHTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from lake_assets.base.hours import milliseconds
from lake_assets.connections.addresses import LOOPBACK
from lake_assets.connections.zookeeper import zookeeper_error
from lake_assets.errors import LakeError, ServingError, UsageError, query_stopped
from lake_assets.serving.lineage import SegmentLineage
from lake_assets.serving.query import query
from lake_assets.serving.registry import checked_table
from lake_assets.serving.served_tables import Serving
from lake_assets.serving.store import (
    FOLDER,
    EntryStatus,
    TableStatus,
    known_state,
    lineage_status,
    table_status,
    writing,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


MAX_BODY_BYTES = 1 << 18
"""A query may have 20,000 characters. Each takes up to 12 bytes in JSON."""

REQUEST_SECONDS = 30.0
"""For a request to arrive, its head and its body each."""

OPEN_PATHS = frozenset({"/health"})
UPLOADS = "/v2/segments"
"""Its bodies may be long, if each part of them arrives in time."""
CLOSE = {"Connection": "close"}


@dataclass(frozen=True)
class Refusal:
    """The answer to a request that is not let in."""

    status_code: int
    problem: str
    remedy: str

    def response(self, path: str) -> JSONResponse:
        """Return the answer to a request of a path. It ends the connection."""
        headers = {**CLOSE, "WWW-Authenticate": "Bearer"} if self.status_code == 401 else CLOSE
        return problem_of(path, self.status_code, self.problem, self.remedy, headers)


WRONG_TOKEN = Refusal(401, "The token is missing or wrong.", "Send the header `Authorization: Bearer <token>`.")
TOO_LARGE = Refusal(413, f"The request has more than {MAX_BODY_BYTES:,} bytes.", "Send a shorter query.")


class RequestGate:
    """Lets requests with the token in, if their bodies are short and arrive in time."""

    def __init__(self, app: ASGIApp, *, token: SecretStr | None, seconds: float = REQUEST_SECONDS) -> None:
        """Wrap an application.

        Args:
            app: The application.
            token: That requests must bear; None: any request is let in.
            seconds: For the body of a request to arrive.
        """
        self._app = app
        self._expected = token.get_secret_value().encode() if token else None
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on with a limited body."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal:
            await refusal.response(scope["path"])(scope, receive, send)
        else:
            is_upload = scope["type"] == "http" and scope["path"] == UPLOADS
            most = None if is_upload else MAX_BODY_BYTES
            await self._app(scope, _limited(receive, self._seconds, most), send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if scope["path"] not in OPEN_PATHS and not self._is_authorized(headers.get(b"authorization", b"")):
            return WRONG_TOKEN
        if scope["path"] == UPLOADS:
            return None
        length = headers.get(b"content-length", b"0")
        is_short = length.isdigit() and int(length) <= MAX_BODY_BYTES
        return None if is_short else TOO_LARGE

    def _is_authorized(self, header: bytes) -> bool:
        if self._expected is None:
            return True
        scheme, _, given = header.partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(given.strip(), self._expected)


def _limited(receive: Receive, seconds: float, most: int | None) -> Callable[[], Awaitable[Message]]:
    """Limit the size and the time of a body, which may have no stated length; without a size, the time of its parts."""
    ends = asyncio.get_running_loop().time() + seconds
    size = 0
    is_complete = False

    async def limited() -> Message:
        nonlocal size, is_complete
        if is_complete:
            return await receive()
        message = await _received(receive, asyncio.get_running_loop().time() + seconds if most is None else ends)
        size += len(message.get("body", b""))
        if most is not None and size > most:
            raise HTTPException(TOO_LARGE.status_code, TOO_LARGE.problem, CLOSE)
        is_complete = not message.get("more_body", False)
        return message

    return limited


async def _received(receive: Receive, ends: float) -> Message:
    try:
        async with asyncio.timeout_at(ends):
            return await receive()
    except TimeoutError:
        raise HTTPException(408, "The body of the request did not arrive in time.", CLOSE) from None


class TimedProtocol(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time."""

    head_seconds = REQUEST_SECONDS
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering:
            self._stop_timer()
        else:  # uvicorn stops its own timer of an idle connection at the first byte
            self._wait_for_head()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        """The first byte starts the time, further ones do not prolong it."""
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close(self) -> None:
        self._head_timer = None
        if not self._is_answering:
            self.transport.close()


def configuration(app: FastAPI, *, port: int, head_seconds: float = REQUEST_SECONDS) -> uvicorn.Config:
    """Return the configuration of a server on loopback.

    Args:
        app: The endpoint.
        port: To listen to.
        head_seconds: For the head of a request to arrive.
    """
    protocol = type("Protocol", (TimedProtocol,), {"head_seconds": head_seconds})
    return uvicorn.Config(app, host=LOOPBACK, port=port, http=protocol, log_level="warning")


def serve(app: FastAPI, *, port: int) -> None:
    """Answer requests until the process is interrupted."""
    uvicorn.Server(configuration(app, port=port)).run()


OFFLINE = "OFFLINE"
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
            raise ServingError(
                "The endpoint has no token, so it changes no table.",
                remedy="Set LAKE_SERVING_TOKEN, start it again, and send `Authorization: Bearer <token>`.",
                status=403,
            )

    changing = [Depends(changes)]

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
        return lineage_json(name, known_state(serving.registry, name).lineage)

    @calls.post("/segments/{table}/startReplaceSegments", dependencies=changing)
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

    @calls.post("/segments/{table}/endReplaceSegments", dependencies=changing)
    def end(table: str, entry_id: EntryId, kind: Type = "") -> None:
        """Complete a replacement: readers see the new segments from now on."""
        serving.writer.end_replace(_table(table, kind), entry_id)

    @calls.post("/segments/{table}/revertReplaceSegments", dependencies=changing)
    def revert(
        table: str, entry_id: EntryId, kind: Type = "", force: Annotated[bool, Query(alias="forceRevert")] = False
    ) -> None:
        """Revert a replacement: readers see what it replaced."""
        serving.writer.revert(_table(table, kind), entry_id, force=force, erased_at=erased_at())

    @calls.delete("/segments/{table}/{segment}", dependencies=changing)
    def delete(table: str, segment: str) -> dict[str, str]:
        """Delete a segment that the lineage does not need."""
        serving.writer.delete(_table(table, OFFLINE), [segment])
        return {"status": "Segment deleted"}

    @calls.post(UPLOADS, dependencies=changing)
    async def upload(
        request: Request,
        table: Annotated[str, Query(alias="tableName")],
        kind: Annotated[str, Query(alias="tableType")] = OFFLINE,
        new_schema: Annotated[bool, Query(alias="newSchema")] = False,
    ) -> dict[str, str]:
        """Upload a segment that a replacement in progress names: a multipart form with one Parquet file."""
        name = _table(table, kind)
        with writing(name, gettempdir(), "TMPDIR"), TemporaryDirectory(prefix=FOLDER) as folder:
            body = Path(folder) / "body"
            with body.open("wb") as file:
                async for part in request.stream():
                    await run_in_threadpool(file.write, part)
            segment, content = await run_in_threadpool(only_file, body, request.headers.get("Content-Type", ""))
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


def only_file(body: Path, content_type: str) -> tuple[str, Path]:
    """Return the name and the content of the one file of a multipart form. body: the form, in a folder of its own.

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
    return re.sub(r"\.(?:parquet|tar\.gz)$", "", name), content


def _table(name: str, kind: str) -> str:
    """Return the served table that a call names."""
    if name.endswith("_REALTIME") or kind.upper() != OFFLINE:
        raise UsageError(
            "Table type should either be offline or realtime." if not kind else f"{name} has no type {kind}.",
            remedy=TO_TYPE,
        )
    return checked_table(name.removesuffix(f"_{OFFLINE}"))


MAX_SQL_CHARACTERS = 20_000
OPENAPI = "/openapi.json"
HOSTS = ("127.0.0.1", "localhost")

CONCURRENT_QUERIES = 4
"""Each may use the memory of its limit. Further queries wait for as long as a query may take."""

BEARER = HTTPBearer(auto_error=False)
"""For the OpenAPI page; `RequestGate` checks the token."""

BAD_REQUEST = 400
UNPROCESSABLE = 422
NO_TEXT = ("string_unicode",)
"""What pydantic calls a text that UTF-8 does not have, such as half of a pair of surrogates."""

SERVICE_UNAVAILABLE = 503


class QueryRequest(BaseModel):
    """One SELECT over served tables."""

    sql: str = Field(
        max_length=MAX_SQL_CHARACTERS,
        examples=["select state, count(*) from account_state group by state"],
    )


class QueryResponse(BaseModel):
    """rows: in the order of the query; decimals as text, times in UTC, blobs in hexadecimal.

    versions: of each table's lineage.
    """

    model_config = ConfigDict(ser_json_bytes="hex", from_attributes=True)

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    truncated: bool
    versions: dict[str, int | None]


def endpoint(
    serving: Serving,
    *,
    token: SecretStr | None = None,
    request_seconds: float = REQUEST_SECONDS,
    quotas: Mapping[str, int | None] | None = None,
    erased_at: Callable[[], datetime | None] = lambda: None,
) -> FastAPI:
    """Return the application.

    Args:
        serving: The served tables, with the limits of a query.
        token: That requests must bear; None: any request is answered.
        request_seconds: For the body of a request to arrive.
        quotas: Table → the most bytes that its segments may take; otherwise that of the settings.
        erased_at: Returns the time of the last erasure, across which nothing is reverted.
    """
    app = FastAPI(
        title="Served tables",
        description="Whole snapshots of tables of the lake.",
        version="1",
        openapi_url=None,  # and so no page: both are added below, with the guard
    )
    app.add_middleware(RequestGate, token=token, seconds=request_seconds)
    # A page in a browser cannot reach the endpoint by another host name.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))
    for kind in (LakeError, KazooException, UnicodeError, RequestValidationError, StarletteHTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    guard = Depends(BEARER)
    places = BoundedSemaphore(CONCURRENT_QUERIES)

    @app.get("/health")
    def health() -> dict[str, str]:
        """Whether ZooKeeper answers."""
        serving.registry.sync()
        return {"status": "ok"}

    @app.get("/tables", dependencies=[guard])
    def tables() -> list[TableStatus]:
        """The served tables."""
        return [table_status(serving.registry, name) for name in serving.registry.tables()]

    @app.get("/lineage/{table}", dependencies=[guard])
    def lineage(table: str) -> list[EntryStatus]:
        """The pushes of a table, the newest first."""
        return lineage_status(serving.registry, table)

    @app.post("/query", dependencies=[guard], response_model=QueryResponse)
    def run_query(request: QueryRequest) -> Response:
        """Run one SELECT. All its tables are read as of one moment."""
        if not places.acquire(timeout=serving.limits.seconds):
            raise query_stopped(f"{CONCURRENT_QUERIES} other queries are running.", remedy="Run the query again later.")
        try:
            found = QueryResponse.model_validate(query(serving.broker, request.sql, serving.limits))
        finally:
            places.release()
        return Response(found.model_dump_json(), media_type="application/json")

    app.include_router(
        controller(serving, token=token, guard=guard, quotas=quotas or {}, erased_at=erased_at), tags=["controller"]
    )

    @app.get(OPENAPI, dependencies=[guard], include_in_schema=False)
    def openapi() -> dict[str, Any]:
        return app.openapi()

    @app.get("/docs", dependencies=[guard], include_in_schema=False)
    def docs() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url=OPENAPI, title=app.title)

    return app


def _answer_error(request: Request, error: Exception) -> JSONResponse:
    headers: Mapping[str, str] | None = None
    match error:
        case KazooException():
            status_code, found = SERVICE_UNAVAILABLE, zookeeper_error(error)
            problem, remedy = found.problem, found.remedy
        case ServingError(problem=problem, remedy=remedy, status=status_code):
            pass
        case LakeError(problem=problem, remedy=remedy):
            status_code = BAD_REQUEST if isinstance(error, UsageError) else SERVICE_UNAVAILABLE
        case RequestValidationError():
            first = error.errors()[0]  # without the value, as FastAPI's own answer has it: JSON may not hold it
            status_code = BAD_REQUEST if first["type"] in NO_TEXT else UNPROCESSABLE
            problem = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}."
            remedy = 'Send JSON such as {"sql": "select ..."}: see /docs.'
        case StarletteHTTPException():
            status_code, problem, headers = error.status_code, error.detail, error.headers
            remedy = "See /docs for the calls."
        case UnicodeError():
            status_code, problem = BAD_REQUEST, f"The request is not valid text: {type(error).__name__}."
            remedy = "Send UTF-8."
        case _:
            status_code, problem = 500, f"The endpoint failed: {type(error).__name__}."
            remedy = "Its output has the whole error."
    return problem_of(request.url.path, status_code, problem, remedy, headers)


def problem_of(
    path: str, status_code: int, problem: str, remedy: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return the answer to a request that failed; of a controller's calls, as Pinot's clients read it, too."""
    found: dict[str, str | int] = {"problem": problem, "remedy": remedy}
    if path.startswith(("/segments/", UPLOADS)):
        found = {"code": status_code, "error": f"{problem} {remedy}", **found}
    return JSONResponse(found, status_code, headers)
