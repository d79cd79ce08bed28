"""The read-only endpoint over served tables, for loopback: queries, tables, lineage, health, and its OpenAPI page.

Errors are answered as {"problem", "remedy"}. With a token, all but /health asks for `Authorization: Bearer <token>`,
the OpenAPI page too: it tells what there is to ask.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from threading import BoundedSemaphore
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.middleware.trustedhost import TrustedHostMiddleware
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from kazoo.exceptions import KazooException
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from lake_assets.errors import LakeError, UsageError
from lake_assets.serving.endpoints.query import Result, query
from lake_assets.serving.errors import QueryRefused, QueryStopped, TableNotServed
from lake_assets.serving.served_tables import Serving
from lake_assets.serving.store.status import EntryStatus, TableStatus, lineage_status, table_status

LONGEST_QUERY = 20_000
OPENAPI = "/openapi.json"
HOSTS = ("127.0.0.1", "localhost")
AT_ONCE = 4
"""Queries; each may take the memory of its limit. Others wait for a place, as long as a query may take."""

BEARER = HTTPBearer(auto_error=False)
STATUS = ((TableNotServed, 404), (QueryRefused, 400), (UsageError, 400), (QueryStopped, 422))


class PlanningInput(BaseModel):
    """One SELECT over served tables."""

    sql: str = Field(max_length=LONGEST_QUERY, examples=["select state, count(*) from account_state group by state"])


class Answer(BaseModel):
    """rows: in the order of the query; decimals as text, times in UTC, blobs in hexadecimal.

    versions: of each table's lineage.
    """

    model_config = ConfigDict(ser_json_bytes="hex")

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool
    versions: dict[str, int | None]


def endpoint(serving: Serving, *, token: SecretStr | None = None) -> FastAPI:
    """The application. A query is held to the limits of `serving`."""
    app = FastAPI(
        title="Served tables",
        description="Whole snapshots of tables of the lake, read-only.",
        version="1",
        openapi_url=None,  # and so no page: both are guarded below
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))  # no page of a browser gets here by its name
    app.add_exception_handler(LakeError, _refusal)
    app.add_exception_handler(KazooException, _unreachable)
    asked, places = [Depends(_guard(token))], BoundedSemaphore(AT_ONCE)

    @app.get("/health")
    def health() -> dict[str, str]:
        """Whether ZooKeeper answers."""
        serving.registry.sync()
        return {"status": "ok"}

    @app.get("/tables", dependencies=asked)
    def tables() -> list[TableStatus]:
        """What is served."""
        return [table_status(serving.registry, name) for name in serving.registry.tables()]

    @app.get("/lineage/{table}", dependencies=asked)
    def lineage(table: str) -> list[EntryStatus]:
        """The pushes of a table, the newest first."""
        return lineage_status(serving.registry, table)

    @app.post("/query", dependencies=asked, response_model=Answer)
    def answer(question: PlanningInput) -> Response:
        """Runs one SELECT; all its tables are as of one moment."""
        if not places.acquire(timeout=serving.limits.seconds):
            raise QueryStopped(f"{AT_ONCE} other queries are running.", remedy="Ask again.")
        try:
            found = query(serving.broker, question.sql, serving.limits)
        finally:
            places.release()
        return Response(_answer(found).model_dump_json(), media_type="application/json")

    @app.get(OPENAPI, dependencies=asked, include_in_schema=False)
    def openapi() -> dict[str, Any]:
        return app.openapi()

    @app.get("/docs", dependencies=asked, include_in_schema=False)
    def docs() -> HTMLResponse:
        return get_swagger_ui_html(openapi_url=OPENAPI, title=app.title)

    return app


def _answer(found: Result) -> Answer:
    return Answer(
        columns=list(found.columns),
        types=list(found.types),
        rows=[list(row) for row in found.rows],
        truncated=found.truncated,
        versions=dict(found.versions),
    )


def _guard(token: SecretStr | None) -> Callable[..., None]:
    """Lets a request pass that bears the token; any, if there is none."""

    def check(found: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)]) -> None:
        given = found.credentials if found else ""
        if token and not secrets.compare_digest(given.encode(), token.get_secret_value().encode()):
            raise HTTPException(401, "The token is missing or wrong.", {"WWW-Authenticate": "Bearer"})

    return check


def _refusal(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, LakeError)
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 503)
    return JSONResponse({"problem": error.problem, "remedy": error.remedy}, status)


def _unreachable(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"problem": f"ZooKeeper did not answer: {error!r}.", "remedy": "See that it runs."}, 503)
