"""The live page: built when asked for, kept for a few seconds, and a page also when something goes wrong."""

from __future__ import annotations

from starlette.testclient import TestClient

from lake_assets.errors import ServiceError
from lake_assets.pages.page import CACHE_SECONDS, application


class Builder:
    """Builds numbered pages, or fails. seconds: what the clock shows."""

    def __init__(self) -> None:
        self.built = 0
        self.seconds = 0.0
        self.error: Exception | None = None
        self.logged: list[Exception] = []

    def build(self) -> str:
        if self.error:
            raise self.error
        self.built += 1
        return f"page {self.built}"


def test_a_page_is_kept_for_a_few_seconds_and_an_error_is_a_page() -> None:
    builder = Builder()
    client = TestClient(
        application(builder.build, name="A page", clock=lambda: builder.seconds, log=builder.logged.append)
    )
    pages = []
    for seconds in (0.0, CACHE_SECONDS - 0.1, CACHE_SECONDS, CACHE_SECONDS + 1):
        builder.seconds = seconds
        pages.append(client.get("/").text)
    assert pages == ["page 1", "page 1", "page 2", "page 2"]

    builder.seconds = 100
    builder.error = ServiceError("The <catalog> is away.", remedy="Run `lake up`.")
    failed = client.get("/")
    assert (failed.status_code, failed.headers["cache-control"]) == (503, "no-store")
    assert "The &lt;catalog&gt; is away." in failed.text
    assert "→ Run <code>lake up</code>." in failed.text
    assert "<h1>A page</h1>" in failed.text
    assert "Traceback" not in failed.text
    assert builder.logged == [builder.error]
    builder.error = ValueError("odd")
    assert "ValueError: odd." in client.get("/").text
    builder.error = None
    assert client.get("/").text == "page 3"
    assert [client.get("/other").status_code, client.post("/").status_code] == [404, 405]
