"""The properties of clients reach the processes that `lake up` starts, in their environment and nowhere else. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import SecretStr

from lake_assets.services.lifecycle import PORT_NAMES, services_of
from lake_assets.services.servers import dagster_environment
from lake_assets.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from lake_assets.services.service import Service

CATALOG = {"s3.secret-access-key": SecretStr("hidden")}
KAFKA = {"sasl.password": SecretStr("hidden")}
PORTS = dict.fromkeys(PORT_NAMES, 1)


def code_server(settings: Settings) -> Service:
    (found,) = [service for service in services_of(settings, PORTS) if service.name == "code"]
    return found


def test_a_process_gets_the_properties_without_their_masks(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, catalog_properties=CATALOG)
    assert dagster_environment(settings)["LAKE_CATALOG_PROPERTIES"] == '{"s3.secret-access-key": "hidden"}'
    for service in services_of(settings, PORTS):
        assert "hidden" not in str((service.command, service.files))


def test_the_broker_that_is_started_here_gets_no_login(tmp_path: Path) -> None:
    here = Settings(home=tmp_path, kafka=None, kafka_properties=KAFKA)
    assert code_server(here).environment["LAKE_KAFKA_PROPERTIES"] == "{}"
    there = here.model_copy(update={"kafka": "far:9093"})
    assert code_server(there).environment["LAKE_KAFKA_PROPERTIES"] == '{"sasl.password": "hidden"}'
