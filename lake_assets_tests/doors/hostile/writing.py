"""What other programs do to a table: writes of Spark, pyiceberg and pyarrow, and changes of rows, files and columns."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IntegerType, ListType, MapType, NestedField, StringType, StructType

from lake_assets_tests.doors.hostile.tables import DAY, HOUR, Column, Hostile, Row, new_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(remote: str, home: Path) -> SparkSession:
    """Return a session of Spark Connect with the catalog `lake` of a data directory."""
    from pyspark.sql import SparkSession

    conf = {
        "spark.remote": remote,
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{home / 'catalog.db'}",
        "spark.sql.catalog.lake.jdbc.busy_timeout": "60000",
        "spark.sql.catalog.lake.clients": "1",
        "spark.sql.catalog.lake.warehouse": f"file://{home / 'warehouse'}",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.session.timeZone": "UTC",
    }
    builder: Any = SparkSession.builder
    return builder.config(map=conf).create()


SPARK_TYPES = {
    "long": "bigint",
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
    "struct": "struct<`a b`: int, `Sel``ect`: string>",
    "list": "array<string>",
    "map": "map<string, int>",
}


def quoted(name: str) -> str:
    """Return a name as Spark's SQL writes it."""
    return "`" + name.replace("`", "``") + "`"


def iceberg_type(kind: str, identifier: Callable[[], int]) -> Any:
    """Return the type of a column; nested ones take the numbers of their fields from `identifier`."""
    if kind == "struct":
        return StructType(
            NestedField(identifier(), "a b", IntegerType()), NestedField(identifier(), "Sel`ect", StringType())
        )
    if kind == "list":
        return ListType(identifier(), StringType(), element_required=False)
    if kind == "map":
        return MapType(identifier(), StringType(), identifier(), IntegerType(), value_required=False)
    return kind


