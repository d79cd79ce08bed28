"""A variable sets one property of a client, whatever it is called, and no other variable does. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.cli.common import unknown_settings
from lake_assets.settings import CATALOG, KAFKA, home_directory, is_passed, passed_properties, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=8)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("LAKE_HOME", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_a_variable_is_named_after_its_property() -> None:
    assert passed_properties(
        {
            "LAKE_CATALOG__S3__ENDPOINT": "http://s3",
            "lake_catalog__s3__access_key_id": "me",
            "LAKE_CATALOG__IO_IMPL": "X",
            "LAKE_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
            "LAKE_KAFKA__SASL_USERNAME": "",
            "LAKE_CATALOG__S3__REGION": None,
            "LAKE_CATALOG__": "1",
            "LAKE_CATALOG_URI": "sqlite:///x",
            "LAKE_KAFKA": "host:1",
            "HOME": "/",
        }
    ) == {
        "catalog_properties": {"s3.endpoint": "http://s3", "s3.access-key-id": "me", "io-impl": "X"},
        "kafka_properties": {"security.protocol": "SASL_SSL", "sasl.username": ""},
    }
    assert not any(map(is_passed, ("LAKE_CATALOG__", "LAKE_CATALOG_URI", "LAKE_KAFKA", "LAKE_KAFKAA__X")))


@given(st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_every_property_of_words_can_be_set(name: list[list[str]]) -> None:
    of_catalog = ".".join("-".join(words) for words in name)
    assert CATALOG.property_of(CATALOG.variable_of(of_catalog)) == of_catalog
    of_kafka = ".".join(word for words in name for word in words)
    assert KAFKA.property_of(KAFKA.variable_of(of_kafka)) == of_kafka


def test_settings_have_the_properties_of_both_places_and_hide_them(monkeypatch: pytest.MonkeyPatch) -> None:
    file = home_directory() / "lake.env"
    file.touch(mode=0o600)
    file.write_text("LAKE_CATALOG__S3__REGION=eu-1\nLAKE_CATALOG__S3__ENDPOINT=file\n")
    monkeypatch.setenv("LAKE_CATALOG__S3__ENDPOINT", "http://s3")
    monkeypatch.setenv("LAKE_CATALOG_PROPERTIES", '{"s3.endpoint": "json", "Header.X": "hidden"}')
    monkeypatch.setenv("LAKE_KAFKA__SASL_PASSWORD", "hidden")
    found = settings()
    plain = {name: value.get_secret_value() for name, value in found.catalog_properties.items()}
    assert plain == {"s3.endpoint": "http://s3", "s3.region": "eu-1", "Header.X": "hidden"}
    assert {name: value.get_secret_value() for name, value in found.kafka_properties.items()} == {
        "sasl.password": "hidden"
    }
    assert "hidden" not in repr(found)
    assert unknown_settings() == []
