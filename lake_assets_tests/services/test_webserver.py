"""Requests that a foreign page makes a browser send, sent to two real web servers: the one of `lake up`, and Dagster's.

Both serve the same Dagster instance. Each attack must succeed on Dagster's own server: if it did not, its refusal by
the other would prove nothing.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from starlette.responses import FileResponse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from lake_assets.connections.addresses import recorded_report
from lake_assets.errors import ServiceError
from lake_assets.services.lifecycle import PORT_NAMES
from lake_assets.services.servers import code_server, dagster_home, webserver, write_dagster_files
from lake_assets.services.service import Service, free_port, python_module, running
from lake_assets.services.webserver import NO_DASHBOARD, NO_REPORT, dashboard_of, report_response
from lake_assets.services.webserver_guard import parse_names
from lake_assets.settings import Settings

ELSEWHERE: dict[str, Any] = {"spark_remote": "sc://127.0.0.1:1", "zookeeper": "127.0.0.1:1", "kafka": "127.0.0.1:1"}
"""Nothing is asked of them here."""

PROXIED = "lake.example.com"
EVIL = "http://evil.example"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
IMAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
FRAME = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
NEIGHBOR = {**IMAGE, "Sec-Fetch-Site": "same-site"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
SUBSCRIPTION = 'subscription { pipelineRunLogs(runId: "nowhere") { __typename } }'


@dataclass(frozen=True)
class Servers:
    """Ports on loopback. plain: of Dagster's own web server."""

    guarded: int
    plain: int


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    settings = Settings(home=tmp_path_factory.mktemp("webserver"), webserver_hosts=PROXIED, **ELSEWHERE)
    ports = {name: free_port() for name in PORT_NAMES}
    write_dagster_files(settings, ports["code"])
    with ExitStack() as stack:
        stack.enter_context(running(code_server(settings, ports["code"])))
        stack.enter_context(running(webserver(settings, ports)))
        plain = stack.enter_context(running(unguarded(settings, {**ports, "webserver": free_port()})))
        yield Servers(ports["webserver"], plain.port or 0)


def unguarded(settings: Settings, ports: dict[str, int]) -> Service:
    """The same service with the command that Dagster documents."""
    place = ("--host", "127.0.0.1", "--port", str(ports["webserver"]))
    workspace = ("--workspace", str(dagster_home(settings) / "workspace.yaml"))
    command = python_module("dagster_webserver", *place, *workspace)
    return replace(webserver(settings, ports), name="unguarded", command=command)


def send(port: int, method: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    return httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, timeout=30, **more)


def pools(port: int) -> dict[str, int]:
    found = send(port, "GET", "/graphql", params={"query": "{instance{concurrencyLimits{concurrencyKey slotCount}}}"})
    assert found.status_code == 200
    limits = found.json()["data"]["instance"]["concurrencyLimits"]
    return {limit["concurrencyKey"]: limit["slotCount"] for limit in limits}


def closing(pool: str, name: str = "") -> str:
    return f'mutation {name} {{ setConcurrencyLimit(concurrencyKey: "{pool}", limit: 0) }}'


def open_pool(port: int) -> str:
    """The name of a new pool with one slot, made as the UI makes it."""
    pool = f"pool_{uuid4().hex}"
    document = f'mutation {{ setConcurrencyLimit(concurrencyKey: "{pool}", limit: 1) }}'
    origin = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
    made = send(port, "POST", "/graphql", origin, json={"query": document})
    assert made.json() == {"data": {"setConcurrencyLimit": True}}
    assert pools(port)[pool] == 1
    return pool


def by_get(port: int, pool: str, headers: dict[str, str]) -> httpx.Response:
    return send(port, "GET", "/graphql", headers, params={"query": closing(pool)})


def by_named_get(port: int, pool: str, headers: dict[str, str]) -> httpx.Response:
    document = f"query Look {{ version }} {closing(pool, 'Close')}"
    return send(port, "GET", "/graphql", headers, params={"query": document, "operationName": "Close"})


def by_json(port: int, pool: str, headers: dict[str, str]) -> httpx.Response:
    return send(port, "POST", "/graphql", headers, json={"query": closing(pool)})


def by_plain_text(port: int, pool: str, headers: dict[str, str]) -> httpx.Response:
    """No preflight is asked for this type, and Dagster takes it for JSON."""
    sent = {**headers, "Content-Type": "text/plain; application/json"}
    return send(port, "POST", "/graphql", sent, content=json.dumps({"query": closing(pool)}))


def by_form(port: int, pool: str, headers: dict[str, str]) -> httpx.Response:
    return send(port, "POST", "/graphql", {**headers, **FORM}, params={"query": closing(pool)})


def by_multipart(port: int, pool: str, headers: dict[str, str]) -> httpx.Response:
    """Dagster takes the document from the address."""
    return send(port, "POST", "/graphql", headers, params={"query": closing(pool)}, files={"0": b""})


