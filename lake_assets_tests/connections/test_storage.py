"""A folder that several write to, and an object store whose server does not answer, or only now and then."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import gettempdir
from threading import Thread
from typing import ClassVar

import pytest

from lake_assets.connections.storage import Folder, ObjectStore, storage_at
from lake_assets.errors import ServiceError
from lake_assets.settings import Settings
from lake_assets_tests.object_store import KEY, KEY_ID, made_bucket


class Answering(BaseHTTPRequestHandler):
    """Has each object; but breaks off, or is overloaded, as often as `faults` says."""

    faults: ClassVar[list[int]] = []
    asked: ClassVar = 0

    def do_HEAD(self) -> None:
        Answering.asked += 1
        status = Answering.faults.pop() if Answering.faults else 200
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", "1")
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 10:00:00 GMT")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    server.server_activate()
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield
    server.shutdown()


def test_a_silent_store_is_asked_once_and_again_after_some_seconds(bare_home: Settings, tmp_path: Path) -> None:
    now = 0.0
    Answering.faults, Answering.asked = [], 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering, bind_and_activate=False) as server:
        server.server_bind()  # the port is taken, and nobody listens
        url = f"s3://lake/zone?endpoint=http://127.0.0.1:{server.server_port}&access-key-id=any&secret-access-key=any"
        found = storage_at(bare_home, url, scratch=tmp_path)
        assert isinstance(found, ObjectStore)
        store = replace(found, server=replace(found.server, clock=lambda: now))
        with pytest.raises(ServiceError, match="does not answer"):
            store.exists("x")
        with serving(server):
            now = 4.9
            with pytest.raises(ServiceError, match="does not answer"):
                store.files()
            assert Answering.asked == 0
            now = 5.1
            Answering.faults = [503, 0]
            assert store.exists("x")
            assert not Answering.faults
            Answering.faults = [503, 0]  # of a store that has answered
            assert store.exists("x")
            assert not Answering.faults


def test_a_full_temporary_folder_is_no_fault_of_the_store(bare_home: Settings, s3: str, tmp_path: Path) -> None:
    """A limit on the size of files stands for it."""
    url = f"s3://lake/zone?endpoint={s3}&region=us-east-1&access-key-id={KEY_ID}&secret-access-key={KEY}"
    store = storage_at(bare_home, url, scratch=tmp_path)
    bucket = made_bucket(s3)
    for name, length in (("small", 1 << 12), ("large", 1 << 20)):
        bucket.put_object(Bucket="lake", Key=f"zone/{name}", Body=bytes(length))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, before[1]))
    try:
        for name in ("small", "large"):
            with pytest.raises(ServiceError) as refused:
                store.open(name)
            assert refused.value.problem == f"The temporary folder {gettempdir()} cannot be written: File too large."
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_name_that_several_give_at_the_same_time_has_the_whole_file_of_one(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "folder")
    contents = [bytes([65 + number]) * (1 << 20) for number in range(4)]

    def put(number: int) -> None:
        source = tmp_path / str(number)
        source.write_bytes(contents[number])
        for _ in range(20):
            folder.put("of/all", source)
            with folder.open("of/all") as found:
                assert found.read() in contents

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(4)))
    assert [stored.name for stored in folder.files("of")] == ["all"]
