# SPDX-License-Identifier: Apache-2.0
"""One record against Python's `csv`."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.tables.csv_record import joined, parse


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet='a",;ä ', max_size=30))
def test_a_record_is_parsed_as_csv_parses_it(text: str) -> None:
    wanted = next(csv.reader(io.StringIO(text, newline="")), None) or [""]
    assert parse(text, ",", 99).fields == wanted


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=8), st.sampled_from(",;\t|"))
def test_what_was_quoted_comes_back(fields: list[str], delimiter: str) -> None:
    text = delimiter.join('"' + field.replace('"', '""') + '"' for field in fields)
    record = parse(text, delimiter, 99)
    assert record == (fields, None, None)
    assert parse(joined(fields, delimiter), delimiter, 99) == record


@pytest.mark.parametrize(
    ("text", "stray", "early"),
    [
        ('5" disk,x', 0, None),
        ('a,"b"c', None, 1),
        ('"a" ,b"', 1, 0),
        ('"a""b",""', None, None),
        ('a,"open', None, None),
    ],
)
def test_odd_quotes_are_told_apart(text: str, stray: int | None, early: int | None) -> None:
    record = parse(text, ",", 9)
    assert (record.stray, record.early) == (stray, early)


def test_fields_beyond_the_most_come_back_as_one() -> None:
    assert parse("a,b,c,d", ",", 2).fields == ["a", "b", "c,d"]
    assert parse('"a",b,c,d', ",", 2).fields == ["a", "b", "c,d"]
    assert len(parse("," * 1_000_000, ",", 5).fields) == 6
