"""Which ids a JSON text mentions. The certificate and the redaction of messages use the same rule. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lake_assets.base.id_matcher import IdMatcher

MatchersByOrg = Mapping[str, Sequence[IdMatcher]]
"""Org → matchers of the ids to look for."""

_ORG = "org_id"


def matchers_by_org(ids: Iterable[tuple[str, str]]) -> MatchersByOrg:
    """Return matchers for (org, id) pairs."""
    found: defaultdict[str, list[IdMatcher]] = defaultdict(list)
    for org, who_id in ids:
        found[org].append(IdMatcher(who_id))
    return dict(found)


def mentions(text: str | None, wanted: MatchersByOrg) -> bool:
    """Return whether a text contains one of the ids as a word, in any JSON spelling, and is not of another org."""
    if text is None:
        return False
    decoded = _decode(text)
    for org, matchers in wanted.items():
        if decoded.may_be_of(org) and any(matcher.in_text(decoded.text) for matcher in matchers):
            return True
    return False


def decoded_text(text: str | None, org: str | None = None) -> str | None:
    """Return a JSON text without escapes; a text that is no JSON is returned as it is.

    Args:
        org: Return None if the text is of another org; None for any org.
    """
    if text is None:
        return None
    decoded = _decode(text)
    if org is not None and not decoded.may_be_of(org):
        return None
    return decoded.text


@dataclass(frozen=True)
class _Decoded:
    """A text without JSON escapes, and the orgs that it names."""

    text: str
    orgs: frozenset[str] = frozenset()

    def may_be_of(self, org: str) -> bool:
        """Return whether the text may be of an org. A text without an org, or with a blank one, may be of any."""
        return not self.orgs or org in self.orgs


def _decode(text: str) -> _Decoded:
    """Decode a JSON text. Numbers keep their spelling, as in Spark. If an object repeats a name, both values count."""
    try:
        value = json.loads(text, object_pairs_hook=tuple, parse_int=str, parse_float=str)
        unescaped = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return _Decoded(text)
    pairs = value if isinstance(value, tuple) else ()
    orgs = set()
    for name, org in pairs:
        if name == _ORG and org is not None:
            orgs.add(_as_text(org))
    named = frozenset(org for org in orgs if org.strip())
    encodable = unescaped.encode(errors="replace").decode()  # a lone surrogate cannot be encoded
    return _Decoded(encodable, named)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
