"""Whom a text of JSON tells of: the same to the certificate, and to an erasure that takes messages away. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lake_assets.base.id_matcher import IdMatcher

People = Mapping[str, Sequence[IdMatcher]]
"""Org → ids of it that are looked for."""

_ORG = "org_id"


def people(ids: Iterable[tuple[str, str]]) -> People:
    """Ids, each with its org before it, to look for."""
    found: defaultdict[str, list[IdMatcher]] = defaultdict(list)
    for org, who in ids:
        found[org].append(IdMatcher(who))
    return dict(found)


def tells(text: str | None, of: People) -> bool:
    """Whether a text has one of the ids as a word, however it is spelled, and is not of another org."""
    if text is None:
        return False
    orgs, words = _decoded(text)
    return any(needle.in_text(words) for org, ids in of.items() if _may_be(org, orgs) for needle in ids)


def said(text: str | None, org: str | None = None) -> str | None:
    """What a text says, without escapes; of no JSON, the text. None if it is of another org. org: None for any."""
    if text is None:
        return None
    orgs, words = _decoded(text)
    return words if org is None or _may_be(org, orgs) else None


def _may_be(org: str, named: frozenset[str]) -> bool:
    """Whether a text is of an org; one that names none, or a blank, may be anybody's."""
    return not named or org in named


def _decoded(text: str) -> tuple[frozenset[str], str]:
    """The orgs that a text names, and what it says. Numbers count as they are spelled, as Spark takes them.

    An object is its pairs: of a name that is there twice, both count.
    """
    try:
        values = json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str)
        words = json.dumps(values, ensure_ascii=False)
    except (ValueError, RecursionError):
        return frozenset(), text
    pairs = values if isinstance(values, tuple) else ()
    named = (_spelled(value) for name, value in pairs if name == _ORG and value is not None)
    orgs = frozenset(org for org in named if org.strip())
    return orgs, words.encode(errors="replace").decode()  # half a pair of surrogates can be written nowhere


def _spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
