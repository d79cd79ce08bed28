"""How the data path stands, as the report shows it: stages in their order, and what each says. Values alone, no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """One table, topic, stream or push. stands: how far it is. pending: what waits, and why; empty if nothing does.

    bad: somebody should look. command: what to call about it, if anything.
    """

    what: str
    stands: str
    pending: str = ""
    bad: bool = False
    command: str = ""


@dataclass(frozen=True)
class Stage:
    """One stage. instead: why there is nothing to tell: its service does not run, or it was never used.

    broken: it should have something to tell, but could not be asked. beside: it does not follow from the one before it.
    """

    name: str
    facts: tuple[Fact, ...] = ()
    instead: str = ""
    broken: bool = False
    beside: bool = False

    @property
    def bad(self) -> bool:
        return self.broken or any(fact.bad for fact in self.facts)

    @property
    def pending(self) -> bool:
        return any(fact.pending for fact in self.facts)

    @property
    def told(self) -> str:
        """The stage in a few words."""
        if not self.facts:
            return "cannot be asked" if self.broken else "nothing here"
        bad, pending = (sum(map(bool, found)) for found in zip(*((f.bad, f.pending) for f in self.facts), strict=True))
        if bad:
            return f"{bad} of {len(self.facts)} to look at"
        return f"{pending} of {len(self.facts)} pending" if pending else f"{len(self.facts)}, nothing pending"


@dataclass(frozen=True)
class DataPath:
    """stages: from Kafka to what is served. pushes: the last ones of served tables. quarantine: landed files in it."""

    stages: tuple[Stage, ...]
    pushes: Stage
    quarantine: Stage
