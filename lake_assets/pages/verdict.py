"""The line that a report begins with: all is well, or what is wrong and what to do. Pure.

It adds nothing of its own. It is made from the findings of `lake doctor` and from the facts of the data path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lake_assets.base.findings import Finding
from lake_assets.errors.texts import ErrorText
from lake_assets.pages.data_path.stages import DataPath, Fact, Stage

State = Literal["well", "attention", "wrong"]

LEADS: Mapping[State, str] = {"well": "All is well", "attention": "Well, with warnings", "wrong": "Not well"}
SEE_BELOW = "The report has the details."


@dataclass(frozen=True)
class Verdict:
    """Whether all is well.

    Attributes:
        wrong: What is wrong: the errors of `lake doctor`, then what needs attention on the data path.
        warnings: The warnings of `lake doctor`.
        pending: How many parts of the data path have something pending, which is no fault.
    """

    wrong: tuple[ErrorText, ...] = ()
    warnings: tuple[ErrorText, ...] = ()
    pending: int = 0

    @property
    def state(self) -> State:
        """How bad it is."""
        if self.wrong:
            return "wrong"
        return "attention" if self.warnings else "well"

    @property
    def lead(self) -> str:
        """The state in a few words."""
        return LEADS[self.state]

    @property
    def first(self) -> ErrorText | None:
        """What to look at first; None if all is well."""
        return next(iter((*self.wrong, *self.warnings)), None)

    @property
    def others(self) -> tuple[ErrorText, ...]:
        """What else is wrong, the errors first."""
        return (*self.wrong, *self.warnings)[1:]

    @property
    def line(self) -> str:
        """The verdict as one line."""
        if self.first is None:
            return f"{self.lead}: {self._pending_text}."
        more = f" And {len(self.others)} more." if self.others else ""
        return f"{self.lead}: {self.first.problem} → {self.first.remedy}{more}"

    @property
    def _pending_text(self) -> str:
        if not self.pending:
            return "nothing is wrong, and nothing is pending"
        parts = "1 part has" if self.pending == 1 else f"{self.pending} parts have"
        return f"nothing is wrong; {parts} something pending"


def verdict(findings: Sequence[Finding], path: DataPath) -> Verdict:
    """Return the verdict on a data directory.

    Args:
        findings: Of `lake doctor`.
        path: The data path. What a finding says already is not said again.
    """
    errors = tuple(_of_findings(findings, "error"))
    said = [error.problem.removesuffix(".") for error in errors]
    from_path = [found for found in _of_path(path) if not any(text in found.problem for text in said)]
    return Verdict(
        wrong=(*errors, *dict.fromkeys(from_path)),
        warnings=tuple(_of_findings(findings, "warning")),
        pending=sum(_is_pending(fact) for fact in _facts(path.stages)),
    )


def _of_findings(findings: Iterable[Finding], level: str) -> Iterator[ErrorText]:
    for found in findings:
        if found.level == level:
            yield ErrorText(found.text, found.remedy or SEE_BELOW)


def _of_path(path: DataPath) -> Iterator[ErrorText]:
    for stage in path.stages:
        if stage.broken:
            yield ErrorText(f"{stage.name}: {stage.instead}", stage.remedy or SEE_BELOW)
        for fact in stage.facts:
            if fact.bad:
                named = fact.what in fact.pending
                problem = fact.pending if named else f"{fact.what}: {fact.pending}"
                yield ErrorText(problem, fact.remedy or SEE_BELOW)


def _facts(stages: Iterable[Stage]) -> Iterator[Fact]:
    for stage in stages:
        yield from stage.facts


def _is_pending(fact: Fact) -> bool:
    return bool(fact.pending) and not fact.bad
