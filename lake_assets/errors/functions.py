"""Errors of what a user declares and the engine calls: the functions of targets, and audits."""

from lake_assets.errors.incremental import SessionError
from lake_assets.errors.texts import ErrorText


class FunctionFailed(SessionError):
    """The function of a target failed. Nothing was staged.

    Args:
        table: The target.
        function: The name of its function.
        place: `file:line` where it failed.
        found: What failed, as the end of a sentence, and what to do.
    """

    def __init__(self, table: str, function: str, place: str, found: ErrorText) -> None:
        super().__init__(f"{table}: in {function}() at {place}, {found.problem}.", remedy=found.remedy)


class RowsFailed(SessionError):
    """Spark failed to compute a row of a target. Nothing was published.

    Args:
        table: The target.
        place: `file:line` of the expression that failed.
        hours: The hours that the session builds, as text.
        found: What failed, as the end of a sentence, and what to do.
    """

    def __init__(self, table: str, place: str, hours: str, found: ErrorText) -> None:
        super().__init__(f"{table}: at {place}, in rows for {hours}, {found.problem}.", remedy=found.remedy)


class AuditBroken(SessionError):
    """An audit could not be evaluated. Nothing was published.

    Args:
        table: The target.
        audit: The name of the audit.
        found: What failed, as the end of a sentence, and what to do.
    """

    def __init__(self, table: str, audit: str, found: ErrorText) -> None:
        super().__init__(f"{table}: in the audit {audit}, {found.problem}.", remedy=found.remedy)
