"""A server of S3 for tests, and the settings of a home whose warehouse is on it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import SecretStr

if TYPE_CHECKING:
    from lake_assets.settings import Settings

KEY_ID, KEY = "somebody", "hidden-key"


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server of S3 without buckets."""
    from moto import backends
    from moto.server import ThreadedMotoServer

    # Half of its time it lists its own modules, at each request.
    modules = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: modules
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    # Servers of one process share their buckets, also after one of them has stopped.
    httpx.post(f"{address}/moto-api/reset").raise_for_status()
    yield address
    server.stop()


def made_bucket(address: str) -> Any:
    """A client of S3 for the server, which has a new bucket, lake."""
    import boto3

    keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": KEY}
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="lake")
    return client


def on_s3(home: Settings, address: str) -> Settings:
    """The settings with the warehouse in a new bucket."""
    made_bucket(address)
    properties = {"s3.endpoint": address, "s3.access-key-id": KEY_ID, "s3.secret-access-key": KEY}
    hidden = {name: SecretStr(value) for name, value in properties.items()}
    return home.model_copy(update={"warehouse": "s3://lake/warehouse", "catalog_properties": hidden})
