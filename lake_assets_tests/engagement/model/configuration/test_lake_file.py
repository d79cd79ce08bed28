"""A lake is a YAML file: those of the package give the lakes that it always had, and a wrong one says where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lake_assets.engagement.lake import EMAILS_AND_CALLS, EngagementLake, MetricGroup
from lake_assets.engagement.lakes import KEYS, LAKES, read_lake, shipped_names
from lake_assets.errors import ConfigurationError
from lake_assets.settings import PROJECT

CHAT = """
name: chat_message
fields:
  channel: string
  words: int
metrics:
  messages:
    kinds: {sent: asked, answered: answered}
    outcomes: {solved: solved}
    whole: sent
    rates: {answer_rate: answered}
"""
MESSAGES = MetricGroup(
    "messages",
    kinds={"sent": "asked", "answered": "answered"},
    outcomes={"solved": "solved"},
    rates={"answer_rate": "answered"},
    whole="sent",
)
F = "name: chat\nfields: {x: int}\n"
M = "metrics: {m: {kinds: {a: a}}}"


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
    email_event, meeting_event, voice_insight = LAKES
    assert email_event.metrics == voice_insight.metrics == EMAILS_AND_CALLS
    assert [group.name for group in meeting_event.metrics] == ["invitations", "meetings"]
    assert {lake.topic("retention") for lake in LAKES} == {f"{lake.name}.retention" for lake in LAKES}
    for lake in LAKES:
        limits = (lake.max_records, lake.max_file_bytes, lake.seconds, lake.retain_hours)
        assert (*limits, lake.ttl_days) == (1_000_000, 128 * 1024 * 1024, {}, None, None)


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
continuous: true
ids: [deal_id, who_id, template_id]
turns:
  ingestion: maintenance
  mutation: [ingestion, mutation]
message_keys: {who_id: visitor}
simulated_as: {sent: asked}
"""
    assert read_lake(write(tmp_path, CHAT + more)) == EngagementLake(
        "chat_message",
        {"channel": "string", "words": "int"},
        topics={"ingestion": "chat-log"},
        max_records=5000,
        max_file_bytes=1_048_576,
        seconds={"ingestion": 60, "maintenance": 86_400},
        retain_hours=24,
        ttl_days=365,
        continuous=True,
        ids=("deal_id", "who_id", "template_id"),
        message_keys={"who_id": "visitor"},
        metrics=(MESSAGES,),
        turns={"ingestion": ("maintenance",), "mutation": ("ingestion", "mutation")},
        simulated_as={"sent": "asked"},
    )
    fields = {"channel": "string", "words": "int"}
    assert read_lake(write(tmp_path, CHAT)) == EngagementLake("chat_message", fields, metrics=(MESSAGES,))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: [", r", line 1, is no valid YAML: .*\n  → Correct the line"),
        ("name: a\nname: b\nfields: {x: int}", r", line 2, is no valid YAML: the key 'name' is written twice\.\n"),
        ("- name", r" has no keys\.\n  → Write one line"),
        ("fields: {x: int}", r": name is missing\.\n  → Add the key name\."),
        ("name: chat\nmetrics: {}", r": fields is missing\.\n  → Add the key fields\."),
        (f"name: 7\nfields: {{x: int}}\n{M}", r": name is 7, which is no text\.\n  → Write a text"),
        (f"name: Chat; drop\nfields: {{x: int}}\n{M}", r": The name of an engagement lake is 'Chat; drop'\.\n"),
        (f"name: ../chat\nfields: {{x: int}}\n{M}", r": The name of an engagement lake is '\.\./chat'\.\n"),
        (f"name: chat\nfields: x\n{M}", r": fields is 'x', which has no keys\.\n  → Write one line `key: value`"),
        (f"name: chat\nfields: {{x`: int}}\n{M}", r": A field of chat is 'x`'\.\n"),
        (f"name: chat\nfields: {{x: text}}\n{M}", r": The field x of chat has the type 'text'\.\n  → Use one"),
        (f"name: chat\nfields: {{x: 3}}\n{M}", r": fields\.x is 3, which is no text\.\n"),
        (f"name: chat\nfields: {{no: int}}\n{M}", r": fields has the key False, which is no text\.\n  → Put it"),
        (f"{CHAT}max_recrods: 7", r": max_recrods is an unknown key\.\n  → Did you mean 'max_records'\?"),
        (f"{CHAT}max_records: many", r": max_records is 'many'\.\n  → Write a whole number of 1 or more\."),
        (f"{CHAT}max_records: true", r": max_records is True\.\n"),
        (f"{CHAT}continuous: always", r": continuous is 'always'\.\n  → Write true or false\."),
        (f"{CHAT}ids: who_id", r": ids is 'who_id', which is no list of names\.\n  → Write a list: `ids: \[who_id"),
        (f"{CHAT}ids: [deal_id]", r": ids of chat_message are .*, without who_id\.\n  → Write a list with who_id"),
        (f"{CHAT}ids: [who_id, kind]", r": ids of chat_message name 'kind', which is taken\.\n  → Name each column"),
        (f"{CHAT}ids: [who_id, who_id]", r": ids of chat_message name 'who_id', which is taken\.\n"),
        (f"{CHAT}ids: [who_id, Deal]", r": An id column of chat_message is 'Deal'\.\n"),
        (f"{CHAT}retain_hours: 0", r": retain_hours is 0\.\n"),
        (f"{CHAT}ttl_days: 40000", r": ttl_days of chat_message is 40000\.\n  → Set it to a number from 1 to 36500\."),
        ("name: chat\nfields: {x: int}", r": metrics is missing\.\n"),
        (f"{F}metrics: {{}}", r": metrics is empty\.\n  → Name at least one group"),
        (f"{F}metrics: {{m: {{outcomes: {{a: a}}}}}}", r": metrics\.m\.kinds is missing\.\n"),
        (f"{F}metrics: {{m: {{kinds: {{}}}}}}", r": The metrics m has no kinds\.\n"),
        (f"{F}metrics: {{m: {{kinds: {{a: 1}}}}}}", r": metrics\.m\.kinds\.a is 1, which is no text\.\n"),
        (f"{F}metrics: {{m: {{kinds: {{a b: a}}}}}}", r": The metrics m has the column 'a b'\.\n"),
        (f"{F}metrics: {{m: {{kinds: {{rep_id: a}}}}}}", r": The metrics m has the column 'rep_id'\.\n"),
        (f"{F}metrics: {{m: {{kinds: {{a: a}}, rates: {{r: b}}}}}}", r": .* rate of 'b', .*\n  → Name one of: a\."),
        (f"{F}metrics: {{m: {{kinds: {{a: a}}, rates: {{r: a}}}}}}", r": .* rates of None, .*\n  → Name a count: a\."),
        (f"{F}metrics: {{m: {{kinds: {{a: a}}}}, n: {{kinds: {{a: b}}}}}}", r": The metrics m and n both .*'a'\.\n"),
        (f"{CHAT}simulated_as: {{mailed: a}}", r": simulated_as\.mailed is an unknown key\.\n"),
        (f"{CHAT}message_keys: {{who: a}}", r": message_keys\.who is an unknown key\.\n  → Did you mean 'who_id'\?"),
        (f"{CHAT}message_keys: {{org_id: a}}", r": message_keys\.org_id is an unknown key\.\n"),
        (f"{CHAT}message_keys: {{who_id: a b}}", r": The key of who_id in messages of chat_message is 'a b'\.\n"),
        (f"{CHAT}message_keys: {{who_id: Kind}}", r": .* who_id and kind would both have the key 'kind'\.\n  → Give"),
        (f"{CHAT}message_keys: {{kind: engagement}}", r": .* kind and engagement would both have .*\n  → Give"),
        (f"{CHAT}topics: {{ingest: a}}", r": topics\.ingest is an unknown key\.\n  → Did you mean 'ingestion'\?"),
        (f"{CHAT}topics: {{ingestion: a/b}}", r": The ingestion topic of chat_message is 'a/b'\.\n"),
        (f"{CHAT}seconds: {{metrics: 60}}", r": seconds\.metrics is an unknown key\.\n  → .*ingestion, mutation"),
        (f"{CHAT}seconds: {{mutation: 1.5}}", r": seconds\.mutation is 1\.5\.\n  → Write a whole number"),
        (f"{CHAT}turns: {{ingest: any}}", r": turns\.ingest is an unknown key\.\n  → Did you mean 'ingestion'\?"),
        (f"{CHAT}turns: {{mutation: ingest}}", r": turns\.mutation names 'ingest'\.\n  → Did you mean 'ingestion'\?"),
        (f"{CHAT}turns: {{mutation: []}}", r": turns\.mutation is empty\.\n  → Name one or more of: ingestion, "),
        (f"{CHAT}turns: {{mutation: mutation}}", r": These streams would never run: .*\n  → Declare one"),
        (
            f"{CHAT}turns: {{retention: any}}",
            r": On chat_message, retention could follow ingestion without .*\n  → Let",
        ),
        (
            f"{CHAT}turns: {{maintenance: [mutation, ingestion]}}",
            r": On chat_message, maintenance could follow ingestion .*\n  → Let maintenance follow only mutation",
        ),
    ],
)
def test_an_error_names_the_file_the_key_and_the_remedy(text: str, told: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigurationError, match=rf"^{file}{told}") as error:
        read_lake(file)
    assert str(error.value).count("\n") == 1


def test_the_file_that_the_page_shows_is_a_lake(tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "own-lake.md").read_text()
    [shown] = re.findall(r"^```yaml\n(.*?)^```$", page, re.S | re.M)
    lake = read_lake(write(tmp_path, shown))
    assert (lake.name, [group.name for group in lake.metrics]) == ("chat_message", ["messages", "conversations"])
    assert [key for key in KEYS if f"| `{key}` |" not in page] == []


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{tmp_path}/none\.yaml cannot be read: .*\n  → Name an existing"):
        read_lake(tmp_path / "none.yaml")
