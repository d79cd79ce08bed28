"""How a target is built: row by row, from a range of hours, or hour by hour from its own earlier rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.names import IDENTIFIER, require_hours, require_name


@dataclass(frozen=True)
class Stateless:
    """The target depends on each event alone: new rows are appended (etl_pattern_id 1)."""

    pattern_id = 1


@dataclass(frozen=True)
class Stateful:
    """The target depends on the sequence of events: a range of hours is recomputed and overwritten (etl_pattern_id 2).

    Attributes:
        load: `"range"` recomputes from the earliest changed hour to the last complete one. `"changed"` recomputes the
            changed hours only, for targets whose hours do not depend on each other.
        catchup_threshold: A change is skipped if its hour is this many hours or more before the last hour built; None
            for no limit.
        chunk_hours: A longer range that contains hours built before is cut into sessions: new hours first, so that old
            data do not delay them, then this many hours at a time, from the earliest on. None for no limit.
    """

    load: Literal["range", "changed"] = "range"
    catchup_threshold: int | None = None
    chunk_hours: int | None = 12
    pattern_id = 2

    def __post_init__(self) -> None:
        if self.load not in ("range", "changed"):
            raise ConfigurationError(f"The load type is {self.load!r}.", remedy="Use 'range' or 'changed'.")
        require_hours("catch-up threshold", self.catchup_threshold)
        require_hours("chunk", self.chunk_hours)


@dataclass(frozen=True)
class Sequential:
    """Stateful with memory: hour h needs the target's own rows of h-1 (etl_pattern_id 2).

    Attributes:
        load: `"range"` recomputes from the earliest changed hour on, and stops where the state is as published. `"all"`
            recomputes the whole catch-up threshold range in each session that has any hour to build, for a target that
            also depends on what is no declared source. It needs a threshold, and takes no entity.
        catchup_threshold: As for `Stateful`. Hours that were never built are always built.
        chunk_hours: If more hours than this were built before, they are cut into sessions, from the earliest on. If a
            session ends in the state that is published, later hours are recomputed only if they changed themselves.
            New hours come last, because they need the state before them. None for no limit; it is required if a source
            row has an effect in another hour than its own, which an equal state in between would hide. With
            `load="all"`, nothing is cut.
        entity: A column of the target and of every source, such as an account's id. Rows of one entity depend on no row
            of another. In hours that were built before, only entities with changed source rows are then recomputed, if
            that is cheaper. None: all rows are recomputed.
        few_rows: If the hours of a session contain at most this many rows, all entities are recomputed: that is cheaper
            than finding the changed ones.
    """

    catchup_threshold: int | None = None
    chunk_hours: int | None = 12
    entity: str | None = None
    few_rows: int = 1_000_000
    load: Literal["range", "all"] = "range"
    pattern_id = 2

    def __post_init__(self) -> None:
        _check_load_of_sequential(self)
        require_hours("catch-up threshold", self.catchup_threshold)
        require_hours("chunk", self.chunk_hours)
        if self.entity is not None:
            require_name(IDENTIFIER, self.entity, "The entity")
        if self.few_rows < 0:
            raise ConfigurationError(f"few_rows is {self.few_rows}.", remedy="Use 0 or more rows.")


def _check_load_of_sequential(mode: Sequential) -> None:
    if mode.load not in ("range", "all"):
        raise ConfigurationError(
            f"The load type of a sequential target is {mode.load!r}.",
            remedy="Use 'range' or 'all'. If the hours of the target are independent, use Stateful(load='changed').",
        )
    if mode.load == "all" and mode.catchup_threshold is None:
        raise ConfigurationError(
            "A sequential target with load='all' has no catch-up threshold, so each session would rebuild all hours.",
            remedy="Declare a catchup_threshold: the number of hours that each session rebuilds.",
        )
    if mode.load == "all" and mode.entity is not None:
        raise ConfigurationError(
            f"A sequential target with load='all' has the entity {mode.entity!r}, but 'all' recomputes all entities.",
            remedy="Remove the entity, or use load='range'.",
        )


Mode = Stateless | Stateful | Sequential
