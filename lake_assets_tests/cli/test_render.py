"""The renderer prints any value as plain text or as JSON, and tables in a pipe are not folded."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from lake_assets.base.hours import to_the_second
from lake_assets.cli.render import (
    Column,
    Part,
    TableView,
    counted,
    failed,
    faint,
    megabytes,
    progress,
    render,
    show,
    succeeded,
    to_json,
    warning,
)

MARKUP = "[red]a[/] :smile: [x]"
LONG = " ".join(["word"] * 200)


@dataclass(frozen=True)
class Inner:
    hour: int
    name: str = "a"


@dataclass(frozen=True)
class Sample:
    name: str
    pending: tuple[int, ...] = ()
    complete_through: int | None = None
    rows: int = 0
    inner: tuple[Inner, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    at: datetime | None = None


SAMPLES: TableView[Sample] = TableView(
    (
        "name",
        Column("rows", lambda sample: sample.rows),
        "through=complete_through",
    ),
    empty="No sample.",
)


def lines(sample: Sample) -> list[Part]:
    return [f"name {sample.name}", warning(sample.name)]


def test_json_has_hour_keys_and_times_as_text() -> None:
    sample = Sample("a", (0, 1), None, 5, (Inner(2),), {"hour": 3, "other": 4}, datetime(2026, 1, 1, tzinfo=UTC))
    assert json.loads(to_json([sample])) == [
        {
            "name": "a",
            "pending": ["1970-01-01-00:00", "1970-01-01-01:00"],
            "complete_through": None,
            "rows": 5,
            "inner": [{"hour": "1970-01-01-02:00", "name": "a"}],
            "counts": {"hour": "1970-01-01-03:00", "other": 4},
            "at": "2026-01-01 00:00:00+00:00",
        }
    ]


def test_a_value_is_rendered_as_json_or_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    sample = Sample(MARKUP)
    render(sample, lines, as_json=False)
    assert capsys.readouterr().out == f"name {MARKUP}\n{MARKUP}\n"
    render(sample, lines, as_json=True)
    assert json.loads(capsys.readouterr().out)["name"] == MARKUP
    render(sample, lines, as_json=True, document=[])
    assert json.loads(capsys.readouterr().out) == []


def test_a_table_has_a_row_for_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    render([Sample(MARKUP, rows=1234), Sample(LONG, complete_through=7)], SAMPLES, as_json=False)
    heading, first, second = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "rows", "through"]
    assert first.startswith(MARKUP)
    assert first.rstrip().endswith("1,234")
    assert second.startswith(LONG)
    assert second.split()[-2:] == ["0", "7"]


def test_a_table_without_rows_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    show(SAMPLES([]))
    assert capsys.readouterr().out == "No sample.\n"


def test_long_lines_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    show([LONG, succeeded(LONG), failed(LONG), faint(LONG)])
    assert capsys.readouterr().out == f"{LONG}\n✓ {LONG}\n✗ {LONG}\n{LONG}\n"


def test_numbers_and_times_are_short() -> None:
    assert [counted(number, "segment") for number in (0, 1, 2_000)] == ["0 segments", "1 segment", "2,000 segments"]
    assert [megabytes(size) for size in (0, 1_250_000, 2_000_000_000)] == ["0.0", "1.2", "2,000.0"]
    assert to_the_second(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02 03:04:05"


def test_a_step_over_many_tables_says_in_a_terminal_how_many_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert list(progress("creating")(range(1_200))) == list(range(1_200))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    list(progress("creating")(range(1_200)))
    out, err = capsys.readouterr()
    assert out == ""
    assert "creating 1,200 tables" in err
