"""How a target is built: from each row alone, from a range of hours, or hour by hour on its own past."""

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

    load: `"range"`: from the earliest changed hour to the last complete one. `"changed"`: the changed hours alone, for
    targets whose hours do not depend on each other.
    catchup_threshold: how many hours, counted back from the last hour built, a late change may reach; None: no limit.
    chunk_hours: a range that is longer, and reaches back to hours built before, is cut into sessions: new hours first,
        then so many at a time from the earliest on. So fresh data is not late because of old. None: no limit.
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

    catchup_threshold: as for `Stateful`; hours that were never built are always built.
    chunk_hours: more hours that were built before are cut into sessions, from the earliest on. Where one ends in the
        state that is published, nothing follows: the hours behind it are left alone, but for those that changed
        themselves. New hours come last: they stand on the state before them. None: no limit; so it must be where a
        source row acts in another hour than that of its own time, which an equal state in between would not tell of.
    entity: a column of the target and of every source, such as an account's id, that tells which rows hang together:
        those of one entity depend on no row of another. Of hours that were built before, only entities whose source
        rows changed are then recomputed, where that is cheaper. None: all are, always.
    few_rows: a session over hours that hold no more rows than this, in all, recomputes all entities: to tell them apart
        would cost more.
    """

    catchup_threshold: int | None = None
    chunk_hours: int | None = 12
    entity: str | None = None
    few_rows: int = 1_000_000
    pattern_id = 2

    def __post_init__(self) -> None:
        require_hours("catch-up threshold", self.catchup_threshold)
        require_hours("chunk", self.chunk_hours)
        if self.entity is not None:
            require_name(IDENTIFIER, self.entity, "The entity")
        if self.few_rows < 0:
            raise ConfigurationError(f"Few rows are {self.few_rows}.", remedy="Use 0 or more rows.")


Mode = Stateless | Stateful | Sequential
