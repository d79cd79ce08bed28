"""What a check of a data directory finds, and what can be repaired. Running checks never raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from lake_assets.base.described import recognise
from lake_assets.errors import LakeError, chain_text

Level = Literal["ok", "warning", "error"]

MAX_ROUNDS = 6
"""How often checks run again after repairs: a repair, such as of the catalog, lets later checks find more."""


@dataclass(frozen=True)
class Repair:
    """A repair that loses nothing that is not lost already.

    Attributes:
        what: What it does, in the third person: `registers core.x again`.
        run: Does it. It raises if it cannot.
    """

    what: str
    run: Callable[[], object] = field(compare=False)


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis.

    Attributes:
        check: The check that found it.
        level: How bad it is.
        text: What was found, as a sentence.
        remedy: What to do, as a sentence; empty if nothing.
        repair: What `lake doctor --repair` does about it; None if it can do nothing.
        details: Further lines, such as each step of the repair.
    """

    check: str
    level: Level
    text: str
    remedy: str = ""
    repair: Repair | None = None
    details: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {
            "check": self.check,
            "level": self.level,
            "text": self.text,
            "remedy": self.remedy,
            "repair": self.repair.what if self.repair else None,
            "details": list(self.details),
        }


@dataclass(frozen=True)
class Repaired:
    """What became of a repair.

    Attributes:
        check: The check that asked for it.
        what: What it did, or should have done.
        failure: Why it failed; empty if it did not.
    """

    check: str
    what: str
    failure: str = ""


@dataclass(frozen=True)
class Check:
    """A check. find: yields what it finds; whatever it raises becomes a finding."""

    name: str
    find: Callable[[], Iterable[Finding]]


def run_checks(checks: Iterable[Check]) -> list[Finding]:
    """Run checks in their order."""
    found: list[Finding] = []
    for check in checks:
        found.extend(_run(check))
    return found


def repair(diagnose: Callable[[], list[Finding]]) -> tuple[list[Repaired], list[Finding]]:
    """Make the repairs that findings offer, and diagnose again until there is nothing more to repair.

    Args:
        diagnose: Runs all checks.

    Returns:
        The repairs, each tried once, and the findings after them.
    """
    done: list[Repaired] = []
    tried: set[tuple[str, str]] = set()
    findings = diagnose()
    for _ in range(MAX_ROUNDS):
        due = [found for found in findings if found.repair and (found.check, found.repair.what) not in tried]
        if not due:
            break
        for found in due:
            assert found.repair is not None
            tried.add((found.check, found.repair.what))
            done.append(_repaired(found.check, found.repair))
        findings = diagnose()
    return done, findings


def _run(check: Check) -> Iterator[Finding]:
    try:
        yield from check.find()
    except LakeError as error:
        yield Finding(check.name, "error", error.problem, error.remedy)
    except Exception as error:  # what is diagnosed may be damaged in any way
        known = recognise(chain_text(error))
        problem = known.problem if known else described(error)
        remedy = known.remedy if known else "Repair what the other lines name, then run `lake doctor` again."
        yield Finding(check.name, "error", f"The check could not be finished: {problem}", remedy)


def _repaired(check: str, wanted: Repair) -> Repaired:
    try:
        wanted.run()
    except LakeError as error:
        return Repaired(check, wanted.what, error.problem)
    except Exception as error:  # the other repairs go on
        return Repaired(check, wanted.what, described(error))
    return Repaired(check, wanted.what)


def described(error: Exception) -> str:
    """Return an error as one line: its type and the first line of its message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