ATTACKS = [
    pytest.param(by_get, {}, 405, id="GET of an old browser"),
    pytest.param(by_named_get, {}, 405, id="GET that names one operation of two"),
    pytest.param(by_get, IMAGE, 403, id="image"),
    pytest.param(by_get, NEIGHBOR, 403, id="image on a page of another port"),
    pytest.param(by_get, FRAME, 403, id="frame"),
    pytest.param(by_get, LINK, 405, id="link"),
    pytest.param(by_get, {"Host": "evil.example"}, 421, id="GET under a rebound name"),
    pytest.param(by_json, {"Host": "evil.example", "Origin": EVIL}, 421, id="POST under a rebound name"),
    pytest.param(by_json, {"Origin": "http://127.0.0.1:1"}, 403, id="POST from another port"),
    pytest.param(by_plain_text, {"Origin": EVIL}, 403, id="POST of text"),
    pytest.param(by_plain_text, {"Origin": "null"}, 403, id="POST from a sandboxed frame"),
    pytest.param(by_plain_text, {"Sec-Fetch-Site": "cross-site"}, 403, id="POST without an origin"),
    pytest.param(by_plain_text, {"Sec-Fetch-Site": "same-site"}, 403, id="POST without an origin, another port"),
    pytest.param(by_form, {"Origin": EVIL}, 403, id="form"),
    pytest.param(by_form, {**LINK, "Origin": "null"}, 403, id="form that fills the tab"),
    pytest.param(by_multipart, {"Origin": EVIL}, 403, id="multipart form"),
]


def test_the_report_is_the_live_one_then_the_written_one_then_what_to_do(tmp_path: Path) -> None:
    names = parse_names(3000, PROXIED)
    missing = report_response(tmp_path, names, "127.0.0.1:3000")
    assert (missing.status_code, b"`lake report --serve`" in missing.body) == (404, True)
    (tmp_path / "report.html").write_text("<h1>lake report</h1>")
    with recorded_report(tmp_path, 4001):
        live = report_response(tmp_path, names, "localhost:3000")
        assert live.headers["location"] == "http://127.0.0.1:4001/"
        elsewhere = report_response(tmp_path, names, PROXIED)  # this browser does not reach loopback
    for written in (elsewhere, report_response(tmp_path, names, "127.0.0.1:3000")):
        assert isinstance(written, FileResponse)
        assert written.path == tmp_path / "report.html"
        assert written.headers["content-security-policy"] == "sandbox allow-scripts"


def test_the_dashboard_of_a_lake_is_the_live_one_then_the_written_one(tmp_path: Path) -> None:
    names = parse_names(3000, PROXIED)
    here = "127.0.0.1:3000"
    (tmp_path / "email_event.html").write_text("<h1>emails</h1>")
    (tmp_path / "report.html").write_text("<h1>lake report</h1>")
    with recorded_report(tmp_path, 4001, name="dashboard-voice_insight-server.json"):
        live = report_response(tmp_path, names, here, dashboard_of("voice_insight"))
        written = report_response(tmp_path, names, here, dashboard_of("email_event"))
    assert live.headers["location"] == "http://127.0.0.1:4001/"
    assert isinstance(written, FileResponse)
    assert written.path == tmp_path / "email_event.html"
    missing = report_response(tmp_path, names, here, dashboard_of("voice_insight"))
    assert (missing.status_code, b"`lake engagement dashboard voice_insight`" in missing.body) == (404, True)
    strange = report_response(tmp_path, names, here, dashboard_of("../report"))
    assert bytes(strange.body).startswith(b"There is no dashboard of LAKE")


@pytest.mark.slow
def test_the_pages_have_addresses_under_the_ui(servers: Servers) -> None:
    assert send(servers.guarded, "GET", "/lake-report").text == NO_REPORT
    assert send(servers.guarded, "GET", "/lake-report", IMAGE).status_code == 403
    dashboard = send(servers.guarded, "GET", "/lake-dashboard/email_event")
    assert (dashboard.status_code, dashboard.text) == (404, NO_DASHBOARD.format(lake="email_event"))


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "headers", "status"), ATTACKS)
def test_g20_no_other_site_closes_a_pool(servers: Servers, attack: Any, headers: dict[str, str], status: int) -> None:
    pool = open_pool(servers.guarded)
    refused = attack(servers.guarded, pool, headers)
    assert refused.status_code == status
    assert refused.headers["content-type"].startswith("text/plain")
    assert "\n  → " in refused.text
    assert "access-control-allow-origin" not in refused.headers
    assert pools(servers.guarded)[pool] == 1
    assert attack(servers.plain, pool, headers).status_code == 200
    assert pools(servers.guarded)[pool] == 0


@pytest.mark.slow
def test_g20_no_other_site_reports_a_materialization_or_wipes_one(servers: Servers) -> None:
    asset = f"asset_{uuid4().hex}"
    report = f"/report_asset_materialization/{asset}"
    assert send(servers.guarded, "POST", report, {"Origin": EVIL}).status_code == 403
    assert materialized(servers.guarded, asset) == 0
    assert send(servers.plain, "POST", report, {"Origin": EVIL}).status_code == 200
    assert materialized(servers.guarded, asset) == 1
    wipe = f'mutation {{ wipeAssets(assetPartitionRanges: [{{assetKey: {{path: ["{asset}"]}}}}]) {{ __typename }} }}'
    assert send(servers.guarded, "GET", "/graphql", params={"query": wipe}).status_code == 405
    assert materialized(servers.guarded, asset) == 1
    done = send(servers.plain, "GET", "/graphql", {"Origin": EVIL}, params={"query": wipe})
    assert done.json() == {"data": {"wipeAssets": {"__typename": "AssetWipeSuccess"}}}
    assert materialized(servers.guarded, asset) == 0


