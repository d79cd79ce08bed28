"""Which lakes a data directory has: those that LAKE_LAKES names, or those of the demo with its pipeline."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lake_assets.engagement.lakes import configured_lakes, lake_named, metrics_locations, searched_lakes
from lake_assets.errors import ConfigurationError, UsageError
from lake_assets.settings import Settings

CHAT = "name: chat_message\nfields: {channel: string}\nmetrics: {messages: {kinds: {asked: asked}}}\n"
OF_THE_PACKAGE = ["email_event", "meeting_event", "voice_insight"]
OWN = "my_tables:PIPELINE"
DEMO = "lake_assets.membership:PIPELINE"


def names(**given: str) -> list[str]:
    return [lake.name for lake in configured_lakes(Settings(**given))]  # type: ignore[arg-type]


@pytest.fixture
def chat(tmp_path: Path) -> str:
    file = tmp_path / "chat.yaml"
    file.write_text(CHAT)
    return str(file)


def test_lakes_are_those_that_are_named_in_their_order(chat: str) -> None:
    assert names(pipelines=DEMO) == names(pipelines=f"{OWN}, {DEMO}") == OF_THE_PACKAGE
    assert names(pipelines=OWN) == names(pipelines=DEMO, lakes="") == []
    found = names(pipelines=OWN, lakes=f" {chat} ,voice_insight,")
    assert found == ["chat_message", "voice_insight"]
    locations = metrics_locations(Settings(lakes=chat, warehouse="s3://w"))
    assert locations == {"chat_message": "s3://w/engagement/chat_message/engagement_metrics"}


def test_a_file_may_be_named_from_the_current_folder(chat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services are given its absolute path, because they run in another folder."""
    monkeypatch.chdir(os.path.dirname(chat))  # noqa: PTH120 - a text, as it is in the environment
    found = Settings(lakes="chat.yaml,email_event")
    assert found.lakes == f"{chat},email_event"


def test_certificates_also_search_the_topics_of_lakes_that_are_no_longer_configured(chat: str) -> None:
    found = searched_lakes(Settings(pipelines=OWN, lakes=chat))
    assert [lake.name for lake in found] == [*OF_THE_PACKAGE, "chat_message"]


def test_a_lake_that_cannot_be_is_refused(chat: str) -> None:
    for lakes, told in (
        ("chat", r"names 'chat', which is no lake of the package and no YAML file\.\n  → Name email_event, "),
        (f"{chat},{chat}", r"LAKE_LAKES names chat_message twice: .*\n  → Remove one"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            names(lakes=lakes)


def test_a_command_names_what_is_configured(chat: str) -> None:
    own = Settings(pipelines=OWN, lakes=chat)
    assert lake_named(own, "chat_message").fields == {"channel": "string"}
    with pytest.raises(UsageError, match=r"'mail'\.\n  → Name one of: chat_message\."):
        lake_named(own, "mail")
    with pytest.raises(UsageError, match=r"email_event is not conf.*\.\n  → Set LAKE_LAKES=chat_message,email_event\."):
        lake_named(own, "email_event")
    with pytest.raises(UsageError, match=r"'mail'\.\n  → Set LAKE_LAKES to the YAML file"):
        lake_named(Settings(pipelines=OWN), "mail")
