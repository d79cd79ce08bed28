"""Alerts: what is wrong with which target, what to do, and when it is over. As JSON, or by mail, chat and others.

A receiver may be slow, absent or broken. A delivery has a time limit and is tried a few times, unless the receiver
refuses the alert. A delivery that fails is logged and returned to the caller, never raised. The address of a receiver
is a secret and appears in no log and no message.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

import httpx
from pydantic import SecretStr
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.operations.health import Problem

if TYPE_CHECKING:
    from apprise import Apprise

log = logging.getLogger(__name__)

Answer = Literal["taken", "refused", "absent"]
"""What the receiver answered: taken (any 2xx), refused (4xx: not to be sent again), absent (no such answer)."""

TEMPORARY_CLIENT_ERRORS = {408, 425, 429}
"""Answers of 4xx that do not refuse the alert itself."""

MAX_WAIT_SECONDS = 5

HTTP = ("http://", "https://")


class _NotSent(httpx.TransportError):
    """A receiver has not taken an alert, and does not say why."""


class Webhook:
    """Delivers alerts to the addresses of LAKE_ALERT_WEBHOOK.

    Args:
        urls: One address, or several with blanks between. JSON is POSTed to those that begin with http:// or https://.
            A sentence is sent to all others by Apprise: slack://…, mailto://…, and many more.
        timeout: Limit of one attempt over HTTP, in seconds. Apprise has limits of its own.
        attempts: Number of attempts.
        wait: Pause before the second attempt, in seconds; the pause doubles with each attempt.

    Raises:
        ConfigurationError: Apprise does not know an address.
    """

    def __init__(self, urls: SecretStr, *, timeout: float = 5, attempts: int = 3, wait: float = 0.5) -> None:
        self._urls = urls
        self.timeout = timeout
        self.attempts = attempts
        self.wait = wait
        for name in ("httpx", "httpcore"):  # they log addresses at the levels INFO and DEBUG
            logging.getLogger(name).setLevel(logging.WARNING)
        for url in urls.get_secret_value().split():
            if not url.startswith(HTTP):
                _notifier(url)

    def send(self, problem: Problem, *, state: Literal["open", "over"] = "open") -> Answer:
        """Send a problem, or that it is over, to each address. Errors of receivers are logged, not raised.

        Returns:
            What the best of the receivers answered: an alert that one has taken is not sent again.
        """
        urls = self._urls.get_secret_value().split()
        answers = {self._send(url, problem, state) for url in urls}
        return next((each for each in ("taken", "refused") if each in answers), "absent")

    def _send(self, url: str, problem: Problem, state: Literal["open", "over"]) -> Answer:
        try:
            for attempt in Retrying(
                retry=retry_if_exception(_may_be_taken_later),
                wait=wait_exponential(multiplier=self.wait, max=MAX_WAIT_SECONDS),
                stop=stop_after_attempt(self.attempts),
                reraise=True,
            ):
                with attempt:
                    if url.startswith(HTTP):
                        found = {**asdict(problem), "state": state}
                        httpx.post(url, json=found, timeout=self.timeout).raise_for_status()
                    else:
                        _notify(url, problem, state)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            # Only the status or the class of an error is logged, because its text may contain the address.
            answer = error.response if isinstance(error, httpx.HTTPStatusError) else None
            reason = f"HTTP status {answer.status_code}" if answer is not None else type(error).__name__.lstrip("_")
            log.warning(
                "The alert about %s (%s) could not be delivered to LAKE_ALERT_WEBHOOK: %s",
                problem.target,
                problem.kind,
                reason,
            )
            return "refused" if answer is not None and not _may_be_taken_later(error) else "absent"
        return "taken"


def _notify(url: str, problem: Problem, state: Literal["open", "over"]) -> None:
    from apprise import NotifyType

    words = problem.kind.replace("_", " ")
    if state == "over":
        title, body, kind = f"{problem.target}: {words} is over", problem.what, NotifyType.SUCCESS
    else:
        is_error = problem.level == "error"
        title, body = f"{problem.target}: {words}", f"{problem.what}\n{problem.remedy}"
        kind = NotifyType.FAILURE if is_error else NotifyType.WARNING
    if not _notifier(url).notify(body=body, title=title, notify_type=kind):
        raise _NotSent("not sent")


def _notifier(url: str) -> Apprise:
    from apprise import Apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # it logs addresses
    found = Apprise()
    if not found.add(url):
        scheme, separator, _ = url.partition("://")
        begins = f"that begins with {scheme}://" if separator else "without a scheme"
        raise ConfigurationError(
            f"LAKE_ALERT_WEBHOOK has an address {begins}: nothing can be sent to it.",
            remedy="Write https://…, or an address as Apprise documents it, such as slack://… or mailto://….",
        )
    return found


def _may_be_taken_later(error: BaseException) -> bool:
    """Return whether another attempt may succeed: not if the receiver refused the alert itself."""
    if isinstance(error, httpx.HTTPStatusError):
        return not error.response.is_client_error or error.response.status_code in TEMPORARY_CLIENT_ERRORS
    return isinstance(error, httpx.TransportError)
