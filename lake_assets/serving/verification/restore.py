"""Restores damaged segments: from a copy of the folder, or from the source if it is as it was at the push.

A restored file has the registered checksum, so it is the file that was pushed, byte by byte. A source that has changed
since is not read as of the push: an erasure may lie between the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from lake_assets.serving.lineage.znrecord import SegmentInfo
from lake_assets.serving.store.drafts import FOLDER, SEGMENT_ROWS, push_of, write_drafts
from lake_assets.serving.store.files import SegmentFiles, sha256_of
from lake_assets.serving.store.sources import Source

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


def restore_from_copies(files: SegmentFiles, copies: SegmentFiles, table: str, lost: Iterable[SegmentInfo]) -> set[str]:
    """Copy damaged segments from another folder of segments, such as a backup.

    Args:
        files: Where they are damaged.
        copies: The other folder.
        table: The served table.
        lost: The damaged segments.

    Returns:
        Those that were restored: the other folder has them as they were pushed.
    """
    candidates = {info: copies.path(table, info.name) for info in lost}
    return {info.name for info, file in candidates.items() if _restored(files, table, info, file)}


def restore_from_source(
    files: SegmentFiles,
    catalog: Catalog,
    source: Source,
    lost: Iterable[SegmentInfo],
    *,
    segment_rows: int = SEGMENT_ROWS,
) -> set[str]:
    """Write damaged segments again from their source, if that has not changed since they were pushed.

    Args:
        files: Where they are damaged.
        catalog: Of the lake.
        source: Of the served table.
        lost: The damaged segments.
        segment_rows: Rows of a segment, at most, as they were pushed.

    Returns:
        Those that were restored.
    """
    head = source.head(catalog)
    pushed = [info for info in lost if head is not None and info.head == head]
    restored: set[str] = set()
    for first in _one_of_each_push(pushed):
        of_push = [info for info in pushed if info.entry_id == first.entry_id]
        restored |= _written_again(files, catalog, source, of_push, segment_rows)
    return restored


def _one_of_each_push(infos: Iterable[SegmentInfo]) -> Iterator[SegmentInfo]:
    yield from {info.entry_id: info for info in infos if push_of(info.name)}.values()


def _written_again(
    files: SegmentFiles, catalog: Catalog, source: Source, lost: Iterable[SegmentInfo], segment_rows: int
) -> set[str]:
    """lost: of one push."""
    by_name = {info.name: info for info in lost}
    first = next(iter(by_name.values()))
    restored = set()
    with TemporaryDirectory(prefix=FOLDER) as folder:
        drafts = write_drafts(
            source.name,
            source.read(catalog).rows,
            Path(folder),
            push_id=str(push_of(first.name)),
            as_of=first.as_of,
            segment_rows=segment_rows,
            head=first.head,
        )
        for draft in drafts:
            info = by_name.get(draft.name)
            if info is not None and _restored(files, source.name, info, draft.path):
                restored.add(draft.name)
    return restored


def _restored(files: SegmentFiles, table: str, info: SegmentInfo, candidate: Path) -> bool:
    """Whether the candidate is the pushed file, and so was copied to its place."""
    try:
        if sha256_of(candidate) != info.sha256:
            return False
    except OSError:
        return False
    files.upload(table, info.name, candidate)
    return True
