"""A lake is a configuration: what can be told to be wrong without a table or a topic."""

from __future__ import annotations

from typing import Any

import pytest

from lake_assets.engagement.lake import EngagementLake
from lake_assets.engagement.lakes import EMAIL_EVENT
from lake_assets.errors import ConfigurationError


def test_names_follow_from_the_lake_s() -> None:
    assert EMAIL_EVENT.topic("mutation") == "email_event.mutation"
    assert EMAIL_EVENT.app_id("ingestion", "data") == "email_event.ingestion.data"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"name": "x; drop table"}, "name of an engagement lake"),
        ({"fields": {}}, "has no fields"),
        ({"fields": {"a b": "int"}}, "A field of mail is 'a b'"),
        ({"fields": {"a": "map<int,int>"}}, "has the type 'map<int,int>'"),
        ({"topics": {"ingestion": "a/b"}}, "ingestion topic of mail is 'a/b'"),
        ({"max_records": 0}, "max_records of mail is 0"),
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        EngagementLake(**{"name": "mail", "fields": {"subject": "string"}, **values})
