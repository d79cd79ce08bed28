"""`lake new`: the templates of a new table's files, filled in. Identifiers are checked first; no catalog is opened."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from string import Template

from lake_assets.errors import UsageError
from lake_assets.incremental.declaration import IDENTIFIER, LANDING_COLUMNS, TABLE

DECLARATION = '''"""`$table`: ${title}.

Created by `lake new`. Declare the columns of the raw table, then compute the target's columns in the function.
"""

$spark_imports

from lake_assets import Pipeline, RawTable, $declaration_imports, audits, incremental_asset

# Your loader writes these columns, and landed_at, landing_date, landing_hour and batch_id. Delete this declaration
# if another pipeline already declares the table.
$constant = RawTable(
    "$source",
    columns={"$key": "string", "amount": "long", "$time": "timestamptz"},
    time_column="$time",
    description="What one row is.",
)


@incremental_asset(
    namespace="$namespace",
    mode=$mode_class(),
    sources=[Source("$source", time_column="$time", key="$key")],
    key="$key",
    time_column="$target_time",$grain_option
    columns={$columns},
    audits=[$audits],
)
def $name(session: SessionContext, $rows: DataFrame) -> DataFrame:
$body


PIPELINE = Pipeline(raw=($constant,), targets=($name,), start="2026-01-01-00:00")
'''

TEST = '''"""`$table` in a temporary data directory: rows land, one of them late, and the table has all of them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from $name import PIPELINE

from lake_assets import Lake, Settings

HOURS = PIPELINE.target("$name").grain.hours  # of one partition; partition 0 is the first one
PARTITION = timedelta(hours=HOURS)
START = datetime.strptime(PIPELINE.start, "%Y-%m-%d-%H:%M").replace(tzinfo=UTC)


def test_late_rows_reach_their_partitions(tmp_path: Path) -> None:
    with Lake.open(PIPELINE, settings=Settings(home=tmp_path / "home")) as lake:
        lake.create_tables()
        land(lake.catalog, {"a": 0, "b": 2}, through=2)
        assert built(lake) == $first_built
        land(lake.catalog, {"c": 1}, through=3)  # late: 1 was already complete. Unchanged partitions are not written
        assert built(lake) == $late_built
        assert rows(lake.catalog) == $result


def land(catalog, partitions, *, through):
    """Land one row for each key in its partition, and move complete-through in the same commit."""
    table = catalog.load_table("$source")
    landed_at = START + PARTITION * (through + 1)
    landed = [
        {
            "$key": key,
            "amount": 1,
            "$time": START + PARTITION * number + timedelta(minutes=5),
            "landed_at": landed_at,
            "landing_date": landed_at.date(),
            "landing_hour": landed_at.hour,
            "batch_id": str(through),
        }
        for key, number in partitions.items()
    ]
    last_hour = landed_at - timedelta(hours=1)
    with table.transaction() as transaction:
        transaction.append(pa.Table.from_pylist(landed, schema=table.schema().as_arrow()))
        transaction.set_properties({"lake.complete-through": last_hour.strftime("%Y-%m-%d-%H:%M")})


