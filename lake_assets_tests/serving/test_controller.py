"""The calls of Pinot's controller, which `lake serving serve` answers: over HTTP, by our client and by Pinot's own."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError
from pydantic import SecretStr
from typer.testing import CliRunner

from lake_assets.cli.serving import serving as commands
from lake_assets.connections.spark import spark_home
from lake_assets.errors import LakeError
from lake_assets.services.service import java_command
from lake_assets.serving.http import endpoint
from lake_assets.serving.served_tables import open_serving
from lake_assets.settings import PROJECT, Settings, settings
from lake_assets_tests.serving.scenario import World, now, snapshot

TOKEN = "sesame"
QUOTA = 100_000


@pytest.fixture
def address(served: World) -> Iterator[str]:
    """A server of the endpoint, whose table has a quota."""
    opened = open_serving(served.zk, Settings(serving_folder=served.files.folder), clock=now)
    app = endpoint(opened, token=SecretStr(TOKEN), quotas={served.table: QUOTA})
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
        yield client


def parquet(folder: Path, name: str, rows: pa.Table) -> Path:
    pq.write_table(rows, file := folder / f"{name}.parquet")
    return file


def upload(http: httpx.Client, table: str, file: Path, **parameters: str) -> httpx.Response:
    return http.post(
        "/v2/segments",
        params={"tableName": table, "tableType": "OFFLINE", **parameters},
        files={file.stem: (file.name, file.read_bytes())},
    )


def replace(http: httpx.Client, verb: str, table: str, body: Any = None, **parameters: str) -> httpx.Response:
    path = f"/segments/{table}/{verb}ReplaceSegments"
    return http.post(path, params={"type": "OFFLINE", **parameters}, json=body)


def test_a_replacement_call_by_call(http: httpx.Client, served: World, tmp_path: Path) -> None:
    table = served.table
    assert http.get(f"/segments/{table}").json() == [{"OFFLINE": []}]
    assert http.get(f"/segments/{table}/lineage", params={"type": "OFFLINE"}).status_code == 404
    first, second = (parquet(tmp_path, f"{table}_{number}", snapshot(number)) for number in (1, 2))
    early = upload(http, table, first)
    assert early.status_code == 500
    assert early.json()["code"] == 500
    assert "startReplaceSegments" in early.json()["error"]

    begun = replace(http, "start", table, {"segmentsFrom": [], "segmentsTo": [first.stem]}).json()
    assert list(begun) == ["segmentLineageEntryId"]
    entry_id = begun["segmentLineageEntryId"]
    assert replace(http, "end", table, segmentLineageEntryId=entry_id).status_code == 500  # nothing was uploaded
    done = upload(http, f"{table}_OFFLINE", first)
    assert done.json() == {"status": f"Successfully uploaded segment: {first.stem} of table: {table}_OFFLINE"}
    assert upload(http, table, first).status_code == 409
    assert http.get(f"/segments/{table}", params={"excludeReplacedSegments": "true"}).json() == [{"OFFLINE": []}]
    ended = replace(http, "end", table, segmentLineageEntryId=entry_id, cleanup="true")
    assert (ended.status_code, served.seen()) == (200, [1])

    body = {"segmentsFrom": [first.stem], "segmentsTo": [second.stem]}
    newer = replace(http, "start", f"{table}_OFFLINE", body).json()["segmentLineageEntryId"]
    assert replace(http, "start", table, body).status_code == 500
    upload(http, table, second)
    assert replace(http, "end", table, segmentLineageEntryId=newer).status_code == 200
    assert served.seen() == [2]
    every = http.get(f"/segments/{table}", params={"type": "OFFLINE"}).json()
    assert every == [{"OFFLINE": [first.stem, second.stem]}]
    assert http.get(f"/segments/{table}", params={"excludeReplacedSegments": "true"}).json() == [
        {"OFFLINE": [second.stem]}
    ]
    lineage = http.get(f"/segments/{table}/lineage", params={"type": "OFFLINE"}).json()
    assert lineage["tableNameWithType"] == f"{table}_OFFLINE"
    assert list(lineage["lineageEntries"]) == [entry_id, newer]
    entry = lineage["lineageEntries"][newer]
    assert {**entry, "timestamp": 0} == {**body, "state": "COMPLETED", "timestamp": 0}

    assert http.delete(f"/segments/{table}/{first.stem}").status_code == 500  # the lineage needs it
    assert replace(http, "revert", table, segmentLineageEntryId=newer).status_code == 200
    assert served.seen() == [1]
    assert replace(http, "revert", table, segmentLineageEntryId=newer).status_code == 500
    left = served.files.path(table, "left_by_hand")
    left.write_bytes(b"no segment")
    assert http.delete(f"/segments/{table}/left_by_hand").json() == {"status": "Segment deleted"}
    assert http.delete(f"/segments/{table}/left_by_hand").status_code == 404
    assert not left.exists()


def test_a_start_by_force_takes_what_is_in_progress(http: httpx.Client, served: World, tmp_path: Path) -> None:
    table, file = served.table, parquet(tmp_path, f"{served.table}_1", snapshot(1))
    dead = replace(http, "start", table, {"segmentsTo": [file.stem]}).json()["segmentLineageEntryId"]
    upload(http, table, file)
    assert replace(http, "revert", table, segmentLineageEntryId=dead).status_code == 500  # it may still run
    body = {"segmentsFrom": [], "segmentsTo": [file.stem]}
    begun = replace(http, "start", table, body, forceCleanup="true").json()["segmentLineageEntryId"]
    assert replace(http, "end", table, segmentLineageEntryId=begun).status_code == 500  # not the attempt's old upload
    assert upload(http, table, file).status_code == 200
    assert replace(http, "end", table, segmentLineageEntryId=begun).status_code == 200
    assert served.seen() == [1]


def test_what_pinot_refuses_is_refused(http: httpx.Client, served: World, tmp_path: Path) -> None:
    table = served.table
    served.push(1)
    for kind in ("REALTIME", "", "OTHER"):
        assert http.get(f"/segments/{table}/lineage", params={"type": kind}).status_code == 400
    assert http.get(f"/segments/{table}_REALTIME").status_code == 400
    assert replace(http, "start", table, {}).status_code == 500  # neither a source nor a target
    assert replace(http, "start", "a b", {"segmentsTo": ["x"]}).status_code == 400
    assert replace(http, "end", table, segmentLineageEntryId="none").status_code == 500
    names = [f"{table}_text", f"{table}_other", f"{table}_large"]
    routed = http.get(f"/segments/{table}", params={"excludeReplacedSegments": "true"}).json()[0]["OFFLINE"]
    assert replace(http, "start", table, {"segmentsFrom": routed, "segmentsTo": names}).status_code == 200
    text = tmp_path / f"{names[0]}.parquet"
    text.write_bytes(b"no Parquet")
    assert "is not Parquet" in upload(http, table, text).json()["problem"]
    bare = parquet(tmp_path, names[0], pa.table({}))
    assert "no column" in upload(http, table, bare, newSchema="true").json()["problem"]
    other = parquet(tmp_path, names[1], pa.table({"name": ["x"]}))
    assert "number is gone, name is new" in upload(http, table, other).json()["problem"]
    assert upload(http, table, other, newSchema="true").status_code == 200
    numbers = pa.array([int.from_bytes(os.urandom(7), "big") for _ in range(2 * QUOTA // 7)], pa.int64())
    large = parquet(tmp_path, names[2], pa.table({"id": numbers, "number": numbers}))
    assert upload(http, table, large).status_code == 403
    form = http.post("/v2/segments", params={"tableName": table}, content=b"PAR1")
    assert "no multipart form" in form.json()["problem"]
    unknown = http.post(f"/segments/{table}/replace/it")
    assert (unknown.status_code, unknown.json()["code"], unknown.json()["problem"]) == (404, 404, "Not Found")
    long = "x" * 250  # too long for a file with a suffix
    assert replace(http, "start", table, {"segmentsTo": [long]}).status_code == 200
    rows = parquet(tmp_path, "rows", snapshot(2)).read_bytes()
    stopped = http.post("/v2/segments", params={"tableName": table}, files={long: (f"{long}.parquet", rows)})
    assert (stopped.status_code, stopped.json()["code"]) == (503, 503)
    assert f"{table} could not be written to {served.files.folder}" in stopped.json()["problem"]
    assert served.seen() == [1]


@pytest.mark.parametrize(
    ("columns", "why"),
    [({"a": ["x"]}, "a is String instead of INT64"), ({"b": [1]}, "a is gone, b is new"), ({"a": [None]}, "a is Null")],
)
def test_the_segments_of_one_replacement_have_the_same_columns(
    http: httpx.Client, served: World, tmp_path: Path, columns: dict[str, list[Any]], why: str
) -> None:
    table = served.table
    started = replace(http, "start", table, {"segmentsFrom": [], "segmentsTo": ["one", "two"]}).json()
    assert upload(http, table, parquet(tmp_path, "one", pa.table({"a": pa.array([1])}))).status_code == 200
    refused = upload(http, table, parquet(tmp_path, "two", pa.table(columns)), newSchema="true")
    assert refused.status_code == 400, refused.text
    assert f"The push of {table} has other columns than one: {why}" in refused.json()["problem"]
    assert refused.json()["remedy"] == "Give all segments of a push the same columns."
    assert served.stored() == 1
    assert upload(http, table, parquet(tmp_path, "two", pa.table({"a": pa.array([2])}))).status_code == 200
    assert replace(http, "end", table, **started).status_code == 200
    assert http.post("/query", json={"sql": f"select sum(a) from {table}"}).json()["rows"] == [["3"]]


def test_a_call_that_changes_needs_the_token_and_an_endpoint_that_has_one(
    http: httpx.Client, served: World, address: str
) -> None:
    body = {"segmentsFrom": [], "segmentsTo": ["x"]}
    calls = [
        ("GET", f"/segments/{served.table}"),
        ("GET", f"/segments/{served.table}/lineage?type=OFFLINE"),
        ("POST", f"/segments/{served.table}/startReplaceSegments?type=OFFLINE"),
        ("POST", "/v2/segments?tableName=t"),
        ("DELETE", f"/segments/{served.table}/x"),
    ]
    for method, path in calls:
        refused = httpx.request(method, address + path)
        assert (refused.status_code, refused.json()["code"]) == (401, 401)
    opened = open_serving(served.zk, Settings(serving_folder=served.files.folder), clock=now)
    from fastapi.testclient import TestClient

    client = TestClient(endpoint(opened), base_url="http://127.0.0.1:8090")
    refused = client.post(calls[2][1], json=body)
    assert (refused.status_code, "LAKE_SERVING_TOKEN" in refused.json()["remedy"]) == (403, True)
    assert client.get(calls[0][1]).status_code == 200
    assert served.entries == []


def test_the_commands_work_by_the_controller(
    served: World, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_HOME", str(tmp_path / "nothing here"))
    monkeypatch.setenv("LAKE_PINOT_CONTROLLER", address)
    monkeypatch.setenv("LAKE_PINOT_AUTHORIZATION", f"Bearer {TOKEN}\n")  # as a file of secrets has it
    settings.cache_clear()
    try:

        def lake(*words: str | Path) -> str:
            return CliRunner().invoke(commands, [*map(str, words)], catch_exceptions=False).output

        files = [word for n in (1, 2) for word in ("--file", parquet(tmp_path, f"rows{n}", snapshot(1, 20)))]
        assert lake("push", served.table, *files).startswith(f"{served.table}: 2 segments instead of 0.")
        lake("push", served.table, "--file", parquet(tmp_path, "rows", snapshot(2)))
        assert served.seen() == [2]
        newest, oldest = json.loads(lake("lineage", served.table, "--json"))
        assert (newest["can_revert"], oldest["can_revert"], oldest["can_roll_back"]) == (True, False, True)
        told = lake("revert", served.table, newest["id"], "--controller", address)
        assert told.splitlines()[0] == f"{served.table} is as it was before {newest['id']}."
        assert told.splitlines()[1].startswith(f"Readers of {served.table} see 2 segments: ")
        with pytest.raises(LakeError, match="other columns"):
            lake("push", served.table, "--file", parquet(tmp_path, "rows", pa.table({"x": [1]})))
        assert [entry["state"] for entry in json.loads(lake("lineage", served.table, "--json"))][:2] == [
            "REVERTED",
            "REVERTED",
        ]
        with pytest.raises(LakeError, match="needs its files"):
            lake("push", served.table)
    finally:
        settings.cache_clear()


def test_pinots_own_client_pushes_lists_and_reverts(served: World, address: str, tmp_path: Path) -> None:
    jars = PROJECT / ".venv" / "jars-pinot"
    port = launch_gateway(
        jarpath=str(next((spark_home() / "jars").glob("py4j-*.jar"))),
        classpath=str(jars / "*"),
        javaopts=["-XX:TieredStopAtLevel=1", "-Xmx256m"],
        java_path=java_command(),
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        java, pinot = gateway.jvm.java, gateway.jvm.org.apache.pinot
        client = pinot.common.utils.FileUploadDownloadClient()
        of_client = pinot.common.utils.FileUploadDownloadClient
        auth = pinot.common.auth.StaticTokenAuthProvider(f"Bearer {TOKEN}")
        offline = pinot.spi.config.table.TableType.OFFLINE
        uri, table = java.net.URI(address), served.table

        def push(number: int, sources: list[str]) -> str:
            name = f"{table}_{number}"
            body = pinot.common.restlet.resources.StartReplaceSegmentsRequest(sources, [name])
            started = client.startReplaceSegments(
                of_client.getStartReplaceSegmentsURI(uri, table, "OFFLINE", False), body, auth
            )
            entry_id = json.loads(started.getResponse())["segmentLineageEntryId"]
            file = java.io.File(str(parquet(tmp_path, name, snapshot(number))))
            headers = gateway.jvm.java.util.ArrayList()
            headers.add(gateway.jvm.org.apache.hc.core5.http.message.BasicHeader("Authorization", f"Bearer {TOKEN}"))
            client.uploadSegment(of_client.getUploadSegmentURI(uri), name, file, headers, table, offline)
            end = of_client.getEndReplaceSegmentsURI(uri, table, "OFFLINE", entry_id, False)
            assert client.endReplaceSegments(end, 60_000, None, auth).getStatusCode() == 200
            return str(entry_id)

        push(1, [])
        newest = push(2, [f"{table}_1"])
        assert served.seen() == [2]
        listed = client.getSegments(uri, table, offline, True, auth)
        assert {str(kind): list(names) for kind, names in listed.items()} == {"OFFLINE": [f"{table}_2"]}
        stored = pinot.common.lineage.SegmentLineage(f"{table}_OFFLINE")
        answer = httpx.get(
            f"{address}/segments/{table}/lineage?type=OFFLINE", headers={"Authorization": f"Bearer {TOKEN}"}
        ).json()
        for entry_id, entry in answer["lineageEntries"].items():
            state = getattr(pinot.common.lineage.LineageEntryState, entry["state"])
            stored.addLineageEntry(
                entry_id,
                pinot.common.lineage.LineageEntry(
                    entry["segmentsFrom"], entry["segmentsTo"], state, entry["timestamp"]
                ),
            )
        assert json.loads(stored.toJsonObject().toString()) == answer

        revert = of_client.getRevertReplaceSegmentsURI(uri, table, "OFFLINE", newest, False)
        assert client.revertReplaceSegments(revert, auth).getStatusCode() == 200
        assert served.seen() == [1]
        with pytest.raises(Py4JJavaError, match="was reverted"):
            client.revertReplaceSegments(revert, auth)
    finally:
        gateway.shutdown()
