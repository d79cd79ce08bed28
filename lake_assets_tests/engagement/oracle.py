"""What mutation requests come to: replayed one after the other on every row. Slow, and obvious."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lake_assets.engagement.identity import MutationRequest


def replay(requests: Iterable[MutationRequest], rows: Mapping[str, str]) -> dict[str, str]:
    """Row → its id after all requests; deleted rows are gone. A request id counts once."""
    seen: set[str] = set()
    left = dict(rows)
    for request in sorted(requests, key=lambda r: (r.executed_at, r.partition, r.offset)):
        if request.request_id in seen:
            continue
        seen.add(request.request_id)
        moved = {row for row, identity in left.items() if identity == request.old_id}
        if request.op == "delete":
            left = {row: identity for row, identity in left.items() if row not in moved}
        else:
            left = {row: str(request.new_id) if row in moved else identity for row, identity in left.items()}
    return left
