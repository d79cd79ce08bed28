"""A file of figures is shown as curves, each of the sizes that it varies alone."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from benchmarks.event_log import Work
from benchmarks.sizing.curves import CURVES, SMALL, Figures, Size, picture, read, table
from benchmarks.sizing.picture import scale, short

if TYPE_CHECKING:
    from pathlib import Path

SVG = "{http://www.w3.org/2000/svg}"
PARTITIONS = next(curve for curve in CURVES if curve.name == "partitions")


def figures(size: Size, cpu: float) -> Figures:
    requests = {"GET": 30, "HEAD": 4, "PUT": 20, "POST": 1}
    return Figures(size, 1.0, 2.0, 0.5, cpu, requests, 3.0, 300.0, 900.0, Work(tasks=7, cpu=cpu / 2, most_rows=1234))


def test_a_curve_has_the_sizes_that_differ_in_its_own_field_alone(tmp_path: Path) -> None:
    file = tmp_path / "figures"
    assert read(file) == []
    found = [figures(replace(SMALL, partitions=1_000), 8), figures(replace(SMALL, snapshots=7), 9), figures(SMALL, 4)]
    file.write_text("".join(f"{json.dumps(asdict(each))}\n" for each in found))
    assert read(file) == found
    assert PARTITIONS.figures(found) == [found[2], found[0]]
    lines = table(PARTITIONS, PARTITIONS.figures(found)).splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["| partitions", "| ---", "| 100", "| 1,000"]
    assert lines[3].split(" | ")[2:6] == ["8.0", "0.5", "34", "21"]


def test_a_picture_has_a_point_for_each_figure() -> None:
    found = [figures(replace(SMALL, partitions=10**power), power) for power in range(1, 4)]
    root = ElementTree.fromstring(picture(PARTITIONS, found))
    assert len(root.findall(f"{SVG}polyline")) == 3 + 2 + 3
    assert len(root.findall(f"{SVG}circle")) == 3 * (3 + 2 + 3)


def test_a_scale_is_logarithmic_if_values_differ_much() -> None:
    place, ticks = scale([0, 3, 7])
    assert ticks == [0, 2, 4, 6, 8]
    assert [place(0), place(4), place(8)] == [0, 0.5, 1]
    place, ticks = scale([1, 10, 10_000])
    assert ticks == [1, 10, 100, 1_000, 10_000]
    assert [place(1), place(100)] == pytest.approx([0, 0.5])
    assert [short(tick) for tick in (0.5, 20, 3_000, 2_500_000)] == ["0.5", "20", "3k", "2.5M"]
