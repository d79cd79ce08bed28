"""`incremental_asset`: the decorator that makes a target of a transform."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Literal

from lake_assets.base.grain import GRAINS, Grain
from lake_assets.errors import ConfigurationError
from lake_assets.incremental.declaration.modes import Mode, Stateless
from lake_assets.incremental.declaration.tables import Source
from lake_assets.incremental.declaration.target import Audit, Target, Transform
from lake_assets.incremental.declaration.validation import check_target


def incremental_asset(
    *,
    mode: Mode,
    sources: Sequence[Source],
    key: str | Sequence[str],
    time_column: str,
    columns: Mapping[str, str],
    audits: Sequence[Audit] = (),
    namespace: str = "core",
    quarantine_limit: int = 100,
    code_version: str | None = None,
    owners: Sequence[str] = (),
    lineage: Mapping[str, Sequence[str]] | None = None,
    max_delay: timedelta | None = None,
    grain: Literal["hour", "day"] = "hour",
) -> Callable[[Transform], Target]:
    """Declare the table `namespace.<function name>`; the function's docstring describes it.

    code_version: default, a hash of the function's module, the sources with their rules, the audits and the limit: an
        edit of any lets an audit-blocked session try again. What the module imports is not in it.
    lineage: target column → source columns (`raw.signups.event_ts`), where names differ; equal ones are found anyway.
    max_delay: the target's freshness check fails when its next hour or day has ended so long ago and is not complete.
    grain: what one partition holds. A day is built as a whole: when any of its hours changed, once all are complete;
        chunks and the catch-up threshold are rounded up to days. A stateless target takes rows as they come.
    Raises `ConfigurationError`, naming what is wrong.
    """

    def declare(transform: Transform) -> Target:
        table = f"{namespace}.{transform.__name__}"
        keyed = tuple(_with_default_key(s, mode, key) for s in sources)
        target = Target(
            table=table,
            mode=mode,
            sources=keyed,
            key=(key,) if isinstance(key, str) else tuple(key),
            time_column=time_column,
            columns=dict(columns),
            transform=transform,
            audits=tuple(audits),
            quarantine_limit=quarantine_limit,
            code_version=code_version or _code_hash(transform, keyed, audits, quarantine_limit),
            description=inspect.getdoc(transform) or "",
            owners=tuple(owners),
            lineage=dict(lineage or {}),
            max_delay=max_delay,
            grain=_grain(table, grain),
        )
        check_target(target)
        return target

    return declare


def _grain(table: str, name: str) -> Grain:
    if name not in GRAINS:
        raise ConfigurationError(f"{table} has the grain {name!r}.", remedy=f"Use one of: {', '.join(GRAINS)}.")
    return GRAINS[name]


def _with_default_key(source: Source, mode: Mode, key: str | Sequence[str]) -> Source:
    if source.key is None and isinstance(mode, Stateless) and isinstance(key, str):
        return replace(source, key=key)
    return source


def _code_hash(transform: Transform, sources: Sequence[Source], audits: Sequence[Audit], quarantine_limit: int) -> str:
    """A hash of what decides which rows come out, and which are let through; the same in every process."""
    judged = [(audit.name, audit.description, audit.blocking) for audit in audits]
    code = inspect.getsource(inspect.getmodule(transform) or transform)
    return hashlib.sha256(repr((code, [*sources], judged, quarantine_limit)).encode()).hexdigest()[:12]