def built(lake):
    """Run all due sessions and return the partitions that they built."""
    outcomes = lake.catch_up()
    assert not [o.failure for o in outcomes if o.failure]
    hours = [hour for o in outcomes if o.report for hour in o.report.hours_built]
    return sorted({(hour - PIPELINE.start_hour) // HOURS for hour in hours})


def rows(catalog):
    """Return (partition, key, amount) of every row."""
    found = catalog.load_table("$table").scan().to_arrow().to_pylist()
    return sorted(((row["$target_time"] - START) // PARTITION, row["$key"], row["amount"]) for row in found)
'''

_WINDOWED = "from pyspark.sql import DataFrame, Window\nfrom pyspark.sql import functions as F"

_STATELESS = {
    "title": "one row for each row of `$source`",
    "mode_class": "Stateless",
    "spark_imports": "from pyspark.sql import DataFrame",
    "declaration_imports": "SessionContext, Source, Stateless",
    "audits": """
        audits.source_target_counts(),
        audits.no_missing_events(),
        audits.not_null("amount"),
        audits.unique_key(),
    """,
    "target_time": "$time",
    "columns": '"$key": "string", "amount": "long", "$time": "timestamptz"',
    "body": '''    """Describe a row here. It depends on only one row of the source, so new rows are appended."""
    return $rows.select("$key", "amount", "$time")''',
    "first_built": "[0, 2]",
    "late_built": "[1]",
    "result": '[(0, "a", 1), (1, "c", 1), (2, "b", 1)]',
}

_STATEFUL = {
    **_STATELESS,
    "title": "one row for each row of `$source`, with a count of the rows up to it",
    "mode_class": "Stateful",
    "spark_imports": _WINDOWED,
    "declaration_imports": "SessionContext, Source, Stateful",
    "columns": '"$key": "string", "amount": "long", "events": "long", "$time": "timestamptz"',
    "body": '''    """Describe a row here. events: the number of rows with the same key, up to this one.

    Every ${period} from the first changed one to the last complete one is rebuilt, so a row may depend on all
    earlier rows.
    """
    history = Window.partitionBy("$key").orderBy("$time")
    counted = $rows.withColumn("events", F.count("*").over(history))
    return session.within(counted, "$time").select("$key", "amount", "events", "$time")''',
    "first_built": "[0, 1, 2]",
    "late_built": "[1, 3]",
}

_SEQUENTIAL = {
    "title": "the state of each $key at the end of every $period",
    "mode_class": "Sequential",
    "spark_imports": _WINDOWED,
    "declaration_imports": "Sequential, SessionContext, Source",
    "audits": 'audits.not_null("amount"), audits.unique_key()',
    "target_time": "state_$period",
    "columns": '"state_$period": "timestamptz", "$key": "string", "amount": "long"',
    "body": '''    """amount: the sum of all rows up to this $period: of `session.published` and of its own rows."""
    first = $first_of_session
    last = $last_of_session
    before = session.published.where(F.col("state_$period") == F.timestamp_seconds(F.lit($seconds * (first - 1))))
    before = before.select("$key", F.lit(first).cast("long").alias("$period"), "amount")
    $period = F.floor(F.unix_seconds(F.col("$time")) / $seconds).alias("$period")
    changes = before.unionByName(session.within($rows, "$time").select("$key", $period, "amount"))
    to_the_end = F.sequence(F.min("$period"), F.lit(last).cast("long"))
    every = changes.groupBy("$key").agg(F.explode(to_the_end).alias("$period"))
    summed = changes.groupBy("$key", "$period").agg(F.sum("amount").alias("amount"))
    filled = every.join(summed, ["$key", "$period"], "left")
    so_far = F.sum("amount").over(Window.partitionBy("$key").orderBy("$period"))
    at = F.timestamp_seconds(F.col("$period") * $seconds)
    return filled.select(at.alias("state_$period"), "$key", so_far.alias("amount"))''',
    "first_built": "[0, 1, 2]",
    "late_built": "[1, 2, 3]",
    "result": '[(h, k, 1) for h, keys in enumerate(("a", "ac", "abc", "abc")) for k in keys]',
}

MODES: Mapping[str, Mapping[str, str]] = {
    "stateless": _STATELESS,
    "stateful": _STATEFUL,
    "sequential": _SEQUENTIAL,
}
"""Mode → the words of the templates that depend on it."""

GRAINS: Mapping[str, Mapping[str, str]] = {
    "hour": {
        "period": "hour",
        "grain_option": "",
        "seconds": "3600",
        "first_of_session": "session.hours[0]",
        "last_of_session": "session.hours[-1]",
    },
    "day": {
        "period": "day",
        "grain_option": '\n    grain="day",',
        "seconds": "86400",
        "first_of_session": "session.hours[0] // 24",
        "last_of_session": "session.hours[-1] // 24",
    },
}
"""Grain → the words of the templates that depend on it."""


_LETTERS = "Use lower-case letters, digits and _"
_TAKEN = {*LANDING_COLUMNS, "amount", "events", "hour", "state_hour", "day", "state_day"}
"""Columns that the templates use."""


@dataclass(frozen=True)
class NewTable:
    """A table to declare. Raises `UsageError` for an invalid name.

    Args:
        table: The table as `namespace.name`.
        mode: A key of `MODES`.
        source: The raw table that it is built from.
        time_column: The time column of the source.
        key: The key column of the source.
        grain: The period of one partition, a key of `GRAINS`.
    """

    table: str
    mode: str
    source: str
    time_column: str
    key: str
    grain: str = "hour"

    def __post_init__(self) -> None:
        _require_one_of("The mode", self.mode, MODES)
        _require_one_of("The grain", self.grain, GRAINS)
        _require_table("The table", self.table)
        _require_table("The source", self.source)
        _require_new_module(self.name)
        _require_column("The time column", self.time_column)
        _require_column("The key", self.key)
        if self.key == self.time_column:
            raise UsageError(f"Key and time column are both {self.key!r}.", remedy="Name two different columns.")
        if self.table == self.source:
            raise UsageError(f"Table and source are both {self.table!r}.", remedy="Name two different tables.")

    @property
    def name(self) -> str:
        """The table without its namespace."""
        return self.table.split(".")[1]

    @property
    def pipeline(self) -> str:
        """The value of LAKE_PIPELINES."""
        return f"{self.name}:PIPELINE"


def files(new: NewTable) -> dict[str, str]:
    """Return file name → content: the declaration `<name>.py`, and `test_<name>.py`."""
    rows = new.source.split(".")[1]
    words = {
        "table": new.table,
        "namespace": new.table.split(".")[0],
        "name": new.name,
        "source": new.source,
        "time": new.time_column,
        "key": new.key,
        "rows": "rows" if rows in ("session", new.name, "F") else rows,
        "constant": "SOURCE" if rows.upper() in ("PIPELINE", "F") else rows.upper(),
        **GRAINS[new.grain],
    }
    words |= {name: Template(text).substitute(words) for name, text in MODES[new.mode].items()}
    return {
        f"{new.name}.py": Template(DECLARATION).substitute(words),
        f"test_{new.name}.py": Template(TEST).substitute(words),
    }


def write(new: NewTable, folder: Path) -> list[Path]:
    """Write the files into a folder, which is created if it is missing.

    Returns:
        The paths of the files.

    Raises:
        UsageError: One of the files exists. None is written.
    """
    contents = {folder / name: text for name, text in files(new).items()}
    existing = [str(path) for path in contents if path.exists()]
    if existing:
        raise UsageError(
            f"{' and '.join(existing)} would be overwritten.", remedy="Move the file away, or name another --out."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in contents.items():
        with path.open("x") as file:
            file.write(text)
    return list(contents)


def next_steps(new: NewTable, folder: Path) -> str:
    """Return what to do with the files, as commands."""
    test = folder / f"test_{new.name}.py"
    declaration = folder / f"{new.name}.py"
    return f"""Next:
  1. python -m pytest {test}     # runs the files as they are
  2. Declare the columns of {new.source} in {declaration}, and change the function.
  3. export PYTHONPATH={folder.resolve()} LAKE_PIPELINES={new.pipeline}
  4. lake init                                  # creates {new.source} and {new.table}
  5. lake land {new.source} FILE --through HOUR
  6. lake plan {new.name}, lake catch-up, or lake up for the UI"""


def _require_one_of(what: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise UsageError(f"{what} is {value!r}.", remedy=f"Use one of: {', '.join(known)}.")


def _require_table(what: str, table: str) -> None:
    if not TABLE.fullmatch(table) or keyword.iskeyword(table.split(".")[1]):
        raise UsageError(
            f"{what} is called {table!r}.", remedy=f"{_LETTERS}, and no keyword of Python; a table is namespace.name."
        )


def _require_new_module(name: str) -> None:
    if name in sys.stdlib_module_names or find_spec(name):
        raise UsageError(f"{name}.py would hide Python's module {name}.", remedy="Give the table another name.")


def _require_column(what: str, column: str) -> None:
    if not IDENTIFIER.fullmatch(column):
        raise UsageError(f"{what} is called {column!r}.", remedy=f"{_LETTERS}.")
    if column in _TAKEN:
        raise UsageError(
            f"{what} is called {column!r}, which is a column of the written files.", remedy="Name another column."
        )
