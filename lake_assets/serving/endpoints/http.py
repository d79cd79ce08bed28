"""The HTTP endpoint over served tables, for loopback: queries, tables, lineage, health, its OpenAPI page, and the calls
of a controller of Pinot (`controller.py`), which change tables.

An error is answered as {"problem", "remedy"}. With a token, all requests except /health need `Authorization: Bearer
<token>`, also the OpenAPI page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from threading import BoundedSemaphore
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from kazoo.exceptions import KazooException
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from lake_assets.connections.zookeeper import zookeeper_error
from lake_assets.errors import LakeError, UsageError
from lake_assets.serving.endpoints.controller import UPLOADS, controller
from lake_assets.serving.endpoints.query import Result, query
from lake_assets.serving.endpoints.request_gate import REQUEST_SECONDS, RequestGate
from lake_assets.serving.errors import (
    ColumnsChanged,
    ErasedSince,
    QueryRefused,
    QueryStopped,
    QuotaExceeded,
    ReplaceRefused,
    TableNotServed,
    TargetTaken,
    TokenNeeded,
)
from lake_assets.serving.served_tables import Serving
from lake_assets.serving.store.status import EntryStatus, TableStatus, lineage_status, table_status

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
STATUS_CODES = (
    (TableNotServed, 404),
    (QueryRefused, 400),
    (UsageError, 400),
    (QueryStopped, 422),
    (TokenNeeded, 403),
    (TargetTaken, 409),
    (QuotaExceeded, 403),
    (ColumnsChanged, 400),
    (ErasedSince, 409),
    (ReplaceRefused, 500),
)
"""The first that fits; other errors are answered as 503. Those of replacements are Pinot's."""


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

    model_config = ConfigDict(ser_json_bytes="hex")

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
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
        openapi_url=None,  # and so no page: `_add_openapi` adds both
    )
    app.add_middleware(RequestGate, token=token, seconds=request_seconds)
    # A page in a browser cannot reach the endpoint by another host name.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))
    app.add_exception_handler(LakeError, _answer_error)
    app.add_exception_handler(KazooException, _answer_unreachable)
    app.add_exception_handler(UnicodeError, _answer_odd_text)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    guard = Depends(BEARER)
    _add_status(app, serving, guard)
    _add_query(app, serving, guard)
    app.include_router(
        controller(serving, token=token, guard=guard, quotas=quotas or {}, erased_at=erased_at), tags=["controller"]
    )
    _add_openapi(app, guard)
    return app


def _add_status(app: FastAPI, serving: Serving, guard: Any) -> None:
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


def _add_query(app: FastAPI, serving: Serving, guard: Any) -> None:
    places = BoundedSemaphore(CONCURRENT_QUERIES)

    @app.post("/query", dependencies=[guard], response_model=QueryResponse)
    def run_query(request: QueryRequest) -> Response:
        """Run one SELECT. All its tables are read as of one moment."""
        if not places.acquire(timeout=serving.limits.seconds):
            raise QueryStopped(f"{CONCURRENT_QUERIES} other queries are running.", remedy="Run the query again later.")
        try:
            result = query(serving.broker, request.sql, serving.limits)
        finally:
            places.release()
        return Response(_response(result).model_dump_json(), media_type="application/json")


def _add_openapi(app: FastAPI, guard: Any) -> None:
    @app.get(OPENAPI, dependencies=[guard], include_in_schema=False)
    def openapi() -> dict[str, Any]:
        return app.openapi()

    @app.get("/docs", dependencies=[guard], include_in_schema=False)
    def docs() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url=OPENAPI, title=app.title)


def _response(result: Result) -> QueryResponse:
    return QueryResponse(
        columns=list(result.columns),
        types=list(result.types),
        rows=[list(row) for row in result.rows],
        truncated=result.truncated,
        versions=dict(result.versions),
    )


def _answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, LakeError)
    status_code = next((code for kind, code in STATUS_CODES if isinstance(error, kind)), SERVICE_UNAVAILABLE)
    answer = _problem(status_code, error.problem, error.remedy)
    if request.url.path.startswith(("/segments/", UPLOADS)):  # as Pinot's clients read it
        found = {"code": status_code, "error": f"{error.problem} {error.remedy}"}
        return JSONResponse({**found, "problem": error.problem, "remedy": error.remedy}, status_code)
    return answer


def _answer_unreachable(_: Request, error: Exception) -> JSONResponse:
    found = zookeeper_error(error)
    return _problem(SERVICE_UNAVAILABLE, found.problem, found.remedy)


def _answer_odd_text(_: Request, error: Exception) -> JSONResponse:
    return _problem(BAD_REQUEST, f"The request is not valid text: {type(error).__name__}.", "Send UTF-8.")


def _answer_invalid(_: Request, error: Exception) -> JSONResponse:
    """Without the value, as FastAPI's own answer has it: JSON may not be able to hold it."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    status_code = BAD_REQUEST if first["type"] in NO_TEXT else UNPROCESSABLE
    return _problem(status_code, f"{place}: {first['msg']}.", 'Send JSON such as {"sql": "select ..."}: see /docs.')


def _problem(status_code: int, problem: str, remedy: str) -> JSONResponse:
    return JSONResponse({"problem": problem, "remedy": remedy}, status_code)
