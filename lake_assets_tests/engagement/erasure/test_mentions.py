"""Of whom a text of JSON tells, however it is spelled: against a look at what was spelled."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.engagement.erasure import decoded_text, matchers_by_org, mentions

ORG, WHO = "17", "müller/1"
OF = matchers_by_org([(ORG, WHO), ("globex", "lead-17")])
ORGS = [None, ORG, 17, "globex", "initech", 18, True]


def spelled(value: object, style: int) -> str:
    """JSON as Python writes it, with letters as they are, or as PHP does."""
    text = json.dumps(value, ensure_ascii=style != 1)
    return text.replace("/", "\\/") if style == 2 else text


def named(org: object) -> set[str]:
    """The ids that are looked for in a text of such an org."""
    return {who for of, who in ((ORG, WHO), ("globex", "lead-17")) if org is None or str(org) == of}


TEXTS = st.lists(st.sampled_from([WHO, "lead-17", "lead-171", "x-müller/1", ' "', "\n", "\\", " is "])).map("".join)


@given(st.sampled_from(ORGS), TEXTS, st.integers(0, 2), st.booleans())
def test_an_id_counts_as_a_word_in_any_spelling_and_at_any_depth(org: Any, text: str, style: int, nested: bool) -> None:
    message: dict[str, Any] = {"org_id": org, "insert_record": {"who_id": [text]} if nested else text}
    expected = any(re.search(rf"(?<![\w-]){re.escape(who)}(?![\w-])", text) for who in named(org))
    assert mentions(spelled(message, style), OF) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, False),
        ("null", False),
        (f"cut {WHO}", True),
        (f'{{"org_id": "initech", "who_id": "{WHO}"', True),
        (f'{{"who_id": "{WHO}", "who_id": "other"}}', True),
        (f'{{"org_id": "initech", "org_id": "{ORG}", "who_id": "{WHO}"}}', True),
        (f'{{"org_id": " ", "who_id": "{WHO}"}}', True),
        (f'{{"org_id": true, "who_id": "{WHO}"}}', False),
        (f'[{{"org_id": "initech", "who_id": "{WHO}"}}]', True),
        pytest.param(f'{{"org_id": {"9" * 5000}, "who_id": "{WHO}"}}', False, id="long number"),
        pytest.param("[" * 100_000 + WHO, True, id="deep"),
    ],
)
def test_what_is_no_message_may_be_anybodys(text: str | None, told: bool) -> None:
    assert mentions(text, OF) == told


def test_what_a_text_says_can_be_written() -> None:
    text = '{"org_id": "acme", "who_id": "\\ud800 m\\u00fcller"}'
    told = decoded_text(text)
    assert told is not None
    assert (told.encode().decode(), "? müller" in told, decoded_text(text, "globex"), decoded_text(None)) == (
        told,
        True,
        None,
        None,
    )
    assert decoded_text(text, "acme") == told
