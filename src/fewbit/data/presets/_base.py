# SPDX-License-Identifier: Apache-2.0
"""What a preset is.

A member is a file with

- `HUB`: the id of the dataset on the hub, with its configuration after a colon if it has one; none if it has no home;
- `SPLITS`: `{"train": name, "validation": name}` as its files call them; a split that is not there is cut from train;
- `TASK`: `"causal_lm"`, `"sequence_classification"` …;
- `STEPS`: what is done if nobody says;
- `KEYS`: the keys of `custom_config` it reads; one that everybody knows has another default here;
- `COLUMNS`: the columns a row must have; `custom_config={"columns": {column: the file's name for it}}` names others;
- `example(row, options) -> dict`: a row of the files as the fields of `fewbit.data.steps`. It raises `DataError` for a
  row it cannot make sense of, with what it found; the row is left out and counted.

It may have `CLASSES`, the names of the classes in the order of their numbers.

Local files come first: `custom_config={"path": …}` reads the same rows from a file of any format that opens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fewbit.data.describe import describe
from fewbit.errors import DataError

Example = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]

TEXT_STEPS = ("tokenization", "masking", "truncation", "padding")
"""What is done to prompts and answers if nobody says."""


def text_in(row: Mapping[str, Any], column: str) -> str:
    """The text in a column.

    Raises:
        DataError: there is none.
    """
    value = row.get(column)
    if not isinstance(value, str):
        raise DataError(f"{column!r} is {describe(value)}", code="bad-row", expected="a text")
    if not value.strip():
        raise DataError(f"{column!r} is empty", code="bad-row", expected="a text")
    return value
