"""The configuration that Dagster's processes of `lake up` get."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from pydantic import SecretStr

from lake_assets.errors import ConfigurationError
from lake_assets.services.servers import dagster_environment, dagster_home, write_dagster_files

if TYPE_CHECKING:
    from lake_assets.settings import Settings

DATABASE = "postgresql+psycopg2://lake:hidden@db.example.com/dagster"


def test_dagster_on_postgresql_gets_the_address_by_a_variable(bare_home: Settings) -> None:
    write_dagster_files(bare_home, 4001)
    file = dagster_home(bare_home) / "dagster.yaml"
    before = yaml.safe_load(file.read_text())
    settings = bare_home.model_copy(update={"dagster_uri": SecretStr(DATABASE)})
    write_dagster_files(settings, 4001)
    written = yaml.safe_load(file.read_text())
    storage = written.pop("storage")
    assert written == before
    assert dagster_environment(settings)[storage["postgres"]["postgres_url"]["env"]] == DATABASE
    assert "hidden" not in file.read_text()  # Dagster's UI shows the file


def test_dagster_loads_code_servers_of_other_projects(bare_home: Settings) -> None:
    named = bare_home.model_copy(update={"code_locations": "flights=10.0.0.7:4000, other-one=code.example.com:1"})
    write_dagster_files(named, 4001)
    workspace = yaml.safe_load((dagster_home(named) / "workspace.yaml").read_text())
    assert [server["grpc_server"] for server in workspace["load_from"]] == [
        {"host": "127.0.0.1", "port": 4001, "location_name": "lake_assets"},
        {"host": "10.0.0.7", "port": 4000, "location_name": "flights"},
        {"host": "code.example.com", "port": 1, "location_name": "other-one"},
    ]


@pytest.mark.parametrize("wrong", ["10.0.0.7:4000", "a=b", "a=b:c", "a={x}:1", "lake_assets=10.0.0.7:4000"])
def test_a_wrong_code_server_is_named(bare_home: Settings, wrong: str) -> None:
    named = bare_home.model_copy(update={"code_locations": f"flights=host:1,{wrong}"})
    with pytest.raises(ConfigurationError) as error:
        write_dagster_files(named, 4001)
    assert repr(wrong) in str(error.value)
