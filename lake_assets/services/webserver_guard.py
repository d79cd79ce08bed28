"""Which requests Dagster's web server refuses: those that a foreign web page can make a browser send.

Dagster's web server asks for no login. By itself it also runs a mutation that is sent by GET, so an image on any page
could wipe assets. Browsers say where a request comes from, in headers that a page cannot set. Four rules use them:

- The Host must be a name that the server is served under. A page can point its own name at this machine (DNS
  rebinding). The browser then takes page and server for one origin, but the Host has the page's name.
- The Origin, if there is one, must be the server's own. Browsers send it with every POST and WebSocket handshake; it
  is `null` if the browser hides it.
- If there is no Origin, `Sec-Fetch-Site` must not name another site, unless a tab follows a link to the UI.
- A GET request runs queries only. Old browsers send neither of the two headers with a GET, and new ones send neither
  to a name that is not loopback and has no TLS.

A request without these headers comes from no browser (curl, or the readiness check of `lake up`) and passes. This
module decides and answers without Dagster; `webserver.py` puts it before Dagster's web server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse
from starlette.datastructures import Headers, QueryParams
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from lake_assets.errors import ConfigurationError

GRAPHQL = "/graphql"
OWN_SITES = {"same-origin", "none"}
"""Values of `Sec-Fetch-Site`: the server's own pages, and what a person typed or bookmarked."""

HOST_NAME = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
HTTP_PORT = 80
MAX_SHOWN = 200
"""Characters of a header that an answer repeats."""


