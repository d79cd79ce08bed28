"""Alerts to a webhook, as JSON: what is wrong with which target, what to do about it, and when it is over.

The receiver may be slow, absent or broken. A delivery has a time limit and is tried a few times, unless the receiver
refuses the alert. A delivery that fails is logged and returned to the caller, never raised. The address of the receiver
is a secret and appears in no log and no message.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Literal

import httpx
from pydantic import SecretStr
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from lake_assets.incremental.operations.health import Problem

log = logging.getLogger(__name__)

Answer = Literal["taken", "refused", "absent"]
"""What the receiver answered: taken (any 2xx), refused (4xx: not to be sent again), absent (no such answer)."""

TEMPORARY_CLIENT_ERRORS = {408, 425, 429}
"""Answers of 4xx that do not refuse the alert itself."""

MAX_WAIT_SECONDS = 5


class Webhook:
    """Delivers alerts to one address.

    Args:
        url: The address.
        timeout: Limit of one attempt, in seconds.
        attempts: Number of attempts.
        wait: Pause before the second attempt, in seconds; the pause doubles with each attempt.
    """

    def __init__(self, url: SecretStr, *, timeout: float = 5, attempts: int = 3, wait: float = 0.5) -> None:
        self._url = url
        self.timeout = timeout
        self.attempts = attempts
        self.wait = wait
        for name in ("httpx", "httpcore"):  # they log addresses at the levels INFO and DEBUG
            logging.getLogger(name).setLevel(logging.WARNING)

    def send(self, problem: Problem, *, state: Literal["open", "over"] = "open") -> Answer:
        """POST a problem, or that it is over. Errors of the receiver and the network are logged, not raised."""
        try:
            for attempt in Retrying(
                retry=retry_if_exception(_may_be_taken_later),
                wait=wait_exponential(multiplier=self.wait, max=MAX_WAIT_SECONDS),
                stop=stop_after_attempt(self.attempts),
                reraise=True,
            ):
                with attempt:
                    url = self._url.get_secret_value()
                    httpx.post(url, json={**asdict(problem), "state": state}, timeout=self.timeout).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            # Only the status or the class of an error is logged, because its text may contain the address.
            answer = error.response if isinstance(error, httpx.HTTPStatusError) else None
            reason = f"HTTP status {answer.status_code}" if answer is not None else type(error).__name__
            log.warning(
                "The alert about %s (%s) could not be delivered to LAKE_ALERT_WEBHOOK: %s",
                problem.target,
                problem.kind,
                reason,
            )
            return "refused" if answer is not None and not _may_be_taken_later(error) else "absent"
        return "taken"


def _may_be_taken_later(error: BaseException) -> bool:
    """Return whether another attempt may succeed: not if the receiver refused the alert itself."""
    if isinstance(error, httpx.HTTPStatusError):
        return not error.response.is_client_error or error.response.status_code in TEMPORARY_CLIENT_ERRORS
    return isinstance(error, httpx.TransportError)
