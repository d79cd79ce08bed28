"""View of targets compared with a rebuild."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lake_assets.incremental.operations.verify import Verification
from lake_assets.pages.terminal.render import Column, Part, TableView, failed, faint, warning

_COMPARED: TableView[Verification] = TableView(
    (
        Column("table", lambda found: found.table),
        Column("result", lambda found: _result(found)),
        Column("hours", lambda found: len(found.compared), right=True),
        Column("rows", lambda found: f"{found.rows:,}", right=True),
        Column("rebuilt", lambda found: f"{found.rows_rebuilt:,}", right=True),
        Column("s", lambda found: f"{found.seconds:.1f}", right=True),
    )
)


def verified(results: Sequence[Verification]) -> Iterator[Part]:
    """Show what was compared, then the differences with what to do, then what was left out."""
    yield from _COMPARED(results)
    for found in results:
        if not found.equal:
            yield failed(f"{found.what} {found.remedy}")
        for line in found.left_out:
            yield warning(f"{found.table}: not compared: {line}")
        if found.note:
            yield faint(f"{found.table}: {found.note}")


def _result(found: Verification) -> str:
    if not found.equal:
        return "differs"
    return "equal" if found.compared else "not compared"
