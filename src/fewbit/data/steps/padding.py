# SPDX-License-Identifier: Apache-2.0
"""Says how samples are filled up when a batch is made: to the longest, to a length, to a multiple, on which side.

The samples stay as they are, since only a batch knows how long its longest is. The collator reads the two keys; it
fills labels with -100, whatever the token that fills up looks like, and says in the attention mask what is not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.keys import Key, is_count, one_of, optional
from fewbit.data.source import Source
from fewbit.data.steps._base import Context

AFTER = ("tokenization", "masking", "truncation", "packing", "augmentation", "filtering", "sampling", "mixing")
NEEDS: tuple[str, ...] = ()


def is_padding(value: Any) -> bool:
    """Whether a value says how far samples are filled up.

    >>> is_padding(True), is_padding({"multiple_of": 8}), is_padding(8)
    (True, True, False)
    """
    if isinstance(value, Mapping):
        return value.keys() == {"multiple_of"} and is_count(value["multiple_of"])
    return one_of(True, False, "longest", "max_length", "none")(value)


KEYS = (
    Key(
        "padding",
        None,
        "true, 'longest', 'max_length', false or 'none', or {'multiple_of': k}",
        optional(is_padding),
        "how far",
    ),
    Key("padding_side", None, "'left' or 'right'", optional(one_of("left", "right")), "the tokenizer's, if not said"),
)


def faults(options: Mapping[str, Any]) -> list[str]:
    """Keys that contradict one another, one line each."""
    if options["padding"] == "max_length" and options["max_length"] is None:
        return ["padding='max_length': expected max_length, the length"]
    return []


def apply(source: Source, context: Context) -> Source:
    """The same samples."""
    return source
