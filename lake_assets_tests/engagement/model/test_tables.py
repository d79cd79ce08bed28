"""What is written to the tables of a lake, and read from them, without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.engagement.tables import DEAD_LETTER, LakeTables, check_fields
from lake_assets.errors import ConfigurationError

APP_ID = "mail.ingestion.dead_letter"


@pytest.fixture
def tables(tmp_path: Path) -> LakeTables:
    tables = LakeTables(EMAIL_EVENT, f"file://{tmp_path}")
    DeltaTable.create(tables.location(DEAD_LETTER), pa.schema([("offset", pa.int64())]))
    return tables


def test_a_batch_of_few_rows_is_committed_once_and_never_after_a_later_one(tables: LakeTables) -> None:
    for batch_id, offsets in ((1, ()), (1, (7,)), (3, (5, 6)), (2, (8,)), (3, (9,))):
        rows = [{"offset": offset} for offset in offsets]
        tables.append_few(DEAD_LETTER, rows, app_id=APP_ID, batch_id=batch_id)
    assert tables.query(DEAD_LETTER, f'SELECT "offset" FROM {DEAD_LETTER} ORDER BY 1') == [{"offset": 5}, {"offset": 6}]
    assert tables.last_batch(DEAD_LETTER, APP_ID) == 3
    assert [commit.mark for commit in tables.history(DEAD_LETTER)] == [f"{APP_ID}:3", f"{APP_ID}:1", None]
    found = tables.commit_of(DEAD_LETTER, app_id=APP_ID, batch_id=1, since=0)
    assert found is not None
    assert found.version == 1


def test_a_statement_selects_from_the_version_that_is_asked_for(tables: LakeTables) -> None:
    for offset in (5, 7):
        write_deltalake(tables.location(DEAD_LETTER), pa.table({"offset": [offset]}), mode="append")
    statement = f'SELECT max("offset") AS last FROM {DEAD_LETTER}'
    found = [tables.query(DEAD_LETTER, statement, version) for version in (0, 1, None)]
    assert found == [[{"last": None}], [{"last": 5}], [{"last": 7}]]


def test_fields_that_a_lake_does_not_have_are_refused_by_name(tmp_path: Path) -> None:
    struct = pa.struct([("subject", pa.string()), ("opens", pa.int32()), ("bytes", pa.int64()), ("at", pa.date32())])
    schema = pa.schema([("org_id", pa.string()), ("engagement", struct)])
    write_deltalake(tmp_path, schema.empty_table())
    columns = DeltaTable(tmp_path).schema().fields
    fields = {"subject": "string", "opens": "int", "bytes": "bigint", "at": "date"}
    check_fields(replace(EMAIL_EVENT, fields=fields), columns)
    with pytest.raises(ConfigurationError, match=r"the field clicks \(int\), but its table has no such field") as error:
        check_fields(replace(EMAIL_EVENT, fields={**fields, "clicks": "int"}), columns)
    assert "They are: subject, opens, bytes, at." in error.value.remedy
    with pytest.raises(ConfigurationError, match=r"the field opens \(bigint\), but its table has it as integer"):
        check_fields(replace(EMAIL_EVENT, fields={**fields, "opens": "bigint"}), columns)
