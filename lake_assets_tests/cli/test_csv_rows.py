"""CSV is read as a slow reader reads it that looks at one sign after the other, wherever blocks of the file end."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lake_assets.cli import read_files as csv_rows
from lake_assets.cli.read_files import Cells, CsvFile
from lake_assets.errors import UsageError

SIGNS = ["x", "é", ",", ",", '"', '"', '","', '""', "\\", '\\"', " ", "\n", "\n", "\r\n", "\r", "\u2028"]


class NoCsv(Exception):
    """The text is refused."""


def read_slowly(text: str, escape: str) -> list[Cells]:
    rows: list[Cells] = []
    cells: Cells = []
    ends: set[str] = set()
    at = 0
    while at < len(text) or cells:
        cell, at = _cell(text, at, escape)
        cells.append(cell)
        sign = text[at : at + 2] if text[at : at + 2] == "\r\n" else text[at : at + 1]
        at += len(sign)
        if sign == ",":
            continue
        ends.add(sign)
        rows.append(cells)
        cells = []
    if len(ends - {""}) > 1:
        raise NoCsv
    kept = [cells for cells in rows[1:] if cells != [None] or len(rows[0]) == 1]
    if any(len(cells) != len(rows[0]) for cells in kept):
        raise NoCsv
    return kept


def _cell(text: str, at: int, escape: str) -> tuple[str | None, int]:
    begin = at + len(text[at:]) - len(text[at:].lstrip(" "))
    if text[begin : begin + 1] != '"':
        stop = next((i for i in range(at, len(text)) if text[i] in ",\r\n"), len(text))
        return text[at:stop] or None, stop
    at, cell = begin + 1, ""
    while True:
        sign, following = text[at : at + 1], text[at + 1 : at + 2]
        if not sign:
            raise NoCsv
        if sign == escape and (escape != '"' or following == '"'):
            if following not in ('"', escape, "\r", "\n") or not following:
                raise NoCsv
            cell += following
            at += 2
        elif sign == '"':
            break
        else:
            cell += sign
            at += 1
    at += 1
    at += len(text[at:]) - len(text[at:].lstrip(" "))
    if text[at : at + 1] not in ("", ",", "\r", "\n"):
        raise NoCsv
    return cell, at


@given(
    header=st.sampled_from(["a,b", '"a" ,"b\nc"', "a"]),
    signs=st.lists(st.sampled_from(SIGNS), max_size=20),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    escape=st.sampled_from(['"', "\\"]),
    block=st.sampled_from([1, 2, 3, 7, 1 << 20]),
)
@example(header="a,b", signs=["x", ",", '"', "x", "\n"], line_end="\n", escape='"', block=1 << 20)
@example(header="a,b", signs=["x", ",", "x", ",", "\n"], line_end="\n", escape='"', block=1 << 20)
@example(header="a,b", signs=['"', "x", '""', '"', ",", "\r\n", "x", ","], line_end="\r\n", escape='"', block=1)
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_rows_are_those_of_the_slow_reader(
    tmp_path: Path, header: str, signs: list[str], line_end: str, escape: Literal['"', "\\"], block: int
) -> None:
    text = header + line_end + "".join(signs)
    file = tmp_path / "one.csv"
    file.write_bytes(text.encode("utf-8-sig"))
    try:
        right = read_slowly(text, escape)
    except NoCsv:
        right = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "_BLOCK", block)
        try:
            rows = [cells for _, cells in CsvFile(file, ",", '"', escape).rows()]
        except UsageError:
            rows = None
    assert rows == right


def test_rows_in_quoted_cells_are_none(tmp_path: Path) -> None:
    """In a file of many blocks, cells in quotes look like rows where a block begins."""
    document = '"a","b"\n' * 30_000
    quoted = document.replace('"', '""')
    file = tmp_path / "one.csv"
    file.write_text("a,b\n" + "".join(f'{number},"{quoted}"\n' for number in range(200)))
    for number, (_, cells) in enumerate(CsvFile(file, ",", '"', '"').rows()):
        assert cells == [str(number), document]
    assert number == 199
