"""What belongs in a backup, what does not, and which lists of files are read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from lake_assets.errors import StoredStateError, UsageError
from lake_assets.services.backup import (
    Contents,
    StoredFile,
    check_space,
    elsewhere,
    is_backed_up,
    parse,
    to_json,
    without_companions,
)
from lake_assets.settings import Settings

FILES = st.builds(StoredFile, st.text(min_size=1), st.integers(0), st.text(), st.integers(0), st.booleans())
CONTENTS = st.builds(
    Contents, st.text(), st.text(), st.text(), st.lists(FILES).map(tuple), st.lists(st.text()).map(tuple)
)
WRITTEN = """{"format": 1, "home": "/lake", "made_at": "2026-01-02T00:00:00+00:00", "made_by": "0.1.0", "files":
 [{"path": "catalog.db", "bytes": 3, "sha256": "ab", "mode": 384, "is_database": true}], "elsewhere": ["a bucket"]}"""


@given(CONTENTS)
def test_a_list_of_files_is_read_as_it_was_written(contents: Contents) -> None:
    assert parse(to_json(contents), "x") == contents


def test_a_list_of_files_of_this_format_is_read_by_later_versions() -> None:
    file = StoredFile("catalog.db", 3, "ab", 0o600, True)
    assert parse(WRITTEN, "x") == Contents("/lake", "2026-01-02T00:00:00+00:00", "0.1.0", (file,), ("a bucket",))


def test_a_newer_format_names_the_version_that_reads_it() -> None:
    newer = json.dumps({"format": 2, "made_by": "9.9.0", "files": 1})
    with pytest.raises(StoredStateError, match="has format 2, and this version reads formats up to 1") as refused:
        parse(newer, "/b")
    assert "9.9.0" in refused.value.remedy


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "files": [{}]}'])
def test_a_damaged_list_of_files_is_refused(text: str) -> None:
    with pytest.raises(StoredStateError, match=r"/b is damaged: contents\.json cannot be read"):
        parse(text, "/b")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("catalog.db", True),
        ("erasure.key", True),
        ("zookeeper/data/version-2/log.1", True),
        ("dagster/storage/runs/index.db", True),
        ("warehouse/logs/x", True),
        ("run/ports.json", True),
        ("run/services.json", False),
        ("logs/daemon.log", False),
        ("key-index/raw/x", False),
        ("jars/spark.jar", False),
        ("restoring/files/catalog.db", False),
    ],
)
def test_what_belongs_in_a_backup(path: str, expected: bool) -> None:
    assert is_backed_up(path) is expected


def test_journals_of_databases_are_part_of_their_copy() -> None:
    found = ["a.db", "a.db-wal", "a.db-shm", "b-wal"]
    assert without_companions(found, frozenset({"a.db"})) == ["a.db", "b-wal"]


def test_a_copy_that_does_not_fit_is_refused() -> None:
    check_space(10, 10, "/b")
    with pytest.raises(UsageError, match="needs 1,011 bytes, and its disk has 1,010 bytes free"):
        check_space(1011, 1010, "/b")


def test_a_home_with_everything_inside_has_nothing_elsewhere(tmp_path: Path) -> None:
    assert elsewhere(Settings(home=tmp_path)) == ()
    inside = {
        "catalog_uri": f"sqlite:///{tmp_path}/c.db",
        "warehouse": f"file://{tmp_path}/w",
        "landing": tmp_path / "l",
    }
    assert elsewhere(Settings(home=tmp_path).model_copy(update=inside)) == ()


def test_what_is_elsewhere_is_named_without_secrets(tmp_path: Path) -> None:
    there = {
        "catalog_uri": "postgresql+psycopg2://u:hidden@db/catalog",
        "dagster_uri": SecretStr("postgresql+psycopg2://u:hidden@db/dagster"),
        "landing_manifest_uri": "sqlite:////other/landing.db",
        "warehouse": "s3://bucket/warehouse",
        "landing": Path("/other/landing"),
        "kafka": "k:9092",
        "zookeeper": "z:2181",
        "erasure_key": SecretStr("hidden"),
    }
    assert elsewhere(Settings(home=tmp_path).model_copy(update=there)) == (
        "Dagster's runs and events: postgresql+psycopg2://u:***@db/dagster (pg_dump)",
        "Lineage of served tables, turns of engagement lakes: ZooKeeper z:2181 (its data folders)",
        "Messages: Kafka k:9092 (its retention must reach back to the backup)",
        "The key of erasures: LAKE_ERASURE_KEY (keep a copy; without it, erased ids are not recognised)",
        "Catalog: postgresql+psycopg2://u:***@db/catalog (pg_dump)",
        "Manifest of landed files of zone a: sqlite:////other/landing.db (copy it)",
        "Manifest of landed files of zone b: sqlite:////other/landing-b.db (copy it)",
        "Files of tables: s3://bucket/warehouse (a copy or versions of the bucket)",
        "Landed files: /other/landing (copy it)",
    )
