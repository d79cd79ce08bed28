"""`lake serving`, as a person calls it, on a ZooKeeper that has nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lake_assets.cli.serving import failed_pushes, serving
from lake_assets.coordination import zookeeper_client
from lake_assets.errors import LakeError
from lake_assets.settings import Settings, settings
from lake_assets_tests.object_store import KEY, KEY_ID, made_bucket, s3_server
from lake_assets_tests.serving.scenario import fresh_name

COUNT = "select count(*) as n from members"


@pytest.fixture
def home(bare_home: Settings, zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    apart = fresh_name()
    with zookeeper_client(zookeeper) as zk:
        zk.create(f"/{apart}")
    monkeypatch.setenv("LAKE_HOME", str(bare_home.home))
    monkeypatch.setenv("LAKE_ZOOKEEPER", f"{zookeeper}/{apart}")
    settings.cache_clear()
    yield bare_home.home
    settings.cache_clear()


def lake(*words: str) -> str:
    """What a command prints; its error is raised."""
    done = CliRunner().invoke(serving, [*words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def refused(*words: str) -> str:
    with pytest.raises(LakeError) as caught:
        lake(*words)
    return caught.value.problem


def push(folder: Path, rows: int) -> str:
    """The id of its entry."""
    pq.write_table(pa.table({"n": range(rows)}), file := folder / "rows.parquet")
    told = lake("push", "members", "--file", str(file))
    assert told.startswith(f"members: {rows} rows in 1 segment, 0.0 MB.\nTo go back: lake serving revert members ")
    return told.split()[-1]


def test_segments_in_an_object_store(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server() as address:
        bucket = made_bucket(address)
        for name, value in (("ENDPOINT", address), ("ACCESS_KEY_ID", KEY_ID), ("SECRET_ACCESS_KEY", KEY)):
            monkeypatch.setenv(f"LAKE_CATALOG__S3__{name}", value)
        monkeypatch.setenv("LAKE_SERVING_FOLDER", "s3://lake/serving")
        monkeypatch.setenv("LAKE_SERVING_RETAIN_HOURS", "0")
        settings.cache_clear()

        def stored() -> list[str]:
            return [entry["Key"] for entry in bucket.list_objects(Bucket="lake")["Contents"] if entry["Size"]]

        push(tmp_path, 3)
        second = push(tmp_path, 5)
        newest, oldest = json.loads(lake("lineage", "members", "--json"))
        keys = [f"serving/members/{entry['segments_to'][0]}.parquet" for entry in (oldest, newest)]
        assert sorted(stored()) == sorted(keys)
        assert lake("query", "members", COUNT).split() == ["n", "5"]
        assert lake("verify") == "✓ members: 2 segments as pushed\n"
        lake("revert", "members", second)
        assert (stored(), lake("query", "members", COUNT).split()) == (keys[:1], ["n", "3"])
        push(tmp_path, 7)
        push(tmp_path, 9)  # the third snapshot: the first one, of 3 rows, goes
        assert (len(stored()), keys[0] in stored()) == (2, False)
        bucket.put_object(Bucket="lake", Key="serving/members/left_by_hand.parquet", Body=b"no segment")
        assert lake("clean-up", "members") == "members: 0 segments deleted.\n"
        assert (len(stored()), lake("query", "members", COUNT).split()) == (2, ["n", "9"])
        pq.write_table(pa.table({"name": ["x"]}), other := tmp_path / "other.parquet")
        assert "n is gone, name is new" in refused("push", "members", "--file", str(other))
        newest = json.loads(lake("lineage", "members", "--json"))[0]
        key = f"serving/members/{newest['segments_to'][0]}.parquet"
        bucket.put_object(Bucket="lake", Key=key, Body=b"rot")
        assert "is gone, or damaged" in refused("query", "members", COUNT)
        bucket.delete_object(Bucket="lake", Key=key)
        assert "is gone, or damaged" in refused("query", "members", COUNT)
        push(tmp_path, 4)
        assert lake("query", "members", COUNT).split() == ["n", "4"]
    for words in (("query", "members", COUNT), ("verify",)):
        assert refused(*words).startswith("The object store of s3://lake/serving does not answer, or refuses access: ")
    assert not (home / "serving").exists()


def test_pushes_are_queried_listed_and_taken_back(home: Path, tmp_path: Path) -> None:
    first, second = push(tmp_path, 3), push(tmp_path, 5)
    assert lake("query", "members", COUNT).split() == ["n", "5"]
    assert json.loads(lake("query", "members", COUNT, "--json"))["rows"] == [[5]]
    assert lake("list").splitlines()[1].split()[:3] == ["members", "1", "5"]
    assert lake("lineage", "members").splitlines()[2].rstrip().endswith("with --later")
    newest, oldest = json.loads(lake("lineage", "members", "--json"))
    assert (newest["id"], oldest["id"], newest["can_revert"], oldest["can_revert"]) == (second, first, True, False)
    assert second in lake("lineage", "members").splitlines()[1]
    assert refused("delete", "members", newest["segments_to"][0]).endswith("names them.")
    assert refused("delete", "members", "typo") == "members has no segment 'typo'."
    told = lake("revert", "members", second)
    before, sight = told.splitlines()
    assert before == f"members is as it was before {second}; 1 segment no longer used."
    assert sight.startswith("Readers of members see 3 rows, as of ")
    assert lake("query", "members", COUNT).split() == ["n", "3"]
    assert refused("revert", "members", second) == f"Entry {second} of members was reverted."
    assert "Readers of members see nothing" in lake("revert", "members", first)
    push(tmp_path, 3)
    assert lake("clean-up", "members") == "members: 0 segments deleted.\n"
    left = home / "serving" / "members" / "left_by_hand.parquet"
    left.write_bytes(b"no segment")
    assert lake("delete", "members", left.stem) == "members: 1 segment deleted.\n"
    assert not left.exists()


def test_several_files_are_one_push_and_other_columns_need_a_word(home: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.parquet" for name in ("a", "b", "other")]
    for number, file in enumerate(files[:2]):
        pq.write_table(pa.table({"n": range(number + 2)}), file)
    pq.write_table(pa.table({"m": ["x"]}), files[2])
    a, b, other = (str(file) for file in files)
    assert lake("push", "orders-eu", "--file", a, "--file", b).startswith("orders-eu: 5 rows in 1 segment")
    assert refused("push", "orders-eu", "--file", a, "--file", other).startswith(f"{other} has other columns than {a}")
    assert refused("push", "orders-eu", "--file", other).endswith("n is gone, m is new.")
    assert lake("query", "orders-eu", 'select count(*) from "orders-eu"').split() == ["count_star()", "5"]
    assert [problem.target for problem in failed_pushes()] == ["orders-eu"]
    assert lake("push", "orders-eu", "--file", other, "--new-schema").startswith("orders-eu: 1 rows")
    assert failed_pushes() == []
    pq.write_table(pa.table({}), files[0])
    assert refused("push", "orders-eu", "--file", a) == "The rows have no column: no query could read them."
    files[0].write_bytes(b"no Parquet")
    assert refused("push", "orders-eu", "--file", a).startswith(f"{a} cannot be read as Parquet")
    assert [problem.target for problem in failed_pushes()] == ["orders-eu"]


def test_what_is_not_there_is_named(home: Path) -> None:
    assert lake("list", "--json") == "[]\n"
    assert refused("query", "members", COUNT) == "No table 'members' is served."
    assert refused("query", "members", "select 1") == "The query does not read members."
    assert refused("lineage", "members") == "No table 'members' is served."
    assert refused("revert", "members", "none") == "The lineage of members has no entry none."
    assert refused("revert", "members", "none", "--with", "x").startswith("--with is not TABLE=ID")
    assert refused("push", "nothing").startswith("No table of the lake is served as 'nothing'")


def test_damaged_segments_are_named_and_restored_from_a_copy(home: Path, tmp_path: Path) -> None:
    push(tmp_path, 3)
    assert lake("verify") == "✓ members: 1 segment as pushed\n"
    (file,) = (home / "serving" / "members").iterdir()
    copytree(home / "serving", tmp_path / "copies")
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)
    assert refused("query", "members", COUNT).startswith(f"The file of segment {file.stem} of members is gone, or dam")
    for options in ([], ["--repair"], ["--json"]):  # the rows came from a file, which is not known any more
        done = CliRunner().invoke(serving, ["verify", "members", *options], catch_exceptions=False)
        assert done.exit_code == 1
        assert file.stem in done.output
    assert refused("verify", "--copies", str(tmp_path)) == "--copies was given without --repair."
    restored = lake("verify", "--repair", "--copies", str(tmp_path / "copies"))
    assert restored == f"✓ members: 1 segment as pushed\n  restored {file.stem}\n"
    assert lake("query", "members", COUNT).split() == ["n", "3"]
