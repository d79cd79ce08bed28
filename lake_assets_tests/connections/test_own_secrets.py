"""Another user of the machine can connect to loopback, but cannot read the data directory: he gets no Spark session."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import grpc
import pytest

from lake_assets.connections.addresses import SPARK_TOKEN, create_spark_token, spark_address, spark_token
from lake_assets.connections.spark import safe_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_token_is_generated_once_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert spark_token(home) is None
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create_spark_token, [home] * 8))
    token = spark_token(home)
    assert token is not None
    assert len(token) >= 40
    create_spark_token(home)
    assert spark_token(home) == token
    assert [file.name for file in home.iterdir()] == [SPARK_TOKEN]
    assert stat.S_IMODE((home / SPARK_TOKEN).stat().st_mode) == 0o600


def test_an_address_has_the_token_if_there_is_one(tmp_path: Path) -> None:
    """A server that a version before has started has none."""
    assert spark_address(tmp_path, 15002) == "sc://127.0.0.1:15002"
    (tmp_path / SPARK_TOKEN).write_text("sesame")
    assert spark_address(tmp_path, 15002) == "sc://localhost:15002/;token=sesame"
    assert safe_remote("sc://localhost:15002/;token=sesame") == "sc://localhost:15002"


def answer(server: SplitResult, *metadata: tuple[str, str]) -> grpc.StatusCode:
    """The status of an empty request, which the server can only refuse."""
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        ask = channel.unary_unary("/spark.connect.SparkConnectService/Config")
        with pytest.raises(grpc.RpcError) as caught:
            ask(b"", metadata=metadata, timeout=300, wait_for_ready=True)
        return caught.value.code()


def test_the_server_answers_only_who_has_its_token(spark_server: str) -> None:
    server = urlsplit(spark_server)
    token = server.path.partition("token=")[2]
    assert token
    assert answer(server) is grpc.StatusCode.UNAUTHENTICATED
    assert answer(server, ("authorization", "Bearer guessed")) is grpc.StatusCode.UNAUTHENTICATED
    assert answer(server, ("authorization", f"Bearer {token}")) is not grpc.StatusCode.UNAUTHENTICATED


def test_a_session_is_opened_with_the_token_of_the_address(spark: SparkSession) -> None:
    assert spark.range(3).count() == 3
