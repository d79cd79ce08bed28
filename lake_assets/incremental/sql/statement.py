"""What kind of statement a query is, and in which lines it names its columns: by its tokens. Pure; needs no Spark.

sqlglot is imported when tokens are needed: definitions load without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from lake_assets.errors.texts import ErrorText

if TYPE_CHECKING:
    from sqlglot.tokenizer_core import Token

DIALECT = "spark"

FIRST_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")
"""What a query may begin with."""

Mistake = tuple[int, ErrorText]
"""A line of the query, from 1 on, and what is wrong there."""


def find_mistake(query: str) -> Mistake | None:
    """Return why a query is not one SELECT with columns; None if it is one, or Spark has to tell.

    Args:
        query: The query, without a semicolon at its end.
    """
    tokens = _tokens(query)
    if not tokens:
        return None
    first = tokens[0]
    if first.text.upper() not in FIRST_WORDS:
        problem = f"the query is no SELECT: it begins with {first.text!r}"
        return first.line, ErrorText(problem, "Write one SELECT, which may begin with WITH.")
    for token in tokens:
        if _kind(token) == "SEMICOLON":
            return token.line, ErrorText("the query has more than one statement", "Write one SELECT, without ';'.")
    for token, after in pairwise(tokens):
        if (_kind(token), _kind(after)) == ("SELECT", "FROM"):
            return token.line, ErrorText("the query selects no column", "Name its columns after SELECT.")
    return None


def without_semicolon(query: str) -> str:
    """Return a query up to the semicolon that ends it, if only comments follow."""
    text = query.rstrip().removesuffix(";").rstrip()
    if ";" not in text:
        return text
    tokens = _tokens(text)
    last = tokens[-1] if tokens else None
    return text[: last.start].rstrip() if last and _kind(last) == "SEMICOLON" else text


def column_line(query: str, column: str) -> int:
    """Return the line in which a query selects a column, from 1 on: the last one that names it, before FROM.

    Args:
        query: The query.
        column: The column, in lower case.
    """
    line = 1
    for token in _selected(_tokens(query)):
        if token.text.lower() == column:
            line = token.line
    return line


def _selected(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens between the outermost SELECT and its FROM."""
    depth, selects = 0, False
    for token in tokens:
        kind = _kind(token)
        depth += (kind == "L_PAREN") - (kind == "R_PAREN")
        if depth == 0 and kind == "FROM":
            return
        selects = selects or (depth == 0 and kind == "SELECT")
        if selects:
            yield token


def _kind(token: Token) -> str:
    return str(token.token_type.name)


def _tokens(query: str) -> Sequence[Token]:
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        return sqlglot.tokenize(query, dialect=DIALECT)
    except SqlglotError:
        return ()
