"""Which orgs maintenance sorts: those in which many files hold rows of the same days. Pure.

New rows are mostly of the present day, so the small files of an org can be merged without touching the others, and a
day is in few files still. Sorting rewrites all rows of an org. So an org is sorted only when much of it is unsorted:
then the bytes that sorting rewrites are a small multiple of those that were written since it was sorted last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate

SHARED_FILES = 1
"""Files of full size that overlap a file in addition to the share: a sorted file shares days with its neighbors."""

MAX_SHARE = 0.5
"""Share of an org's bytes that may have a day in common with a file, as the mean over all files."""


@dataclass(frozen=True)
class DatedFile:
    """A data file. first, last: dates of its rows, inclusive."""

    org_id: str
    bytes: int
    first: date
    last: date


def orgs_to_sort(files: Iterable[DatedFile], max_file_bytes: int) -> list[str]:
    """Return the orgs whose rows should be sorted, ascending.

    Args:
        files: All files of each org.
        max_file_bytes: Size of a full file.
    """
    by_org: defaultdict[str, list[DatedFile]] = defaultdict(list)
    for file in files:
        by_org[file.org_id].append(file)
    found = []
    for org, of_org in by_org.items():
        total = sum(file.bytes for file in of_org)
        if mean_overlap(of_org) > SHARED_FILES * max_file_bytes + MAX_SHARE * total:
            found.append(org)
    return sorted(found)


def mean_overlap(files: Sequence[DatedFile]) -> float:
    """Return the bytes of the files that have a day in common with a file, as the mean over all bytes of an org.

    A file overlaps itself. Files of one and the same single day do not overlap each other, because sorting by date
    cannot separate them.
    """
    total = sum(file.bytes for file in files)
    firsts = _Bytes(sorted((file.first, file.bytes) for file in files))
    lasts = _Bytes(sorted((file.last, file.bytes) for file in files))
    of_single_days = _bytes_of_single_days(files)
    weighted = 0
    for file in files:
        overlapping = firsts.through(file.last) - lasts.before(file.first)
        if file.first == file.last:
            overlapping -= of_single_days[file.first] - file.bytes
        weighted += file.bytes * overlapping
    return weighted / total if total else 0.0


def _bytes_of_single_days(files: Iterable[DatedFile]) -> Mapping[date, int]:
    """Return date → the bytes of the files that have rows of this day alone."""
    found: defaultdict[date, int] = defaultdict(int)
    for file in files:
        if file.first == file.last:
            found[file.first] += file.bytes
    return found


class _Bytes:
    """The bytes of files by a date, for sums up to a date."""

    def __init__(self, dated: Sequence[tuple[date, int]]) -> None:
        self._days = [day for day, _ in dated]
        self._sums = [0, *accumulate(size for _, size in dated)]

    def through(self, day: date) -> int:
        return self._sums[bisect_right(self._days, day)]

    def before(self, day: date) -> int:
        return self._sums[bisect_left(self._days, day)]