def materialized(port: int, asset: str) -> int:
    document = (
        f'{{ assetOrError(assetKey: {{path: ["{asset}"]}}) {{ ...on Asset {{ assetMaterializations {{ runId }} }} }} }}'
    )
    found = send(port, "POST", "/graphql", json={"query": document}).json()["data"]["assetOrError"]
    return len(found.get("assetMaterializations", []))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1", EVIL, 403),
        ("127.0.0.1", "null", 403),
        ("127.0.0.1", "http://127.0.0.1:1", 403),
        ("evil.example", None, 421),
    ],
)
def test_g20_no_other_site_subscribes(servers: Servers, host: str, origin: str | None, status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        subscribed(servers.guarded, host=host, origin=origin)
    assert refused.value.response.status_code == status
    assert "\n  → " in (refused.value.response.body or b"").decode()
    assert subscribed(servers.plain, host=host, origin=origin) == "PipelineRunLogsSubscriptionFailure"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_the_ui_subscribes(servers: Servers, name: str) -> None:
    origin = f"http://{name}:{servers.guarded}"
    assert subscribed(servers.guarded, host=name, origin=origin) == "PipelineRunLogsSubscriptionFailure"
    assert subscribed(servers.guarded, host=name, origin=None) == "PipelineRunLogsSubscriptionFailure"


def subscribed(port: int, *, host: str, origin: Any) -> str:
    """The type of the first event that a page of this origin gets to read."""
    address = f"ws://{host}:{port}/graphql"
    joined = socket.create_connection(("127.0.0.1", port), timeout=30)
    with (
        joined,
        connect(address, sock=joined, origin=origin, subprotocols=[Subprotocol("graphql-ws")], proxy=None) as opened,
    ):
        opened.send(json.dumps({"type": "connection_init", "payload": {}}))
        assert json.loads(opened.recv(30)) == {"type": "connection_ack"}
        opened.send(json.dumps({"type": "start", "id": "1", "payload": {"query": SUBSCRIPTION}}))
        event = json.loads(opened.recv(30))
        return str(event["payload"]["data"]["pipelineRunLogs"]["__typename"])


@pytest.mark.slow
@pytest.mark.parametrize("send_it", [by_json, by_form, by_multipart])
@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="curl"),
        pytest.param({"Host": PROXIED, "Origin": f"https://{PROXIED}"}, id="proxy"),
        pytest.param({"Origin": f"https://{PROXIED}", "Sec-Fetch-Site": "same-origin"}, id="proxy that sets the host"),
    ],
)
def test_whoever_may_change_dagster_still_does_by_post(servers: Servers, send_it: Any, headers: dict[str, str]) -> None:
    pool = open_pool(servers.guarded)
    assert send_it(servers.guarded, pool, headers).json() == {"data": {"setConcurrencyLimit": True}}
    assert pools(servers.guarded)[pool] == 0


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/runs", "/graphql"])
@pytest.mark.parametrize("headers", [{}, LINK, {"Sec-Fetch-Site": "none"}, {"Host": PROXIED}])
def test_the_pages_are_those_of_dagster(servers: Servers, path: str, headers: dict[str, str]) -> None:
    found = send(servers.guarded, "GET", path, {"Accept": "text/html", **headers})
    plain = send(servers.plain, "GET", path, {"Accept": "text/html"})
    assert (found.status_code, found.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert without_nonce(found) == without_nonce(plain)


@pytest.mark.slow
def test_scripts_are_served_and_the_ui_is_not_shown_in_a_frame_of_another_site(servers: Servers) -> None:
    page = send(servers.guarded, "GET", "/")
    assert page.headers["x-frame-options"] == "SAMEORIGIN"
    own = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
    script = page.text.split('src="')[1].split('"')[0]
    assert send(servers.guarded, "GET", script, own).status_code == 200
    assert send(servers.guarded, "GET", "/", FRAME).status_code == 403


def without_nonce(page: httpx.Response) -> str:
    policy = page.headers.get("content-security-policy", "")
    nonce = policy.partition("'nonce-")[2].partition("'")[0]
    return page.text.replace(nonce, "") if nonce else page.text


@pytest.mark.slow
def test_a_setting_that_cannot_work_is_named_at_the_start(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, webserver_hosts="http://lake.example.com", **ELSEWHERE)
    ports = {name: free_port() for name in PORT_NAMES}
    write_dagster_files(settings, ports["code"])
    service = replace(webserver(settings, ports), after=None)
    with ExitStack() as stack, pytest.raises(ServiceError, match=r"webserver ended(.|\n)*'http://lake.example.com'"):
        stack.enter_context(running(service))
