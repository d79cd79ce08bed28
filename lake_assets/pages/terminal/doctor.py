"""View of a diagnosis: a line for each finding, and what was repaired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from lake_assets.base.findings import Finding, Repaired
from lake_assets.pages.terminal.render import Part, counted, faint

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


@dataclass(frozen=True)
class Diagnosis:
    """What checks found, after the repairs that were made."""

    findings: Sequence[Finding]
    repaired: Sequence[Repaired] = ()

    @property
    def has_errors(self) -> bool:
        return any(found.level == "error" for found in self.findings)

    def document(self) -> dict[str, Any]:
        """Return the diagnosis for JSON."""
        return {
            "ok": not self.has_errors,
            "repaired": [asdict(each) for each in self.repaired],
            "findings": [found.document() for found in self.findings],
        }


def diagnosis(outcome: Diagnosis) -> Iterator[Part]:
    """Show each repair and each finding on a line of its own, then the sum."""
    for done in outcome.repaired:
        yield _repaired(done)
    for found in outcome.findings:
        yield _line(found)
        for detail in found.details:
            yield faint(f"    {detail}")
    errors = sum(found.level == "error" for found in outcome.findings)
    warnings = sum(found.level == "warning" for found in outcome.findings)
    yield faint(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}.")


def _repaired(done: Repaired) -> Text:
    if done.failure:
        return Text.assemble(("✗", "red"), f" repair of {done.check} failed ({done.what}): {done.failure}")
    return Text.assemble(("✓", "green"), f" repair of {done.check}: {done.what}")


def _line(found: Finding) -> Text:
    mark = _MARKS[found.level]
    remedy = f" → {found.remedy}" if found.remedy else ""
    return Text.assemble(mark, f" {found.check}: {found.text}{remedy}")
