"""SQL text that users write: what is wrong with it by itself, and how it is set into a query of the engine.

A condition becomes an expression of its own (`is_true`), never a part of a longer text. A query is set between line
breaks. A placeholder such as `{staged}` is found as a token, so braces in quotes and comments are no placeholders.
sqlglot is imported when tokens are needed: definitions load without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from lake_assets.errors import ErrorText

if TYPE_CHECKING:
    from pyspark.sql import Column
    from sqlglot.tokenizer_core import Token

DIALECT = "spark"

OPENING = {"L_PAREN": "R_PAREN", "L_BRACKET": "R_BRACKET"}

ONE_CONDITION = "Write one condition on the columns of a row, such as amount < 0."


def is_true(condition: str) -> Column:
    """Return a condition that a user has written as a Boolean column: false where the condition is null.

    Spark parses the text alone, so comments, brackets and quotes in it end with it.
    """
    from pyspark.sql import functions as F

    return F.coalesce(F.expr(condition), F.lit(False))


def any_is_true(conditions: Collection[str]) -> Column:
    """Return whether any of the conditions is true: one flat expression, however many there are."""
    from pyspark.sql import functions as F

    return F.coalesce(*[F.when(F.expr(condition), F.lit(True)) for condition in conditions], F.lit(False))


def nested(query: str) -> str:
    """Return a query in brackets.

    The line breaks end a `--` comment in its last line, of which Spark takes the next line, too, after a backslash.
    """
    return f"(\n{query}\n\n)"


def with_placeholders(query: str, names: Collection[str]) -> str:
    """Return a query in which only the placeholders `{name}` are left to be replaced; other braces are escaped.

    pyspark replaces the placeholders of a query with Python's rules of formatting, in which `{2}` and `{}` are
    placeholders, too.
    """
    places = {first.start for first, name, _ in _placeholders(tokens(query)) if name.text in names}
    parts = []
    position = 0
    for place in sorted(places):
        end = query.index("}", place) + 1
        parts += [_escaped(query[position:place]), "{", query[place + 1 : end - 1].strip(), "}"]
        position = end
    return "".join([*parts, _escaped(query[position:])])


def unknown_placeholders(query: str, names: Collection[str]) -> list[str]:
    """Return the names in braces that are none of the placeholders of a query."""
    return [name.text for _, name, _ in _placeholders(tokens(query)) if name.text not in names]


def unclosed(text: str) -> ErrorText | None:
    """Return which quote, comment or bracket of a text is left open, or closed without being open; None if none is."""
    import sqlglot
    from sqlglot.errors import TokenError

    try:
        found = sqlglot.tokenize(text, dialect=DIALECT)
    except TokenError:
        return ErrorText("a quote or a comment is left open", "Close it; a quote inside of a text is written as \\'.")
    expected: list[str] = []
    for token in found:
        kind = kind_of(token)
        if kind in OPENING:
            expected.append(OPENING[kind])
        elif kind in OPENING.values() and (not expected or expected.pop() != kind):
            return ErrorText("it closes a bracket that it has not opened", f"Remove one {token.text!r}.")
    return ErrorText("a bracket is left open", "Close it.") if expected else None


def condition_mistake(condition: str) -> ErrorText | None:
    """Return why a text is not one condition on the columns of a row, as a clause, and the remedy.

    None if it is one, or if only Spark can tell. Needs no Spark.
    """
    open_part = unclosed(condition)
    if open_part is not None:
        return open_part
    found = tokens(condition)
    if not found:
        return ErrorText("there is no condition", ONE_CONDITION)
    depth = 0
    for token in found:
        kind = kind_of(token)
        depth += (kind in OPENING) - (kind in OPENING.values())
        if kind == "SEMICOLON":
            return ErrorText("there is a ';', which ends a statement", "Remove it.")
        if kind == "COMMA" and depth == 0:
            return ErrorText("there is a ',' outside of brackets", f"Remove it. {ONE_CONDITION}")
        if kind in ("L_BRACE", "R_BRACE"):
            return ErrorText(f"there is a {token.text!r}: nothing is replaced in a condition", "Write the value.")
    return _no_condition_on_a_row(condition)


def is_understood(text: str, columns: Collection[str] = ()) -> bool:
    """Return whether a text can be parsed without Spark, and names none but these columns, in any case, if any are
    given. If it is not understood, it may still be right: Spark has to tell.
    """
    import sqlglot
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        (parsed,) = sqlglot.parse(text, dialect=DIALECT)
    except (SqlglotError, ValueError, RecursionError):
        return False
    if parsed is None:
        return False
    known = {column.lower() for column in columns}
    named = {node.parts[0].name.lower() for node in parsed.find_all(exp.Column)}
    return not known or named <= known


def names_in_sql(text: str) -> frozenset[str] | None:
    """Return all names in a query or a condition, in lower case.

    None if that is not all that it reads: a `*` stands for all columns, or the text cannot be parsed without Spark.
    """
    import sqlglot
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        (parsed,) = sqlglot.parse(text, dialect=DIALECT)
    except (SqlglotError, ValueError, RecursionError):
        return None
    if parsed is None or any(not isinstance(star.parent, exp.Count) for star in parsed.find_all(exp.Star)):
        return None
    return frozenset(name.name.casefold() for name in parsed.find_all(exp.Identifier))


def tokens(text: str) -> Sequence[Token]:
    """Return the tokens of a text; none if a quote or a comment is left open."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        return sqlglot.tokenize(text, dialect=DIALECT)
    except SqlglotError:
        return ()


def kind_of(token: Token) -> str:
    """Return the name of a token's type, such as SEMICOLON."""
    return str(token.token_type.name)


def _no_condition_on_a_row(condition: str) -> ErrorText | None:
    """Return what in a condition needs more than the columns of one row."""
    import sqlglot
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    try:
        (parsed,) = sqlglot.parse(condition, dialect=DIALECT)
    except (SqlglotError, ValueError, RecursionError):
        return None
    for node in parsed.walk() if parsed is not None else ():
        if isinstance(node, exp.Query | exp.Subquery):
            return ErrorText("there is a SELECT, which reads other rows", ONE_CONDITION)
        if isinstance(node, exp.Window):
            return ErrorText("there is a window function, which reads other rows", ONE_CONDITION)
        if isinstance(node, exp.AggFunc):
            name = node.sql(dialect=DIALECT).partition("(")[0].lower()
            return ErrorText(f"{name}() is an aggregate, which reads other rows", ONE_CONDITION)
        if isinstance(node, exp.UDTF | exp.Explode):
            return ErrorText("there is a function that makes several rows of one", ONE_CONDITION)
        if isinstance(node, exp.Placeholder | exp.Parameter):
            return ErrorText("there is a parameter, such as :name or ?", "Write its value.")
    return None


def _placeholders(found: Sequence[Token]) -> list[tuple[Token, Token, Token]]:
    """Return the runs of tokens `{`, a name and `}`."""
    return [
        run
        for run in zip(found, found[1:], found[2:], strict=False)
        if (kind_of(run[0]), kind_of(run[2])) == ("L_BRACE", "R_BRACE") and run[1].text.isidentifier()
    ]


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


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
