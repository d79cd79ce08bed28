"""One property, said once, reaches Spark and pyiceberg under the name that each of them reads. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from lake_assets.connections.catalog import (
    jdbc_properties,
    pyiceberg_properties,
    python_address,
    safe_address,
    spark_catalog_conf,
    spark_properties,
)
from lake_assets.errors import ConfigurationError
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

KEYS = {"s3.access-key-id": "me", "s3.secret-access-key": "hidden"}


def given(home: Path, warehouse: str | None = "s3://lake/w", **properties: str) -> Settings:
    named = {name.replace("__", ".").replace("_", "-"): SecretStr(value) for name, value in properties.items()}
    keys = {name: SecretStr(value) for name, value in KEYS.items()}
    return Settings(home=home, warehouse=warehouse, catalog_properties={**keys, **named})


def test_an_endpoint_is_all_that_a_server_of_s3_needs_beside_its_keys(tmp_path: Path) -> None:
    settings = given(tmp_path, s3__endpoint="http://s3:9000")
    assert pyiceberg_properties(settings, chooses_io=False) == {
        **KEYS,
        "s3.endpoint": "http://s3:9000",
        "s3.region": "us-east-1",
        "s3.force-virtual-addressing": "false",
        "py-io-impl": "lake_assets.connections.small_uploads.SmallUploadsIO",
        "s3.connect-timeout": "5",
        "s3.request-timeout": "30",
    }
    assert spark_properties(settings, chooses_io=False) == {
        **KEYS,
        "s3.endpoint": "http://s3:9000",
        "client.region": "us-east-1",
        "s3.path-style-access": "true",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.retry.num-retries": "3",
        "s3.retry.min-wait-ms": "500",
        "s3.retry.max-wait-ms": "5000",
    }


@pytest.mark.parametrize("name", ["s3__region", "client__region"])
def test_a_region_is_said_under_either_name(tmp_path: Path, name: str) -> None:
    settings = given(tmp_path, **{name: "eu-west-1"})
    assert pyiceberg_properties(settings, chooses_io=False)["s3.region"] == "eu-west-1"
    assert spark_properties(settings, chooses_io=False)["client.region"] == "eu-west-1"


def test_without_an_endpoint_the_clients_use_those_of_amazon(tmp_path: Path) -> None:
    settings = given(tmp_path)
    both = {*pyiceberg_properties(settings, chooses_io=False), *spark_properties(settings, chooses_io=False)}
    assert both.isdisjoint({"s3.path-style-access", "s3.force-virtual-addressing", "s3.region", "client.region"})


@pytest.mark.parametrize(
    ("name", "value"), [("s3__path_style_access", "false"), ("s3__force_virtual_addressing", "True")]
)
def test_the_style_of_addresses_is_said_under_either_name(tmp_path: Path, name: str, value: str) -> None:
    settings = given(tmp_path, s3__endpoint="http://s3", **{name: value})
    assert pyiceberg_properties(settings, chooses_io=False)["s3.force-virtual-addressing"] == "true"
    assert spark_properties(settings, chooses_io=False)["s3.path-style-access"] == "false"


def test_what_is_given_is_not_replaced_and_other_places_get_nothing_of_s3(tmp_path: Path) -> None:
    settings = given(tmp_path, io_impl="Mine", s3__connect_timeout="1")
    assert spark_properties(settings, chooses_io=False)["io-impl"] == "Mine"
    assert pyiceberg_properties(settings, chooses_io=False)["s3.connect-timeout"] == "1"
    assert "io-impl" not in spark_properties(given(tmp_path), chooses_io=True)
    assert "py-io-impl" not in pyiceberg_properties(given(tmp_path), chooses_io=True)
    local = Settings(home=tmp_path)
    assert pyiceberg_properties(local, chooses_io=False) == spark_properties(local, chooses_io=False) == {}


@pytest.mark.parametrize(("name", "variable"), [("uri", "URI"), ("cache_enabled", "CACHE_ENABLED")])
def test_what_the_engine_sets_is_refused_with_the_variable(tmp_path: Path, name: str, variable: str) -> None:
    with pytest.raises(ConfigurationError, match=f"LAKE_CATALOG__{variable} sets "):
        spark_catalog_conf(given(tmp_path, **{name: "x"}))


def test_an_address_becomes_properties_of_spark(tmp_path: Path) -> None:
    address = "postgresql://me:hidden@db:5433/lake?sslmode=require&sslpassword=hidden"
    settings = given(tmp_path, header__x="hidden").model_copy(update={"catalog_uri": address})
    conf = spark_catalog_conf(settings)
    prefix = "spark.sql.catalog.lake."
    assert conf[f"{prefix}uri"] == "jdbc:postgresql://db:5433/lake"
    assert (conf[f"{prefix}jdbc.password"], conf[f"{prefix}jdbc.sslmode"]) == ("hidden", "require")
    assert conf[f"{prefix}s3.secret-access-key"] == "hidden"


def test_an_address_is_shown_without_passwords() -> None:
    assert safe_address("postgresql://me:x1@db/lake?sslpassword=x2&sslmode=require&password=x3") == (
        "postgresql://me:***@db/lake?sslpassword=***&sslmode=require&password=***"
    )
    assert safe_address("sqlite:////home/u/catalog.db") == "sqlite:////home/u/catalog.db"


def test_an_address_without_a_driver_gets_the_installed_one() -> None:
    for given_scheme in ("postgres", "postgresql", "postgresql+psycopg2"):
        assert python_address(f"{given_scheme}://me@db/lake") == "postgresql+psycopg2://me@db/lake"
    assert python_address("postgresql+psycopg://me@db/lake") == "postgresql+psycopg://me@db/lake"


def test_a_host_may_be_a_parameter_but_not_a_socket() -> None:
    assert jdbc_properties("postgresql://me@/lake?host=db&port=5433") == {
        "uri": "jdbc:postgresql://db:5433/lake",
        "jdbc.user": "me",
    }
    with pytest.raises(ConfigurationError, match=r"names no host(.|\n)*localhost:5432"):
        jdbc_properties("postgresql+psycopg2://postgres:hidden@/lake?host=/run/postgresql")
