"""Alerts to a webhook: what is wrong with which target, and what to do, as JSON.

Failure model: the receiver may be slow, gone or broken. A delivery has a time limit and is tried a few times, unless
the receiver refuses it for good; one that fails is logged and told to the caller, never raised. The address is a
secret: it is in no log and no message.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Literal

import httpx
from pydantic import SecretStr
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

log = logging.getLogger(__name__)

Kind = Literal["audit_failed", "hours_held", "session_failed", "not_fresh", "cannot_plan"]


@dataclass(frozen=True)
class Alert:
    """What is POSTed.

    target: its table. what: the problem, in words. session_id, run_id: None when it is about no session or run.
    """

    target: str
    kind: Kind
    what: str
    remedy: str
    session_id: str | None = None
    run_id: str | None = None


Answer = Literal["taken", "refused", "absent"]
"""To an alert: taken (any 2xx), refused for good (4xx), or no answer that says either."""

TRY_AGAIN = {408, 425, 429}
"""Answers of 4xx that are about the moment, not about the alert."""


class _Busy(Exception):
    """The receiver answered, but not that it took the alert; another try may help."""


class _Refused(Exception):
    """The receiver does not take this alert; another try would not help."""


class Webhook:
    """Delivers alerts to one address. timeout, wait: seconds, of one try and before the second; attempts: tries."""

    def __init__(self, url: SecretStr, *, timeout: float = 5, attempts: int = 3, wait: float = 0.5) -> None:
        self._url, self.timeout, self.attempts, self.wait = url, timeout, attempts, wait
        for name in ("httpx", "httpcore"):  # they log addresses, at INFO and DEBUG
            logging.getLogger(name).setLevel(logging.WARNING)

    def send(self, alert: Alert) -> Answer:
        """POST an alert. Never raises for what the receiver or the network does."""
        try:
            for attempt in Retrying(
                retry=retry_if_exception_type((httpx.TransportError, _Busy)),
                wait=wait_exponential(multiplier=self.wait, max=5),
                stop=stop_after_attempt(self.attempts),
            ):
                with attempt:
                    self._post(alert)
        except RetryError as error:
            self._complain(alert, error.last_attempt.exception())
            return "absent"
        except _Refused as error:
            self._complain(alert, error)
            return "refused"
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            self._complain(alert, error)
            return "absent"
        return "taken"

    def _post(self, alert: Alert) -> None:
        answer = httpx.post(self._url.get_secret_value(), json=asdict(alert), timeout=self.timeout)
        if not answer.is_success:
            for_good = answer.is_client_error and answer.status_code not in TRY_AGAIN
            raise (_Refused if for_good else _Busy)(f"HTTP status {answer.status_code}")

    def _complain(self, alert: Alert, error: BaseException | None) -> None:
        # Of httpx's errors only their name: their text may hold the address.
        why = str(error) if isinstance(error, (_Busy, _Refused)) else type(error).__name__
        log.warning("The alert about %s (%s) could not be delivered to LAKE_ALERT_WEBHOOK: %s", *_about(alert), why)


def _about(alert: Alert) -> tuple[str, str]:
    return alert.target, alert.kind
