"""What kind of statement a query is, and in which lines it names its columns: by its tokens. Pure; needs no Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from lake_assets.base.sql_text import kind_of, tokens
from lake_assets.errors.texts import ErrorText

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

FIRST_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")
"""What a query may begin with."""

Mistake = tuple[int, ErrorText]
"""A line of the query, from 1 on, and what is wrong there."""


def find_mistake(query: str) -> Mistake | None:
    """Return why a query is not one SELECT with columns; None if it is one, or Spark has to tell.

    Args:
        query: The query, without a semicolon at its end.
    """
    found = tokens(query)
    if not found:
        return None
    first = found[0]
    if first.text.upper() not in FIRST_WORDS:
        problem = f"the query is no SELECT: it begins with {first.text!r}"
        return first.line, ErrorText(problem, "Write one SELECT, which may begin with WITH.")
    for token in found:
        if kind_of(token) == "SEMICOLON":
            return token.line, ErrorText("the query has more than one statement", "Write one SELECT, without ';'.")
    for token, after in pairwise(found):
        if (kind_of(token), kind_of(after)) == ("SELECT", "FROM"):
            return token.line, ErrorText("the query selects no column", "Name its columns after SELECT.")
    return None


def without_semicolon(query: str) -> str:
    """Return a query up to the semicolon that ends it, if only comments follow."""
    text = query.rstrip().removesuffix(";").rstrip()
    if ";" not in text:
        return text
    found = tokens(text)
    last = found[-1] if found else None
    return text[: last.start].rstrip() if last and kind_of(last) == "SEMICOLON" else text


def column_line(query: str, column: str) -> int:
    """Return the line in which a query selects a column, from 1 on: the last one that names it, before FROM.

    Args:
        query: The query.
        column: The column, in lower case.
    """
    line = 1
    for token in _selected(tokens(query)):
        if token.text.lower() == column:
            line = token.line
    return line


def _selected(found: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens between the outermost SELECT and its FROM."""
    depth, selects = 0, False
    for token in found:
        kind = kind_of(token)
        depth += (kind == "L_PAREN") - (kind == "R_PAREN")
        if depth == 0 and kind == "FROM":
            return
        selects = selects or (depth == 0 and kind == "SELECT")
        if selects:
            yield token
