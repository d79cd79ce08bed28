"""What the guard of Dagster's web server refuses, header by header; no server runs here."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.errors import ConfigurationError
from lake_assets.services.webserver_guard import Names, parse_names, refusal

NAMES = parse_names(3000, "Lake.example.com, localhost:8080,")
SERVED = ["127.0.0.1:3000", "localhost:3000", "LocalHost:3000", "[::1]:3000", "lake.example.com", "localhost:8080"]
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:3000",
    "127.0.0.1",
    "127.0.0.1:3001",
    "127.0.0.1:3000.evil.example",
    "127.0.0.1.evil.example:3000",
    "localhost",
    "localhost.:3000",
    "0.0.0.0:3000",
    "lake.example.com:3000",
    "sub.lake.example.com",
    "",
]
FOREIGN_ORIGINS = [
    "null",
    "",
    "http://evil.example",
    "http://127.0.0.1",
    "http://127.0.0.1:3001",
    "https://127.0.0.1:3000",
    "http://localhost:3000",  # of another loopback name: another program may listen there
    "http://127.0.0.1:3000.evil.example",
    "http://127.0.0.1:3000@evil.example",
    "http://127.0.0.1:3000/",
    "http://lake.example.com.evil.example",
    "file://",
    "chrome-extension://lake.example.com",
]
OWN_ORIGINS = {
    "http://127.0.0.1:3000",
    "http://lake.example.com",
    "https://lake.example.com",
    "http://localhost:8080",
    "https://localhost:8080",
}
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]
CALLS = st.sampled_from([*METHODS, "websocket"])
PATHS = st.sampled_from(["/", "/graphql", "/runs/1", "/logs/a/b.out", "/report_asset_materialization/a"])
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def request(method: str = "GET", path: str = "/", query: str = "", **headers: str) -> dict[str, Any]:
    """An ASGI scope, with a served Host unless one is given; names of headers have _ for -."""
    given = {"Host": "127.0.0.1:3000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": raw}
    if method == "websocket":
        scope["type"] = "websocket"
        del scope["method"]
    return scope


def status(scope: dict[str, Any], names: Names = NAMES) -> int | None:
    refused = refusal(scope, names)
    return refused.status if refused else None


@pytest.mark.parametrize("host", SERVED)
@pytest.mark.parametrize("method", ["GET", "POST", "websocket"])
def test_what_comes_from_no_browser_passes(method: str, host: str) -> None:
    assert status(request(method, "/graphql", "query={version}", Host=host)) is None


@pytest.mark.parametrize("host", SERVED)
@pytest.mark.parametrize("method", ["GET", "POST", "websocket"])
def test_what_the_ui_sends_passes(method: str, host: str) -> None:
    own = {"Host": host, "Origin": f"http://{host}".lower(), "Sec-Fetch-Site": "same-origin"}
    assert status(request(method, "/graphql", **own)) is None


@given(CALLS, PATHS, st.sampled_from(FOREIGN_HOSTS) | st.text(st.characters(max_codepoint=255)))
def test_a_foreign_host_is_refused_even_when_the_origin_agrees_with_it(method: str, path: str, host: str) -> None:
    if host.lower() not in SERVED:
        assert status(request(method, path, Host=host, Origin=f"http://{host}")) == 421


def test_a_request_with_no_host_or_with_two_is_refused() -> None:
    scope = request()
    one = scope["headers"]
    assert status({**scope, "headers": []}) == 421
    assert status({**scope, "headers": [*one, *one]}) == 421
    assert status({**scope, "headers": [*one, (b"host", b"evil.example")]}) == 421


@given(CALLS, PATHS, st.sampled_from(FOREIGN_ORIGINS) | st.text(st.characters(max_codepoint=255)))
def test_a_foreign_origin_is_refused_whatever_else_is_said(method: str, path: str, origin: str) -> None:
    if origin.lower() not in OWN_ORIGINS:
        assert status(request(method, path, Origin=origin)) == 403
        assert status(request(method, path, Origin=origin, Sec_Fetch_Site="same-origin")) == 403
        assert status(request(method, path, Origin=origin, **LINK)) == 403


def test_of_two_origins_each_must_be_the_servers_own() -> None:
    scope = request("POST", "/graphql", Origin="http://127.0.0.1:3000")
    assert status(scope) is None
    scope["headers"].append((b"origin", b"http://evil.example"))
    assert status(scope) == 403


def test_the_ui_behind_a_proxy_that_rewrites_the_host_works() -> None:
    assert status(request("POST", "/graphql", Origin="https://lake.example.com")) is None
    assert status(request("POST", "/graphql", Host="lake.example.com", Origin="https://lake.example.com")) is None
    assert status(request("POST", "/graphql", Origin="https://lake.example.com"), Names(3000)) == 403


@given(CALLS, PATHS, st.sampled_from(["cross-site", "same-site", "", "else", "same-origin, cross-site"]))
def test_without_an_origin_another_site_is_refused(method: str, path: str, site: str) -> None:
    assert status(request(method, path, Sec_Fetch_Site=site)) == 403
    assert status(request(method, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="image")) == 403
    assert status(request(method, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="iframe")) == 403


@given(CALLS, PATHS, st.sampled_from(["same-origin", "none"]))
def test_without_an_origin_own_pages_and_typed_addresses_pass(method: str, path: str, site: str) -> None:
    assert status(request(method, path, Sec_Fetch_Site=site)) is None


def test_a_link_on_another_site_opens_the_ui_and_posts_nothing() -> None:
    assert status(request("GET", "/runs/1", **LINK)) is None
    assert status(request("GET", "/graphql", "query=mutation{a}", **LINK)) == 405
    assert status(request("POST", "/graphql", **LINK)) == 403
    assert status(request("websocket", "/graphql", **LINK)) == 403


KINDS = st.sampled_from(["query", "mutation", "subscription"])
NAMED = st.lists(KINDS, min_size=1, max_size=4).map(lambda kinds: [(kind, f"O{at}") for at, kind in enumerate(kinds)])


@given(st.sampled_from(["GET", "HEAD", "PUT"]), NAMED, st.data())
def test_all_but_post_runs_queries_only_whichever_operation_is_named(
    method: str, operations: list[tuple[str, str]], data: st.DataObject
) -> None:
    document = " ".join(f"{kind} {name} {{ field }}" for kind, name in operations)
    chosen = data.draw(st.sampled_from([name for _, name in operations] + ["", "nowhere"]))
    query = urlencode({"operationName": chosen, "query": document})
    expected = None if {kind for kind, _ in operations} == {"query"} else 405
    assert status(request(method, "/graphql", query)) == expected
    assert status(request("POST", "/graphql", query)) is None


@pytest.mark.parametrize(
    "document",
    [
        "mutation{a}",
        "mutation($x:Int){a(x:$x)}",
        "\ufeff  ,,, mutation{a}",
        "# query\nmutation{a}",
        "query{a} mutation M{b}",
        "fragment F on Mutation{a} mutation{...F}",
        "subscription{a}",
    ],
)
def test_what_changes_something_is_found_by_the_parser(document: str) -> None:
    assert status(request("GET", "/graphql", urlencode({"query": document}))) == 405
    assert status(request("GET", "/graphql", urlencode({"query": document}).replace("mutation", "%6dutation"))) == 405
    assert status(request("GET", "/graphql/", urlencode({"query": document}))) == 405
    assert status(request("GET", "/prefix/graphql", urlencode({"query": document}))) == 405
    assert status(request("GET", "/graphql", urlencode([("query", "{a}"), ("query", document)]))) == 405
    assert status(request("GET", "/graphql", urlencode([("query", document), ("query", "{a}")]))) == 405


@pytest.mark.parametrize(
    "document",
    [
        "{mutation}",
        'query{a(text:"mutation{b}")}',
        "{a} # mutation{b}",
        "query mutation{a}",
        "fragment mutation on Query{a} {...mutation}",
        '{a(text:"""\nmutation{b}\n""")}',
    ],
)
def test_the_word_alone_is_no_mutation(document: str) -> None:
    assert status(request("GET", "/graphql", urlencode({"query": document}))) is None


def test_a_document_that_cannot_be_parsed_is_refused() -> None:
    assert status(request("GET", "/graphql", "query=mutation{")) == 400
    assert status(request("GET", "/graphql", urlencode({"query": "{a" * 20_000}))) == 400
    assert status(request("GET", "/graphql", "query=")) == 400


def test_a_page_of_the_ui_may_have_any_query_string() -> None:
    assert status(request("GET", "/assets", "query=mutation{a}")) is None
    assert status(request("GET", "/graphql", "")) is None


def test_a_refusal_says_what_is_wrong_and_what_to_do() -> None:
    rebound = refusal(request(Host="evil.example:3000"), NAMES)
    assert rebound is not None
    assert rebound.text == (
        "Dagster's UI is not served under the host name 'evil.example:3000'.\n"
        "  → Open http://127.0.0.1:3000, or add the name, as the address bar shows it, to LAKE_WEBSERVER_HOSTS,"
        " then run `lake down` and `lake up`.\n"
    )
    mutation = refusal(request("GET", "/graphql", "query=mutation{a}"), NAMES)
    assert mutation is not None
    assert mutation.text == "A GET request may only run queries; this one has: mutation.\n  → Send it by POST.\n"


def test_at_the_default_port_of_http_browsers_leave_it_out() -> None:
    assert status(request(Host="localhost", Origin="http://localhost"), Names(80)) is None
    assert status(request(Host="localhost:80"), Names(80)) == 421


@pytest.mark.parametrize("setting", ["http://lake.example.com", "lake.example.com/", "*", "a b", "lake:port", "::1"])
def test_a_setting_that_is_no_host_name_is_refused(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=r"LAKE_WEBSERVER_HOSTS has (.|\n)*→"):
        parse_names(3000, f"localhost:8080,{setting}")