class Programs:
    """The other programs of a data directory."""

    def __init__(self, folder: Path, catalog: SqlCatalog, spark: SparkSession) -> None:
        self.folder, self.catalog, self.spark = folder, catalog, spark
        self.files = 0

    def create(self, table: Hostile) -> None:
        """Create a table without rows. Only Spark writes version 3 of the format."""
        if table.version == 3:
            if any(kind in ("uuid", "time", "fixed[4]") for kind in (column.kind for column in table.columns)):
                table.version = 2
            else:
                table.writer = "int96" if table.writer == "int96" else "spark"
                self._create_by_spark(table)
                return
        number = 100

        def identifier() -> int:
            nonlocal number
            number += 1
            return number

        fields = []
        for place, column in enumerate(table.columns, 1):
            fields.append(NestedField(place, column.name, iceberg_type(column.kind, identifier), required=False))
        schema = Schema(*fields)
        partitions = PartitionSpec()
        if table.partition is not None:
            transform, name = table.partition
            source = schema.find_field(name).field_id
            partitions = PartitionSpec(PartitionField(source, 1000, parse_transform(transform), f"{name}_p"))
        properties = {
            "format-version": str(table.version),
            "write.delete.mode": table.rng.choice(["merge-on-read", "copy-on-write"]),
            "write.update.mode": table.rng.choice(["merge-on-read", "copy-on-write"]),
        }
        self.catalog.create_table(table.table, schema, partition_spec=partitions, properties=properties)

    def _create_by_spark(self, table: Hostile) -> None:
        columns = ", ".join(f"{quoted(column.name)} {_sql_type(column.kind)}" for column in table.columns)
        partitions = ""
        if table.partition is not None:
            transform, name = table.partition
            written = {"identity": "{}", "bucket[4]": "bucket(4, {})", "truncate[3]": "truncate(3, {})"}
            by = written.get(transform, f"{transform}s({{}})")
            partitions = f"PARTITIONED BY ({by.format(quoted(name))})"
        delete = table.rng.choice(["merge-on-read", "copy-on-write"])
        self.spark.sql(
            f"CREATE TABLE lake.{table.table} ({columns}) USING iceberg {partitions} TBLPROPERTIES ("
            f"'format-version'='3', 'write.delete.mode'='{delete}', 'write.update.mode'='{delete}')"
        )

    def append(self, table: Hostile, rows: list[Row]) -> None:
        """Append rows with the writer of the table; with another one if it cannot write them."""
        arrow = self._arrow(table, rows)
        writers = {"spark": self._by_spark, "pyiceberg": self._by_pyiceberg}
        order = [writers.get(table.writer, self._as_files), self._by_spark, self._by_pyiceberg]
        errors = []
        for write in dict.fromkeys(order):
            try:
                write(table, arrow)
            except Exception as error:  # whatever a program says that cannot write such a table
                errors.append(f"{write.__name__}: {type(error).__name__} {str(error)[:200]}")
            else:
                table.rows += rows
                return
        raise CannotWrite("; ".join(errors))

    def _arrow(self, table: Hostile, rows: list[Row]) -> pa.Table:
        """Return rows as Arrow, with the present columns of the table."""
        schema = self.catalog.load_table(table.table).schema().as_arrow()
        columns = []
        for field in schema:
            values = [row.get(field.name) for row in rows]
            if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
                # CREATE OR REPLACE by Spark has made texts of uuids.
                values = [str(uuid.UUID(bytes=value)) if isinstance(value, bytes) else value for value in values]
            if pa.types.is_map(field.type):
                values = [None if value is None else list(value.items()) for value in values]
            if isinstance(field.type, pa.BaseExtensionType):
                stored = pa.array(values, field.type.storage_type)
                columns.append(pa.ExtensionArray.from_storage(field.type, stored))
            else:
                columns.append(pa.array(values, field.type))
        return pa.Table.from_arrays(columns, schema=schema)

    def _by_spark(self, table: Hostile, arrow: pa.Table) -> None:
        columns = []
        for field, column in zip(arrow.schema, arrow.columns, strict=True):
            is_fixed = pa.types.is_fixed_size_binary(field.type)
            if isinstance(field.type, pa.BaseExtensionType) or (is_fixed and table.column(field.name).kind == "uuid"):
                texts = [None if value is None else str(uuid.UUID(bytes=value)) for value in _bytes(column)]
                column = pa.array(texts, pa.string())
            elif is_fixed:
                column = column.cast(pa.binary())
            columns.append(column)
        names = [f"c{number}" for number in range(len(columns))]
        rows = self.spark.createDataFrame(pa.Table.from_arrays(columns, names))
        rows.createOrReplaceTempView("hostile_rows")
        self.spark.sql(f"INSERT INTO lake.{table.table} SELECT * FROM hostile_rows")

    def _by_pyiceberg(self, table: Hostile, arrow: pa.Table) -> None:
        self.catalog.load_table(table.table).append(arrow)

    def _as_files(self, table: Hostile, arrow: pa.Table) -> None:
        """Add Parquet files of another program to the table."""
        file = self._parquet(table, arrow)
        if table.writer == "int96":
            call = f"CALL lake.system.add_files(table => '{table.table}', source_table => '`parquet`.`{file.parent}`')"
            self.spark.sql(call)
        else:
            self.catalog.load_table(table.table).add_files([f"file://{file}"])

    def _parquet(self, table: Hostile, arrow: pa.Table) -> Path:
        self.files += 1
        file = self.folder / "added" / str(self.files) / "rows.parquet"
        file.parent.mkdir(parents=True)
        fields = []
        for field in arrow.schema:
            unit = "ms" if table.writer == "ms" and pa.types.is_timestamp(field.type) else None
            kind = pa.timestamp(unit, field.type.tz) if unit else _without_numbers(field.type)
            fields.append(pa.field(field.name, kind))
        plain = pa.schema(fields)
        pq.write_table(
            arrow.cast(plain),
            file,
            use_deprecated_int96_timestamps=table.writer == "int96",
            version="1.0" if table.rng.random() < 0.3 and table.writer != "us" else "2.6",
            use_dictionary=table.rng.random() < 0.5,
            row_group_size=table.rng.choice([2, 1000]),
        )
        return file

    def file_to_land(self, table: Hostile, rows: list[Row]) -> Path:
        """Write a file for `lake land`."""
        names = [column.name for column in table.columns]
        schema = self.catalog.load_table(table.table).schema().as_arrow()
        schema = pa.schema([field for field in schema if field.name in names])
        columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
        arrow = pa.Table.from_arrays(columns, schema=schema)
        if table.writer != "csv":
            return self._parquet(table, arrow)
        from pyarrow import csv

        self.files += 1
        file = self.folder / f"landed{self.files}.csv"
        csv.write_csv(arrow, file)
        return file

    def declare_complete(self, table: Hostile) -> None:
        """Say that the table is complete through an hour between the former one and its newest row."""
        known = [row[table.time.name] for row in table.rows if row[table.time.name] is not None]
        inside = [
            moment
            for moment in known
            if table.start <= moment < table.start + (table.reach + 1) * HOUR or moment == max(known)
        ]
        inside = [moment for moment in inside if table.start <= moment < table.start + 4000 * DAY]
        if not inside:
            return
        newest = max(inside) // HOUR * HOUR
        before = table.complete_through
        through = newest if table.rng.random() < 0.5 else newest - HOUR * table.rng.randint(0, table.reach // 2)
        table.complete_through = through if before is None else max(before, min(through, newest))
        key = hour_key(table.complete_through)
        if table.version == 3:
            self.spark.sql(f"ALTER TABLE lake.{table.table} SET TBLPROPERTIES ('lake.complete-through'='{key}')")
            return
        with self.catalog.load_table(table.table).transaction() as change:
            change.set_properties({"lake.complete-through": key})

    def change(self, table: Hostile, operation: str) -> None:
        """Do one operation of a life to the table and to its rows."""
        if operation == "append":
            self.append(table, new_rows(table, first=False))
        elif operation != "nothing":
            getattr(self, f"_{operation.replace(' ', '_')}")(table)

    def _chosen(self, table: Hostile) -> list[Row]:
        """Return some rows. The first one is the newest that says how far the table is complete, and stays."""
        return [row for row in table.rows[1:] if table.rng.random() < 0.3]

    def _evolve(self, table: Hostile, change: str) -> None:
        self.spark.sql(f"ALTER TABLE lake.{table.table} {change}")

    def _delete(self, table: Hostile) -> None:
        gone = {row["n"] for row in self._chosen(table)}
        if gone:
            self.spark.sql(f"DELETE FROM lake.{table.table} WHERE n IN ({', '.join(map(str, gone))})")
            table.rows = [row for row in table.rows if row["n"] not in gone]

    def _update(self, table: Hostile) -> None:
        """Move rows by one hour, in place."""
        moved = [row for row in self._chosen(table) if row[table.time.name] is not None]
        moved = [row for row in moved if table.start <= row[table.time.name] < table.start + 4000 * DAY]
        if moved:
            numbers = ", ".join(str(row["n"]) for row in moved)
            time = f"`{table.time.name}`"
            self.spark.sql(f"UPDATE lake.{table.table} SET {time} = {time} - INTERVAL 1 HOUR WHERE n IN ({numbers})")
            for row in moved:
                row[table.time.name] -= HOUR

    def _overwrite(self, table: Hostile) -> None:
        """Replace some rows by others in one commit, by pyiceberg; in version 3, delete them."""
        if table.version == 3:
            self._delete(table)
            return
        gone = {row["n"] for row in self._chosen(table)}
        if not gone:
            return
        rows = new_rows(table, first=False)
        numbers = ", ".join(map(str, gone))
        try:
            self.catalog.load_table(table.table).overwrite(self._arrow(table, rows), f"n in ({numbers})")
        except Exception:  # pyiceberg cannot write everything that Spark can
            self.spark.sql(f"DELETE FROM lake.{table.table} WHERE n IN ({numbers})")
            table.rows = [row for row in table.rows if row["n"] not in gone]
            self.append(table, rows)
        else:
            table.rows = [row for row in table.rows if row["n"] not in gone] + rows

    def _compact(self, table: Hostile) -> None:
        options = "map('rewrite-all', 'true')"
        self.spark.sql(f"CALL lake.system.rewrite_data_files(table => '{table.table}', options => {options})")

    def _expire(self, table: Hostile) -> None:
        later = "TIMESTAMP '2100-01-01 00:00:00Z'"
        self.spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{table.table}', older_than => {later}, retain_last => 1)"
        )

    def _replace(self, table: Hostile) -> None:
        """CREATE OR REPLACE TABLE, with a part of the rows."""
        gone = {row["n"] for row in self._chosen(table)} | {0}
        self.spark.sql(
            f"CREATE OR REPLACE TABLE lake.{table.table} USING iceberg AS"
            f" SELECT * FROM lake.{table.table} WHERE n NOT IN ({', '.join(map(str, gone))})"
        )
        table.rows = [row for row in table.rows if row["n"] not in gone]
        if table.writer in ("us", "ms", "int96"):
            table.writer = "spark"

    def _add_column(self, table: Hostile) -> None:
        kind = table.rng.choice(["boolean", "int", "double", "decimal(9, 2)", "date", "timestamptz", "string"])
        name = next(name for name in ("New Column", "_hour2", "later") if name not in {c.name for c in table.columns})
        self._evolve(table, f"ADD COLUMN {quoted(name)} {_sql_type(kind)}")
        table.columns.append(Column(name, kind, used=False))
        for row in table.rows:
            row[name] = None
        self.append(table, new_rows(table, first=False))

    def _rename(self, table: Hostile, column: Column) -> None:
        before, after = column.name, f"{column.name}2"
        self._evolve(table, f"RENAME COLUMN {quoted(before)} TO {quoted(after)}")
        column.name = after
        if table.partition is not None and table.partition[1] == before:
            table.partition = (table.partition[0], after)
        for row in table.rows:
            row[after] = row.pop(before)
        self.append(table, new_rows(table, first=False))

    def _plain_columns(self, table: Hostile, *, used: bool) -> list[Column]:
        names = {column.name for column in table.columns}
        others = [c for c in table.columns if c.name not in ("n", "version", "op", table.key.name, table.time.name)]
        return [c for c in others if c.used is used and "." not in c.name and f"{c.name}2" not in names]

    def _rename_unused(self, table: Hostile) -> None:
        for column in self._plain_columns(table, used=False)[:1]:
            self._rename(table, column)

    def _rename_used(self, table: Hostile) -> None:
        for column in self._plain_columns(table, used=True)[:1]:
            self._rename(table, column)

    def _drop_unused(self, table: Hostile) -> None:
        for column in self._plain_columns(table, used=False)[:1]:
            if table.partition is not None and table.partition[1] == column.name:
                return
            self._evolve(table, f"DROP COLUMN {quoted(column.name)}")
            table.columns.remove(column)
            for row in table.rows:
                del row[column.name]

    def _widen(self, table: Hostile) -> None:
        for column in self._plain_columns(table, used=table.rng.random() < 0.5):
            wider = {"int": "long", "float": "double", "decimal(9, 2)": "decimal(12, 2)"}.get(column.kind)
            if wider is not None and column is not table.key:
                self._evolve(table, f"ALTER COLUMN {quoted(column.name)} TYPE {_sql_type(wider)}")
                column.kind = wider
                self.append(table, new_rows(table, first=False))
                return


class CannotWrite(Exception):
    """None of the programs can write such rows, which is no fault of the engine."""


def _without_numbers(kind: pa.DataType) -> pa.DataType:
    """Return an Arrow type without the numbers of Iceberg's fields, which no other program writes."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_numbers(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_without_numbers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_without_numbers(kind.key_type), _without_numbers(kind.item_type))
    return kind


def _bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    stored = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks]
    return [value for chunk in stored for value in chunk.to_pylist()]


def _sql_type(kind: str) -> str:
    return "binary" if kind in ("fixed[4]", "uuid") else SPARK_TYPES.get(kind, kind)


def hour_key(moment: int) -> str:
    """Return the key of the hour of a moment: `2026-01-01-05:00`."""
    from datetime import UTC, datetime, timedelta

    found = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=moment // HOUR)
    return f"{found.year:04}-{found:%m-%d-%H:%M}"
