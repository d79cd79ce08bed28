"""A packed data directory of the version before, unpacked at another path, with its tables in a bucket."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from pyiceberg.catalog.sql import SqlCatalog

from lake_assets_tests.doors.lake_door import LakeDoor
from lake_assets_tests.object_store import KEY, KEY_ID

HOMES = Path(__file__).with_name("homes")
BUCKET = "lake"


@dataclass
class GoldenLake(LakeDoor):
    """The `lake` command on such a directory.

    Attributes:
        s3: Address of the server of S3.
    """

    s3: str = ""

    @classmethod
    def unpack(cls, name: str, folder: Path, s3: str, **environment: str) -> GoldenLake:
        """Unpack a home. environment: further variables of its commands."""
        with tarfile.open(HOMES / f"{name}.tar.xz") as packed:
            packed.extractall(folder, filter="data")
        client = boto3.client(
            "s3", endpoint_url=s3, region_name="us-east-1", aws_access_key_id=KEY_ID, aws_secret_access_key=KEY
        )
        client.create_bucket(Bucket=BUCKET)
        bucket = folder / "bucket"
        for file in bucket.rglob("*"):
            if file.is_file():
                client.put_object(Bucket=BUCKET, Key=file.relative_to(bucket).as_posix(), Body=file.read_bytes())
        modules = sorted((folder / "tables").glob("*.py"))
        variables = {
            "LAKE_WAREHOUSE": f"s3://{BUCKET}/warehouse",
            "LAKE_CATALOG__S3__ENDPOINT": s3,
            "LAKE_CATALOG__S3__REGION": "us-east-1",
            "LAKE_CATALOG__S3__ACCESS_KEY_ID": KEY_ID,
            "LAKE_CATALOG__S3__SECRET_ACCESS_KEY": KEY,
        }
        if (folder / "tables").exists():
            pipelines = [str(folder / "tables"), *(f"{module.stem}:PIPELINE" for module in modules)]
            variables["LAKE_PIPELINES"] = ",".join(pipelines)
        found = cls(folder, {**variables, **environment}, longest=1500, s3=s3)
        for module in modules:  # a YAML folder is no place to import from
            found.write(module.name, module.read_bytes())
        return found

    @property
    def catalog(self) -> SqlCatalog:
        options: dict[str, Any] = {
            "uri": f"sqlite:///{self.home / 'catalog.db'}?timeout=60",
            "s3.endpoint": self.s3,
            "s3.region": "us-east-1",
            "s3.access-key-id": KEY_ID,
            "s3.secret-access-key": KEY,
        }
        return SqlCatalog("lake", **options)
