"""The properties of the catalog and its files, for pyiceberg and for Spark.

Both know the properties of Iceberg's own pages, such as `s3.endpoint`, under the same names. Where they differ, a
property is given once, under either name, and each client gets the one that it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lake_assets.errors import ConfigurationError
from lake_assets.passed_properties import CATALOG

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lake_assets.settings import Settings

ENDPOINT = "s3.endpoint"
PATH_STYLE = "s3.path-style-access"
"""Spark's name: whether the bucket is in the path of an address, and not in its host name."""

VIRTUAL_HOSTS = "s3.force-virtual-addressing"
"""The opposite, as pyiceberg names it."""

REGION_OF_PYICEBERG = "s3.region"
REGION_OF_SPARK = "client.region"
DEFAULT_REGION = "us-east-1"
"""The region of S3 servers other than Amazon's. Without one, pyiceberg asks Amazon where the bucket is."""

S3_SCHEMES = ("s3", "s3a", "s3n")
S3_OF_SPARK = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}

S3_OF_PYICEBERG = {"py-io-impl": "lake_assets.connections.clients.small_uploads.SmallUploadsIO"}

PATIENCE_OF_SPARK = {"s3.retry.num-retries": "3", "s3.retry.min-wait-ms": "500", "s3.retry.max-wait-ms": "5000"}
PATIENCE_OF_PYICEBERG = {"s3.connect-timeout": "5", "s3.request-timeout": "30"}
"""Defaults: with their own, Spark takes minutes until it reports that a server cannot be reached."""

OWN = {
    "cache-enabled": "Spark always reads the present head of a table.",
    "catalog-impl": "Set LAKE_CATALOG_URI: its scheme says which catalog it is.",
    "jdbc.schema-version": "Spark and pyiceberg share version V1.",
    "type": "Set LAKE_CATALOG_URI: its scheme says which catalog it is.",
    "uri": "Set LAKE_CATALOG_URI.",
    "warehouse": "Set LAKE_WAREHOUSE.",
}
"""Properties that the engine sets itself → what to do instead."""


def is_on_s3(settings: Settings) -> bool:
    """Return whether the warehouse is on S3."""
    return urlsplit(settings.warehouse_address).scheme in S3_SCHEMES


def given_properties(settings: Settings) -> dict[str, str]:
    """Return the properties that the settings pass on, in plain text.

    Raises:
        ConfigurationError: One of them is set by the engine itself.
    """
    found = {}
    for name, value in settings.catalog_properties.items():
        if name in OWN:
            raise ConfigurationError(
                f"{CATALOG.variable_of(name)} sets {name}, which the engine sets itself.",
                remedy=f"Remove it. {OWN[name]}",
            )
        found[name] = value.get_secret_value()
    return found


def pyiceberg_properties(settings: Settings, *, chooses_io: bool) -> dict[str, str]:
    """Return the properties that pyiceberg gets in addition to the type, the address and the warehouse.

    Args:
        settings: The settings.
        chooses_io: Whether the catalog itself chooses how files are read, as a REST catalog does.
    """
    found = given_properties(settings)
    region = _region(found)
    if region is not None:
        found.setdefault(REGION_OF_PYICEBERG, region)
    path_style = _path_style(found)
    if path_style is not None:
        found[VIRTUAL_HOSTS] = _text(not path_style)
    if not is_on_s3(settings):
        return found
    return {**({} if chooses_io else S3_OF_PYICEBERG), **PATIENCE_OF_PYICEBERG, **found}


def spark_properties(settings: Settings, *, chooses_io: bool) -> dict[str, str]:
    """Return the properties that Spark's catalog gets in addition to the type, the address and the warehouse.

    Args:
        settings: The settings.
        chooses_io: Whether the catalog itself chooses how files are read, as a REST catalog does.
    """
    found = given_properties(settings)
    region = _region(found)
    if region is not None:
        found.setdefault(REGION_OF_SPARK, region)
    path_style = _path_style(found)
    if path_style is not None:
        found[PATH_STYLE] = _text(path_style)
    if chooses_io or not is_on_s3(settings):
        return found
    return {**S3_OF_SPARK, **PATIENCE_OF_SPARK, **found}


def _region(given: Mapping[str, str]) -> str | None:
    default = DEFAULT_REGION if ENDPOINT in given else None
    return given.get(REGION_OF_SPARK) or given.get(REGION_OF_PYICEBERG) or default


def _path_style(given: Mapping[str, str]) -> bool | None:
    """Return whether buckets are in the path; None to leave it to the clients, which then agree."""
    if PATH_STYLE in given:
        return _is_true(given[PATH_STYLE])
    if VIRTUAL_HOSTS in given:
        return not _is_true(given[VIRTUAL_HOSTS])
    return True if ENDPOINT in given else None


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _text(value: bool) -> str:
    return str(value).lower()
