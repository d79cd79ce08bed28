"""A lake is a YAML file: those of the package give the lakes that it always had, and a wrong one says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake_assets.engagement.model.configuration.lake_file import read_lake, shipped_names
from lake_assets.engagement.model.lake import EngagementLake
from lake_assets.engagement.model.lakes import LAKES
from lake_assets.errors import ConfigurationError

CHAT = """
name: chat_message
fields:
  channel: string
  words: int
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "chat.yaml"
    file.write_text(text)
    return file


def test_the_lakes_of_the_package_are_those_of_earlier_versions() -> None:
    """Their names and fields are in the tables of data directories that exist."""
    assert shipped_names() == [lake.name for lake in LAKES]
    email = {"subject": "string", "mailbox": "string", "opens": "int", "clicks": "int", "replied": "boolean"}
    meeting = {"title": "string", "starts_at": "timestamp", "minutes": "int", "attendees": "int"}
    voice = {
        "call_id": "string",
        "seconds": "double",
        "talk_ratio": "double",
        "sentiment": "string",
        "recorded": "boolean",
    }
    assert [(lake.name, list(lake.fields.items())) for lake in LAKES] == [
        ("email_event", list(email.items())),
        ("meeting_event", list(meeting.items())),
        ("voice_insight", list(voice.items())),
    ]
    assert {lake.topic("retention") for lake in LAKES} == {f"{lake.name}.retention" for lake in LAKES}
    for lake in LAKES:
        limits = (lake.max_records, lake.max_attempts, lake.max_file_bytes, lake.seconds, lake.retain_hours)
        assert (*limits, lake.ttl_days) == (1_000_000, 24, 128 * 1024 * 1024, {}, None, None)


def test_a_file_gives_every_parameter(tmp_path: Path) -> None:
    more = """
topics: {ingestion: chat-log}
seconds:
  ingestion: 60
  maintenance: 86400
max_records: 5000
max_attempts: 3
max_file_bytes: 1048576
retain_hours: 24
ttl_days: 365
"""
    assert read_lake(write(tmp_path, CHAT + more)) == EngagementLake(
        "chat_message",
        {"channel": "string", "words": "int"},
        topics={"ingestion": "chat-log"},
        max_records=5000,
        max_attempts=3,
        max_file_bytes=1_048_576,
        seconds={"ingestion": 60, "maintenance": 86_400},
        retain_hours=24,
        ttl_days=365,
    )
    assert read_lake(write(tmp_path, CHAT)) == EngagementLake("chat_message", {"channel": "string", "words": "int"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: [", r", line 1, is no valid YAML: .*\n  → Correct the line"),
        ("name: a\nname: b\nfields: {x: int}", r", line 2, is no valid YAML: the key 'name' is written twice\.\n"),
        ("- name", r" has no keys\.\n  → Write one line"),
        ("fields: {x: int}", r": name is missing\.\n  → Add the key name\."),
        ("name: chat", r": fields is missing\.\n  → Add the key fields\."),
        ("name: 7\nfields: {x: int}", r": name is 7, which is no text\.\n  → Write a text"),
        ("name: Chat; drop\nfields: {x: int}", r": The name of an engagement lake is 'Chat; drop'\.\n  → Use a name"),
        ("name: ../chat\nfields: {x: int}", r": The name of an engagement lake is '\.\./chat'\.\n"),
        ("name: chat\nfields: x", r": fields is 'x', which has no keys\.\n  → Write one line `key: value`"),
        ("name: chat\nfields: {x`: int}", r": A field of chat is 'x`'\.\n"),
        ("name: chat\nfields: {x: text}", r": The field x of chat has the type 'text'\.\n  → Use one of bigint"),
        ("name: chat\nfields: {x: 3}", r": fields\.x is 3, which is no text\.\n"),
        ("name: chat\nfields: {no: int}", r": fields has the key False, which is no text\.\n  → Put it in quotes"),
        (f"{CHAT}max_recrods: 7", r": max_recrods is an unknown key\.\n  → Did you mean 'max_records'\?"),
        (f"{CHAT}max_records: many", r": max_records is 'many'\.\n  → Write a whole number of 1 or more\."),
        (f"{CHAT}max_records: true", r": max_records is True\.\n"),
        (f"{CHAT}retain_hours: 0", r": retain_hours is 0\.\n"),
        (f"{CHAT}ttl_days: 40000", r": ttl_days of chat_message is 40000\.\n  → Set it to a number from 1 to 36500\."),
        (f"{CHAT}topics: {{ingest: a}}", r": topics\.ingest is an unknown key\.\n  → Did you mean 'ingestion'\?"),
        (f"{CHAT}topics: {{ingestion: a/b}}", r": The ingestion topic of chat_message is 'a/b'\.\n"),
        (f"{CHAT}seconds: {{metrics: 60}}", r": seconds\.metrics is an unknown key\.\n  → .*ingestion, mutation"),
        (f"{CHAT}seconds: {{mutation: 1.5}}", r": seconds\.mutation is 1\.5\.\n  → Write a whole number"),
    ],
)
def test_an_error_names_the_file_the_key_and_the_remedy(text: str, told: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigurationError, match=rf"^{file}{told}") as error:
        read_lake(file)
    assert str(error.value).count("\n") == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{tmp_path}/none\.yaml cannot be read: .*\n  → Name an existing"):
        read_lake(tmp_path / "none.yaml")
