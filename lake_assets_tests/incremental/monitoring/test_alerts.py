"""Alerts over real HTTP: delivered as JSON, tried again, never raised, and the address in no log."""

from __future__ import annotations

import logging
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from threading import Thread

import pytest
from pydantic import SecretStr

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.operations.alerts import Webhook
from lake_assets.incremental.operations.health import Problem
from lake_assets.services.service import free_port
from lake_assets.settings import Settings
from lake_assets_tests.incremental.receiver import SECRET, Receiver, receiver

ALERT = Problem(
    "core.click_fact", "audit_failed", "unique_key: 3 repeated", "Repair the source.", "click_fact-1", "run-1"
)


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@contextmanager
def mail_server() -> Iterator[tuple[int, list[str]]]:
    """A server that takes one mail after the other, by the least of SMTP; and the texts of those that have come."""
    arrived: list[str] = []

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            for line in self.rfile:
                word = line.strip().upper()
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = iter(self.rfile.readline, b".\r\n")
                    arrived.append(str(message_from_bytes(b"".join(lines), policy=policy.default)))
                self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 ok\r\n")
                if word == b"QUIT":
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], arrived
        server.shutdown()


def quick(url: SecretStr, timeout: float = 30) -> Webhook:
    return Webhook(url, timeout=timeout, wait=0.01)


def test_an_alert_says_what_is_wrong_where_and_what_to_do(hook: Receiver) -> None:
    assert quick(hook.url).send(ALERT) == "taken"
    assert hook.got == [
        {
            "target": "core.click_fact",
            "kind": "audit_failed",
            "what": "unique_key: 3 repeated",
            "remedy": "Repair the source.",
            "session_id": "click_fact-1",
            "run_id": "run-1",
            "state": "open",
        }
    ]
    assert quick(hook.url).send(ALERT, state="over") == "taken"
    assert (hook.got[1]["target"], hook.got[1]["state"]) == ("core.click_fact", "over")


def test_it_is_tried_again_and_then_given_up(hook: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    hook.statuses = [500, 503, 204]
    assert quick(hook.url).send(ALERT) == "taken"
    assert len(hook.got) == 3
    hook.statuses = [500, 429, 503]
    assert quick(hook.url).send(ALERT) == "absent"
    assert len(hook.got) == 6
    assert "could not be delivered to LAKE_ALERT_WEBHOOK: HTTP status 503" in caplog.text


def test_what_is_refused_for_good_is_not_tried_again(hook: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    hook.statuses = [413]
    assert quick(hook.url).send(ALERT) == "refused"
    assert len(hook.got) == 1
    assert "could not be delivered to LAKE_ALERT_WEBHOOK: HTTP status 413" in caplog.text


def test_a_receiver_that_is_slow_gone_or_none_at_all_harms_nobody(hook: Receiver) -> None:
    hook.seconds = 0.6
    assert quick(hook.url, timeout=0.3).send(ALERT) == "absent"
    assert quick(SecretStr(f"http://127.0.0.1:{free_port()}/")).send(ALERT) == "absent"
    for nonsense in ("http://[", "http://\udc80", "http://host:port/"):
        assert quick(SecretStr(nonsense)).send(ALERT) == "absent"
    for unknown, begins in ((f"slak://{SECRET}", "that begins with slak://"), (SECRET, "without a scheme")):
        with pytest.raises(ConfigurationError, match=f"an address {begins}: nothing") as raised:
            quick(SecretStr(f"{hook.url.get_secret_value()} {unknown}"))
        assert SECRET not in str(raised.value)


def test_several_receivers_get_it_each_in_its_own_way(hook: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    with receiver() as chat:
        apprise = chat.url.get_secret_value().replace("http://", "json://")
        both = quick(SecretStr(f"{hook.url.get_secret_value()} {apprise}"))
        assert both.send(ALERT) == "taken"
        assert both.send(ALERT, state="over") == "taken"
        assert [got["state"] for got in hook.got] == ["open", "over"]
        assert [(got["title"], got["message"], got["type"]) for got in chat.got] == [
            ("core.click_fact: audit failed", "unique_key: 3 repeated\nRepair the source.", "failure"),
            ("core.click_fact: audit failed is over", "unique_key: 3 repeated", "success"),
        ]
        hook.statuses = [400]
        assert both.send(ALERT) == "taken"  # by one of them
        chat.statuses = hook.statuses = [500, 500, 500, 500, 500, 500]
        with caplog.at_level(logging.DEBUG):
            assert both.send(ALERT) == "absent"
    assert "could not be delivered to LAKE_ALERT_WEBHOOK: NotSent" in caplog.text
    assert SECRET not in caplog.text


def test_mail_arrives(caplog: pytest.LogCaptureFixture) -> None:
    with mail_server() as (port, arrived):
        url = f"mailto://127.0.0.1:{port}?from=lake@example.org&to=me@example.org"
        assert quick(SecretStr(url)).send(ALERT) == "taken"
    (text,) = arrived
    assert "core.click_fact: audit failed" in text
    assert "Repair the source." in text


def test_the_address_is_in_no_log_and_no_setting_that_is_shown(
    hook: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_ALERT_WEBHOOK", hook.url.get_secret_value())
    settings = Settings()
    assert settings.alert_webhook is not None
    with caplog.at_level(logging.DEBUG):
        quick(settings.alert_webhook).send(ALERT)
        hook.statuses = [500]
        quick(settings.alert_webhook).send(ALERT)
        quick(SecretStr(f"http://{SECRET}:port/")).send(ALERT)
    assert SECRET not in caplog.text
    assert SECRET not in repr(settings)
