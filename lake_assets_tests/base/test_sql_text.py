"""SQL that users write, by itself: what is wrong with a condition, and what is replaced in a query."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake_assets.base.sql_text import condition_mistake, is_understood, unknown_placeholders, with_placeholders

RIGHT = [
    "amount < 0 -- refunds come as their own rows",
    "amount < 0 /* and /* nested */ too */",
    "op = 'D;' AND note <> '), (' AND quoted = \"it's\"",
    "country rlike '^[A-Z]{2}$' AND a like '100\\%'",
    "`note``s` = 'x' AND geo.`lat.x` > 1",
    "exists(codes, c -> c > 1) AND forall(codes, c -> c IS NOT NULL)",
    "aggregate(codes, 0, (a, b) -> a + b) > 1 AND array_max(codes) < 3",
    "cast(seen AS map<string, int>)['a'] > 1",
    "parse_json(body):a = 1",
    r"path = r'C:\'",
]
WRONG = {
    "amount < 0)": "closes a bracket",
    "amount < 0) OR (true": "closes a bracket",
    "(amount < 0": "bracket is left open",
    "amount < 0 OR codes[0": "bracket is left open",
    "note = 'it": "quote or a comment is left open",
    "amount < 0 /* refunds": "quote or a comment is left open",
    "amount < 0; DROP TABLE raw.payments": "';'",
    "amount < 0;": "';'",
    "amount < 0, amount > 9": "','",
    "amount < 0,": "','",
    "amount < {limit}": "'{'",
    "amount < {{ limit }}": "'{'",
    "amount < :limit": "parameter",
    "amount < ?": "parameter",
    "sum(amount) < 0": "sum() is an aggregate",
    "row_number() OVER (ORDER BY amount) > 1": "window function",
    "account_id IN (SELECT id FROM blocked)": "SELECT",
    "(SELECT max(amount) FROM payments) < amount": "SELECT",
    "explode(codes) > 1": "several rows",
    "-- amount < 0": "no condition",
    "  ": "no condition",
}


@pytest.mark.parametrize("condition", RIGHT)
def test_a_condition_on_a_row_is_accepted(condition: str) -> None:
    assert condition_mistake(condition) is None


@pytest.mark.parametrize("condition", WRONG)
def test_what_is_no_condition_on_a_row_is_named(condition: str) -> None:
    mistake = condition_mistake(condition)
    assert mistake is not None
    assert WRONG[condition] in mistake.problem
    assert mistake.remedy.endswith(".")


def test_a_text_is_understood_if_it_names_known_columns_in_any_case() -> None:
    assert is_understood("Amount < 0 AND note.body = 'x'", ["amount", "NOTE"])
    assert not is_understood("amout < 0", ["amount"])
    assert not is_understood("amount <", ["amount"])


TEXT = st.text(st.sampled_from(string.ascii_lowercase + "{}'\"`-/*\\%:; \n0"), max_size=30)


@given(TEXT, TEXT)
def test_only_the_placeholder_is_replaced_and_the_rest_stays_as_it_is(before: str, after: str) -> None:
    """pyspark replaces by Python's formatting, so formatting gives back each character of the user's."""
    query = f"{before} {{staged}} {after}"
    try:
        formatted = with_placeholders(query, ("staged",)).format(staged="\0")
    except (KeyError, IndexError, ValueError) as error:
        raise AssertionError(query) from error
    assert formatted.replace("\0", "{staged}") == query


def test_a_placeholder_is_none_in_quotes_and_comments() -> None:
    query = "SELECT '{staged}', \"{staged}\", `{staged}` /* {staged} */ FROM {staged} WHERE x rlike '{2}' -- {staged}"
    assert with_placeholders(query, ("staged",)).format(staged="TABLE").count("TABLE") == 1
    assert unknown_placeholders("SELECT {staged}, '{x}' FROM {stage}", ("staged",)) == ["stage"]