@dataclass(frozen=True)
class Names:
    """The host names of the server: `name` or `name:port`, in lower case, as an address bar shows them.

    Attributes:
        port: Where the server listens on loopback.
        others: Names of a proxy or a tunnel, from the settings.
        server: What is served, for people.
        restart: How the server takes over a changed setting, as the end of a sentence.
    """

    port: int
    others: frozenset[str] = frozenset()
    server: str = "Dagster's UI"
    restart: str = "run `lake down` and `lake up`"

    @property
    def loopback(self) -> frozenset[str]:
        """The names of this machine, with the port."""
        # Browsers leave the default port out.
        suffix = "" if self.port == HTTP_PORT else f":{self.port}"
        return frozenset(f"{name}{suffix}" for name in ("127.0.0.1", "localhost", "[::1]"))

    def served(self, host: str) -> bool:
        """Return whether the server is served under the name of a Host header."""
        return host.lower() in self.loopback | self.others

    def own_origins(self, host: str) -> frozenset[str]:
        """Return the origins of the server's own pages for a request with this Host.

        The other loopback names are left out, because another program may listen on the same port of [::1].
        """
        origins = {f"http://{host.lower()}"}
        for name in self.others:
            origins |= {f"http://{name}", f"https://{name}"}
        return frozenset(origins)


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused, and what to do about it.

    Attributes:
        status: HTTP status code of the answer.
        problem: What is wrong with the request.
        remedy: What to do.
    """

    status: int
    problem: str
    remedy: str

    @property
    def text(self) -> str:
        """The body of the answer."""
        return f"{self.problem}\n  → {self.remedy}\n"


def parse_names(port: int, setting: str) -> Names:
    """Return the host names of the server.

    Args:
        port: Where the server listens on loopback.
        setting: Further names, comma-separated; empty for none.

    Raises:
        ConfigurationError: A name is not `name` or `name:port`.
    """
    others = set()
    for part in setting.split(","):
        name = part.strip().lower()
        if not name:
            continue
        if not HOST_NAME.fullmatch(name):
            raise ConfigurationError(
                f"LAKE_WEBSERVER_HOSTS has {name!r}, which is not a host name.",
                remedy="Write each name as the address bar shows it, without http:// and path: lake.example.com,"
                " localhost:8080.",
            )
        others.add(name)
    return Names(port, frozenset(others))


def refusal(scope: Scope, names: Names) -> Refusal | None:
    """Return why a request must not reach Dagster; None if it may.

    Args:
        scope: Of an HTTP request or a WebSocket handshake, as ASGI describes them.
        names: The host names of the server.
    """
    return _of_host(scope, names) or _of_origin(scope, names) or _of_site(scope) or _of_operation(scope)


def _of_host(scope: Scope, names: Names) -> Refusal | None:
    hosts = Headers(scope=scope).getlist("host")
    if len(hosts) == 1 and names.served(hosts[0]):
        return None
    return Refusal(
        421,
        f"{names.server} is not served under the host name {_shown(hosts)}.",
        f"Open http://127.0.0.1:{names.port}, or add the name, as the address bar shows it, to LAKE_WEBSERVER_HOSTS,"
        f" then {names.restart}.",
    )


def _of_origin(scope: Scope, names: Names) -> Refusal | None:
    headers = Headers(scope=scope)
    origins = headers.getlist("origin")
    own = names.own_origins(headers["host"])
    if all(origin.lower() in own for origin in origins):
        return None
    return Refusal(
        403,
        f"The request comes from a page of another origin, {_shown(origins)}.",
        "Use Dagster's own UI. If this is its UI behind a proxy, add the name that the address bar shows to"
        " LAKE_WEBSERVER_HOSTS, then run `lake down` and `lake up`.",
    )


def _of_site(scope: Scope) -> Refusal | None:
    """Refuse by `Sec-Fetch-Site` if there is no Origin. The Origin is more exact: it has the port."""
    headers = Headers(scope=scope)
    sites = headers.getlist("sec-fetch-site")
    if "origin" in headers or set(sites) <= OWN_SITES or _follows_link(scope):
        return None
    return Refusal(
        403,
        f"The request was made by a page of another site (Sec-Fetch-Site: {_shown(sites)}).",
        "Use Dagster's own UI; a link of another page to it works when it opens in a tab of its own.",
    )


def _follows_link(scope: Scope) -> bool:
    """Whether a whole tab goes to the address: the page with the link cannot read it. A frame does not count."""
    headers = Headers(scope=scope)
    fetched = (headers.getlist("sec-fetch-mode"), headers.getlist("sec-fetch-dest"))
    return scope.get("method") in {"GET", "HEAD"} and fetched == (["navigate"], ["document"])


def _of_operation(scope: Scope) -> Refusal | None:
    """Refuse a document with a mutation or a subscription unless it is POSTed, whichever operation it names."""
    reads_only = scope["type"] == "http" and scope["method"] != "POST"
    if not reads_only or not scope["path"].rstrip("/").endswith(GRAPHQL):
        return None
    for document in QueryParams(scope["query_string"]).getlist("query"):
        refused = _of_document(document, scope["method"])
        if refused is not None:
            return refused
    return None


def _of_document(document: str, method: str) -> Refusal | None:
    try:
        operations = _operations(document)
    except (GraphQLError, RecursionError) as error:
        return Refusal(400, f"The GraphQL document cannot be parsed: {error}.", "Correct the document.")
    if operations <= {OperationType.QUERY}:
        return None
    kinds = ", ".join(sorted(operation.value for operation in operations))
    return Refusal(405, f"A {method} request may only run queries; this one has: {kinds}.", "Send it by POST.")


def _operations(document: str) -> set[OperationType]:
    definitions = parse(document, no_location=True).definitions
    return {node.operation for node in definitions if isinstance(node, OperationDefinitionNode)}


def _shown(values: list[str]) -> str:
    return repr(", ".join(values)[:MAX_SHOWN]) if values else "(none)"


class RequestGuard:
    """ASGI middleware that answers refused requests itself and passes all others on."""

    def __init__(self, app: ASGIApp, names: Names) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = None if scope["type"] == "lifespan" else refusal(scope, self._names)
        if refused is None:
            await self._app(scope, receive, send)
            return
        headers = {"Allow": "POST"} if refused.status == 405 else {}
        headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        await PlainTextResponse(refused.text, refused.status, headers)(scope, receive, send)
