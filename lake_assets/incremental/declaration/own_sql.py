"""The SQL that users write in declarations: conditions of sources and queries of audits. Checked here without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lake_assets.base.sql_text import condition_mistake, tokens, unclosed, unknown_placeholders
from lake_assets.errors import ConfigurationError
from lake_assets.errors.texts import ErrorText
from lake_assets.incremental.declaration.tables import Source
from lake_assets.incremental.declaration.target import Audit, Target

STAGED = "staged"
"""The placeholder of the staged rows in the query of an audit."""


def check_own_sql(targets: Iterable[Target]) -> None:
    """Check each condition and each query of an audit by itself.

    Raises:
        ConfigurationError: One of them cannot be what it has to be. The message names the target and the text.
    """
    for target in targets:
        for source in target.sources:
            for what, condition in conditions_of(source):
                require_condition(f"{target.table}: {what}", condition)
        for audit in target.audits:
            require_query(f"{target.table}: ", audit)


def conditions_of(source: Source) -> Iterator[tuple[str, str]]:
    """Yield the conditions of a source, each after what it is."""
    for rule in source.rules:
        yield f"in the rule {rule.reason!r} of {source.table}", rule.where
    if source.deleted is not None:
        yield f"in deleted= of {source.table}", source.deleted


def require_condition(what: str, condition: str) -> None:
    """Check a condition on the rows of a source. what: what it is, for the message. Raises `ConfigurationError`."""
    _refuse(what, condition_mistake(condition))


def require_query(where: str, audit: Audit) -> None:
    """Check the query of an audit, if it has one. where: where it is declared. Raises `ConfigurationError`."""
    if audit.query is not None:
        _refuse(f"{where}in the audit {audit.name}", _query_mistake(audit.query))


def _query_mistake(query: str) -> ErrorText | None:
    open_part = unclosed(query)
    if open_part is not None:
        return open_part
    if not tokens(query):
        return ErrorText("there is no query", f"Write a SELECT from {{{STAGED}}}.")
    unknown = unknown_placeholders(query, (STAGED,))
    if unknown:
        problem = f"there is the placeholder {{{unknown[0]}}}"
        return ErrorText(problem, f"Only {{{STAGED}}} is replaced, by the rows that would be published.")
    return None


def _refuse(what: str, mistake: ErrorText | None) -> None:
    if mistake is not None:
        raise ConfigurationError(f"{what}, {mistake.problem}.", remedy=mistake.remedy)
