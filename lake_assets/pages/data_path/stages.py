"""The values of the data path: stages in their order, and the facts of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa
from confluent_kafka import KafkaException
from deltalake.exceptions import DeltaError
from kazoo.exceptions import KazooException

from lake_assets.base.hours import hour_key
from lake_assets.errors import LakeError
from lake_assets.errors.texts import text_of

FAILURES = (LakeError, OSError, sa.exc.SQLAlchemyError, DeltaError, KafkaException, KazooException)
"""What reading a stage raises if its service or its data is not available."""


@dataclass(frozen=True)
class Fact:
    """The state of one table, topic, stream or push.

    Args:
        what: Its name.
        stands: How far it is.
        pending: What is pending, and why; empty if nothing is.
        bad: Whether it needs attention.
        command: A command for it, if there is one.
        remedy: What to do if it is bad, if that is known.
    """

    what: str
    stands: str
    pending: str = ""
    bad: bool = False
    command: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Stage:
    """One stage.

    Args:
        name: Its name.
        facts: The state of its parts.
        instead: If there are no facts, why: its service does not run, it was never used, or it could not be read.
        broken: Whether it could not be read.
        beside: Whether it does not read the previous stage.
        remedy: What to do if it could not be read; empty if the error does not say.
    """

    name: str
    facts: tuple[Fact, ...] = ()
    instead: str = ""
    broken: bool = False
    beside: bool = False
    remedy: str = ""

    @property
    def bad(self) -> bool:
        """Whether the stage needs attention."""
        return self.broken or any(fact.bad for fact in self.facts)

    @property
    def pending(self) -> bool:
        """Whether anything of the stage is pending."""
        return any(fact.pending for fact in self.facts)

    @property
    def summary(self) -> str:
        """The state of the stage in a few words."""
        count = len(self.facts)
        if self.broken:
            return "not available"
        if not count:
            return "nothing yet"
        bad = sum(fact.bad for fact in self.facts)
        if bad:
            return f"{bad} of {count} need attention"
        pending = sum(bool(fact.pending) for fact in self.facts)
        return f"{pending} of {count} pending" if pending else f"{count}, nothing pending"


@dataclass(frozen=True)
class DataPath:
    """The whole data path.

    Args:
        stages: From Kafka to served tables; only those that the pipelines declare or that are in use.
        pushes: The last pushes of served tables; None if none is declared.
        quarantine: Landed files in quarantine; None if nothing lands from Kafka.
    """

    stages: tuple[Stage, ...]
    pushes: Stage | None = None
    quarantine: Stage | None = None


def read_stage(name: str, facts: Callable[[], Iterable[Fact]], nothing: str, *, beside: bool = False) -> Stage:
    """Read the facts of a stage. A failure becomes the text of the stage and does not stop the others.

    Args:
        name: The stage.
        facts: Reads its facts.
        nothing: The text of the stage if it has no facts.
        beside: Whether the stage does not read the previous one.
    """
    try:
        found = tuple(facts())
    except FAILURES as error:
        return replace(broken_stage(name, error), beside=beside)
    return Stage(name, found, "" if found else nothing, beside=beside)


def broken_stage(name: str, error: BaseException) -> Stage:
    """Return a stage that could not be read."""
    remedy = error.remedy if isinstance(error, LakeError) else ""
    return Stage(name, instead=problem_of(error), broken=True, remedy=remedy)


def problem_of(error: BaseException) -> str:
    """Return the problem of an error without its remedy; of an error of another library, only the first line."""
    if isinstance(error, LakeError):
        return error.problem
    return text_of(error).partition("\n")[0]


def complete_through(hour: int | None) -> str:
    """Return a complete-through hour as text; None means that no hour is complete."""
    return "no hour is complete yet" if hour is None else f"complete through {hour_key(hour)}"


def moment(time: datetime) -> str:
    """Return a time to the second."""
    return f"{time:%Y-%m-%d %H:%M:%S}"
