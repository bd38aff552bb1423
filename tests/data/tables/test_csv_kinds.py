# SPDX-License-Identifier: Apache-2.0
"""Kinds of fields against a regular expression, one field at a time."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.tables.csv_kinds import KINDS, kind_of, kinds

_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def plain(value: str) -> str:
    if not value:
        return "empty"
    if len(value) > 64:
        return "text"
    if _INT.fullmatch(value):
        return "int"
    return "float" if _FLOAT.fullmatch(value) else "text"


def found(values: list[str]) -> list[str]:
    raw = [value.encode() for value in values]
    ends = np.cumsum([len(value) + 1 for value in raw], dtype=np.int64) - 1
    starts = ends - [len(value) for value in raw]
    view = np.frombuffer(b",".join(raw) + b"\n", np.uint8)
    looks = [KINDS[kind] for kind in kinds(view, starts, ends)]
    assert looks == [KINDS[kind_of(value)] for value in values]
    return looks


numberish = st.text(alphabet="01279.-+eE_ aä", max_size=10)
numbers = st.one_of(st.integers().map(str), st.floats().map(repr), st.decimals(allow_nan=False).map(str))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(numberish, numbers, st.text(alphabet="0123456789", max_size=70)), min_size=1, max_size=20))
def test_kinds_are_those_of_the_grammar(values: list[str]) -> None:
    assert found(values) == [plain(value) for value in values]


@pytest.mark.parametrize("value", ["007", "+1", "1_000", "NA", "nan", "inf", " 1", "1 ", "0x10", "1e", "-", ".", "１"])
def test_what_would_not_survive_a_cast_is_text(value: str) -> None:
    assert found([value]) == ["text"]


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_python_writes_is_a_float(value: float) -> None:
    assert found([repr(value)]) == ["float"]
