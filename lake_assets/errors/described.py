"""Two lines for any error: of the project, of the machine, of Spark, or of anything else."""

from __future__ import annotations

from lake_assets.errors.base import LakeError, ServiceError
from lake_assets.errors.infrastructure import recognise
from lake_assets.errors.refusals import explain, find_refusal
from lake_assets.errors.texts import ErrorText, chain_text, first_line

READ_LOG = "Read the log of the error. If it is none of your own code, report it with the log."


def describe(error: BaseException) -> ErrorText:
    """Return problem and remedy of an error."""
    if isinstance(error, LakeError):
        return ErrorText(error.problem, error.remedy)
    known = recognise(chain_text(error))
    if known is not None:
        return known
    refusal = find_refusal(error)
    if refusal is not None:
        found = explain(refusal)
        place = f" at {refusal.call_site}" if refusal.call_site else ""
        return ErrorText(f"{found.problem[:1].upper()}{found.problem[1:]}{place}.", found.remedy)
    message = first_line(str(error))
    kind = type(error).__name__
    return ErrorText(f"{kind}: {message}." if message else f"{kind}.", READ_LOG)


def is_machines_fault(error: BaseException) -> bool:
    """Return whether an error is a fault of the machine or a service, which every other target meets, too."""
    if isinstance(error, LakeError):
        return isinstance(error, ServiceError)
    return recognise(chain_text(error)) is not None


def has_details(error: BaseException) -> bool:
    """Return whether the traceback of an error says more than its two lines."""
    return not isinstance(error, LakeError) or error.__cause__ is not None
