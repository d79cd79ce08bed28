"""Calling an audit: an error in it is named with the target and the audit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from lake_assets.errors import AuditBroken, LakeError
from lake_assets.errors.described import is_machines_fault
from lake_assets.errors.refusals import explain, find_refusal
from lake_assets.errors.texts import ErrorText, first_line, text_of
from lake_assets.incremental.declaration.target import Audit, AuditScope, Offenders, Verdict


def call_audit(audit: Audit, scope: AuditScope) -> Verdict | Offenders:
    """Return what an audit finds.

    Raises:
        AuditBroken: The audit raised an error that is none of the project.
    """
    try:
        return audit.run(scope)
    except LakeError:
        raise
    except Exception as error:  # of Spark, or of whatever an audit of the user calls
        _raise_broken(scope.target.table, audit, error)


def check_queries(audits: Sequence[Audit], offenders: Mapping[int, Offenders], table: str) -> None:
    """Find the audit whose query Spark refuses, after it refused one query of all audits.

    Args:
        audits: The audits of a target.
        offenders: Number of the audit → its offending rows.
        table: The target.

    Raises:
        AuditBroken: Spark refuses the query of an audit.
    """
    for number, found in offenders.items():
        try:
            found.rows.schema  # noqa: B018 - Spark analyses the query
        except Exception as error:
            _raise_broken(table, audits[number], error)


def _raise_broken(table: str, audit: Audit, error: Exception) -> NoReturn:
    if is_machines_fault(error):
        raise error
    refusal = find_refusal(error)
    if refusal is None:
        raised = f"{type(error).__name__}: {first_line(text_of(error))}"
        found = ErrorText(f"its function raised {raised}", "Correct the audit, then run the command again.")
    else:
        found = explain(refusal)
    raise AuditBroken(table, audit.name, found) from error
