"""The gate in front of the endpoint: it refuses requests by their head, before a byte of the body is read.

Without it, FastAPI reads the whole body before it asks for the token. A refused request ends its connection, so the
rest of its body is not read either.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from pydantic import SecretStr

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1 << 18
"""A query may have 20,000 characters. Each takes up to 12 bytes in JSON."""

REQUEST_SECONDS = 30.0
"""For a request to arrive, its head and its body each."""

OPEN_PATHS = frozenset({"/health"})
UPLOAD_PATHS = frozenset({"/v2/segments"})
"""Their bodies may be long, if each part of them arrives in time."""
CLOSE = {"Connection": "close"}


@dataclass(frozen=True)
class Refusal:
    """The answer to a request that is not let in."""

    status_code: int
    problem: str
    remedy: str

    @property
    def response(self) -> JSONResponse:
        """Return the answer, which ends the connection."""
        headers = {**CLOSE, "WWW-Authenticate": "Bearer"} if self.status_code == 401 else CLOSE
        return JSONResponse({"problem": self.problem, "remedy": self.remedy}, self.status_code, headers)


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
            await refusal.response(scope, receive, send)
        else:
            is_upload = scope["type"] == "http" and scope["path"] in UPLOAD_PATHS
            most = None if is_upload else MAX_BODY_BYTES
            await self._app(scope, _limited(receive, self._seconds, most), send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if scope["path"] not in OPEN_PATHS and not self._is_authorized(headers.get(b"authorization", b"")):
            return WRONG_TOKEN
        if scope["path"] in UPLOAD_PATHS:
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
