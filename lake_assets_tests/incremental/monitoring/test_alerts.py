"""Alerts over real HTTP: delivered as JSON, tried again, never raised, and the address in no log."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

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
    for nonsense in ("not an address", "http://[", "http://\udc80", "http://host:port/"):
        assert quick(SecretStr(nonsense)).send(ALERT) == "absent"


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
        quick(SecretStr(f"http://{SECRET} /")).send(ALERT)
    assert SECRET not in caplog.text
    assert SECRET not in repr(settings)
