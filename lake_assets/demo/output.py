"""What the demos print: headlines and checks."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from lake_assets.errors import LakeError

console = Console(highlight=False, soft_wrap=True)


class UnexpectedResult(LakeError):
    """A demo found another result than it expects."""


def headline(title: str, text: str) -> None:
    """Print the headline of a scene."""
    console.print(f"\n[bold]{title}[/]\n[dim]{escape(text)}[/]")


def check(what: str, found: object, expected: object) -> None:
    """Print that a result is as expected.

    Args:
        what: What is expected, in words.
        found: The result.
        expected: What it must be equal to.

    Raises:
        UnexpectedResult: It is not.
    """
    if found != expected:
        raise UnexpectedResult(
            f"Expected: {what}. Found {found!r} instead of {expected!r}.",
            remedy="Read the logs in LAKE_HOME/logs.",
        )
    console.print(f"  [green]✓[/] {what}")
