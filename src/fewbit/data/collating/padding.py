# SPDX-License-Identifier: Apache-2.0
"""How far rows of different lengths are filled up, and on which side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.keys import Key, faults, is_count
from fewbit.data.steps._base import NOTHING
from fewbit.data.text.named_tokenizer import longest_of, pad_id_of
from fewbit.errors import UsageError

Ints = NDArray[np.int64]

_EXPECTED = "True, 'longest', 'max_length', False or 'none', or {'multiple_of': k}"
_WORDS = ("longest", "max_length", "none")
_KEYS = (Key("multiple_of", 1, "a whole number from 1 up", is_count),)


@dataclass(frozen=True)
class Padding:
    """How samples of a batch become equally long.

    Args:
        to: `"longest"` of the batch, `"max_length"`, or `"none"`: they have to be so already.
        length: the length, for `"max_length"`.
        multiple: widths are multiples of it.
        side: where tokens are filled up, `"left"` or `"right"`.
        id: the token that fills up; what it is does not matter, the mask says that it is not there.
        label: what fills labels up: nothing is learned there.
    """

    to: str = "longest"
    length: int | None = None
    multiple: int | None = None
    side: str = "right"
    id: int = 0
    label: int = NOTHING


def width(padding: Padding, lengths: Ints) -> int:
    """How wide a batch of tokens is.

    >>> width(Padding(multiple=8), np.array([3, 11]))
    16
    """
    longest = padding.length if padding.to == "max_length" and padding.length else int(lengths.max())
    return rounded(padding, longest)


def rounded(padding: Padding, size: int) -> int:
    """A size as the next multiple."""
    multiple = padding.multiple or 1
    return -(-size // multiple) * multiple


def starts(padding: Padding, lengths: Ints, width: int) -> Ints:
    """Where each row of tokens begins. Pictures and signals are always filled up at their ends."""
    return width - lengths if padding.side == "left" else np.zeros_like(lengths)


def read_padding(given: Any, side: str | None, max_length: int | None, tokenizer: Any) -> Padding:
    """The rule a user means.

    Args:
        given: `True`, `"longest"`, `"max_length"`, `False` or `"none"`, or `{"multiple_of": k}`; left out it is `True`.
        side: the tokenizer's, if none.
        max_length: what `"max_length"` means; what the tokenizer says, if none.
        tokenizer: says what fills up; none for data without tokens.

    Raises:
        UsageError: it says nothing that is known, or `"max_length"` when there is none.

    >>> read_padding({"multiple_of": 8}, None, None, None).multiple
    8
    """
    multiple = None
    if isinstance(given, Mapping):
        wrong = faults(given, _KEYS)
        if wrong or not given:
            raise UsageError("; ".join(wrong) or "an empty padding", where="padding", expected=_EXPECTED)
        given, multiple = True, int(given["multiple_of"])
    if given is not None and not isinstance(given, bool) and given not in _WORDS:
        raise UsageError(f"padding={given!r}", where="padding", expected=_EXPECTED)
    to = "none" if given in (False, "none") else "max_length" if given == "max_length" else "longest"
    length = (max_length or longest_of(tokenizer)) if to == "max_length" else None
    if to == "max_length" and length is None:
        raise UsageError(
            "padding='max_length' without a length to pad to",
            where="padding",
            expected="max_length in the configuration, or a tokenizer that has one",
            try_="custom_config={'max_length': 512}",
        )
    side = side or str(getattr(tokenizer, "padding_side", "right"))
    return Padding(to, length, multiple, side, pad_id_of(tokenizer))
