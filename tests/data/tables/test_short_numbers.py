# SPDX-License-Identifier: Apache-2.0
"""Short numbers in one word against a regular expression."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.tables.short_numbers import short_numbers, words_of

_NUMBER = re.compile(rb"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)")


@settings(max_examples=500, deadline=None)
@given(st.lists(st.text(alphabet="0019.-+e,/:", min_size=1, max_size=8).map(str.encode), min_size=1, max_size=10))
def test_short_numbers_are_those_of_the_grammar(values: list[bytes]) -> None:
    view = np.frombuffer(b"".join(value.ljust(8, b"7") for value in values), np.uint8)
    word = words_of(view)[::8]
    number, pointed = short_numbers(word, np.array([len(value) for value in values]))
    assert number.tolist() == [_NUMBER.fullmatch(value) is not None for value in values]
    assert [p for n, p in zip(number, pointed) if n] == [b"." in value for value in values if _NUMBER.fullmatch(value)]


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=8, max_size=8), st.integers(1, 8))
def test_any_bytes_are_told_apart(data: bytes, size: int) -> None:
    number, _ = short_numbers(words_of(np.frombuffer(data, np.uint8)), np.array([size]))
    assert number.tolist() == [_NUMBER.fullmatch(data[:size]) is not None]
