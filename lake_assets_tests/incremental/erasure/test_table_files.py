"""The certificate finds an id wherever it was planted: in rows, bounds, delete files, texts and broken files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake_assets.errors import UsageError
from lake_assets.incremental.engine import iceberg
from lake_assets.incremental.engine.erasures import delete_rows, holds
from lake_assets.incremental.engine.retention import bare_path, drop_deleted_entries
from lake_assets.incremental.erasure.certificate import Certificate, FileFacts, FileSource, Finding, certify
from lake_assets_tests.incremental.scenario import landed

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lake_assets.settings import Settings

WHO = "account-17"
MESSAGES = {"type": "record", "name": "Message", "fields": [{"name": "value", "type": ["null", "bytes"]}]}


class Messages(FileSource):
    def facts(self, path: str) -> FileFacts:
        return FileFacts("messages", "landed file", "main")


def found(catalog: Catalog, who: str = WHO) -> set[tuple[str | None, str, int, str]]:
    return {(f.table, f.kind, f.occurrences, f.referenced) for f in certify(catalog, "account", who).findings}


def test_rows_bounds_and_what_refers_to_them(catalog: Catalog) -> None:
    landed(catalog, WHO, "account-170", WHO)
    assert found(catalog) == {("raw.signups", "data", 2, "main"), ("raw.signups", "manifest", 1, "main")}
    # In the middle of the bounds the manifests do not tell; and 17 is not 170.
    landed(catalog, "account-0", "account-18", "account-2")
    assert found(catalog, "account-18") == {("raw.signups", "data", 1, "main")}
    assert certify(catalog, "account", "account-1").nowhere


def test_a_head_without_entries_of_deleted_files_tells_no_bounds_of_deleted_files(catalog: Catalog) -> None:
    landed(catalog, WHO, "account-2", "account-3")
    signups = iceberg.load(catalog, "raw.signups")
    before = signups.scan().count()
    assert delete_rows(catalog, "raw.signups", holds(signups.schema(), ["account_id"], [WHO])) == 1
    assert ("raw.signups", "manifest", 1, "main") in found(catalog)
    assert drop_deleted_entries(catalog, "raw.signups")
    table = iceberg.load(catalog, "raw.signups")
    assert {by for _, _, _, by in found(catalog)} == {"history"}
    assert table.scan().count() == before - 1
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.operation.value == "replace"
    assert head.summary.additional_properties["total-records"] == str(before - 1)
    assert not drop_deleted_entries(catalog, "raw.signups")


@pytest.mark.parametrize("where", ["parquet", "footer", "delete", "broken", "text", "gzip", "binary", "avro"])
def test_planted_files(catalog: Catalog, bare_home: Settings, where: str) -> None:
    folder = Path(bare_path(landed(catalog, "account-2").location()))
    kind, count = "other", 1
    if where == "parquet":
        kind, count = "data", 3
        nested = pa.table({"n": [1, 2, 3, 4], "who": [[WHO], [WHO, "b"], [], [f"{{'id': '{WHO}'}}"]]})
        pq.write_table(nested, folder / "data" / "orphan.parquet")
    elif where == "footer":
        kind = "data"
        pq.write_table(pa.table({"n": [1]}).replace_schema_metadata({"who": WHO}), folder / "orphan.parquet")
    elif where == "delete":
        kind = "delete"
        pq.write_table(pa.table({"account_id": [WHO]}), folder / "data" / "00000-1-deletes.parquet")
    elif where == "broken":
        kind = "data"
        (folder / "broken.parquet").write_bytes(b"PAR1\xff\xfe" + WHO.encode())
    elif where == "avro":
        kind = "manifest"
        (folder / "broken.avro").write_bytes(b"Obj\x01\xff" + WHO.encode())
    elif where == "text":
        count = 2
        (folder / ".hidden").write_text(f"{WHO} and {WHO}, not x{WHO}")
    elif where == "gzip":
        (folder / "log.gz").write_bytes(gzip.compress(WHO.encode()))
    else:
        (folder / "bytes.bin").write_bytes(b"\xff\xfex" + WHO.encode() + b"x\xff")
    certificate = certify(catalog, "account", WHO)
    assert found(catalog) == {("raw.signups", kind, count, "nothing")}
    assert bool(certificate.undecoded) == (where in ("broken", "avro"))


@pytest.mark.parametrize("name", ["messages.parquet", "messages.avro", ".draft-1"])
def test_messages_are_decoded_whatever_their_file_is_called_and_however_they_spell_it(
    catalog: Catalog, tmp_path: Path, name: str
) -> None:
    values = [f'{{"id": "{WHO}"}}'.encode(), None, b'{"id": "\\u0061ccount-17"}', b"account-170", b"\\"]
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"value": values}), tmp_path / name, compression="zstd")
    else:
        with (tmp_path / name).open("wb") as opened:
            fastavro.writer(opened, MESSAGES, [{"value": value} for value in values], codec="deflate")
    certificate = certify(catalog, "account", WHO, beside=[Messages(str(tmp_path))])
    assert certificate.findings == (Finding(str(tmp_path / name), "messages", "landed file", 2, "main"),)
    assert certificate.undecoded == ()


@pytest.mark.parametrize("who", ['a"b', "a\\b", "zoë", "a\nb"])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_texts_of_parquet_are_read_as_json_at_whatever_depth(catalog: Catalog, who: str, ensure_ascii: bool) -> None:
    folder = Path(bare_path(landed(catalog, "account-2").location()))
    said = json.dumps({"id": who}, ensure_ascii=ensure_ascii)
    texts = [
        said,
        json.dumps([{"sample": [said]}], ensure_ascii=ensure_ascii),
        json.dumps({"id": who + "x"}),
        "\\",
        None,
    ]
    pq.write_table(pa.table({"row": texts}), folder / "orphan.parquet")
    assert found(catalog, who) == {("raw.signups", "data", 2, "nothing")}


def test_files_outside_of_any_table_and_progress(catalog: Catalog, bare_home: Settings) -> None:
    landed(catalog, "account-2")
    (bare_home.home / "warehouse" / "note.txt").write_text(WHO)
    told: list[tuple[int, int]] = []
    certificate: Certificate = certify(catalog, "account", WHO, progress=lambda *done: told.append(done))
    assert [(f.table, f.kind) for f in certificate.findings] == [(None, "other")]
    assert len(told) == certificate.files
    assert told[-1] == (certificate.bytes, certificate.bytes)
    with pytest.raises(UsageError, match="empty"):
        certify(catalog, "account", "")
