# SPDX-License-Identifier: Apache-2.0
"""How long samples are: tokens where there are tokens, else steps of a signal, else characters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.describe import describe
from fewbit.data.source import Source
from fewbit.data.views import Picked
from fewbit.errors import DataError

MEASURED = ("input_ids", "input_values", "input_features")
"""What a length is the length of, the first of them that is there."""


def texts_of(sample: Mapping[str, Any]) -> Iterator[str]:
    """Every text of a sample, those of a chat too.

    >>> list(texts_of({"prompt": "1+1", "answer": "2", "messages": [{"role": "user", "content": "hi"}]}))
    ['1+1', '2', 'hi']
    """
    for value in sample.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from (turn["content"] for turn in value if _is_turn(turn))


def length_of(sample: Mapping[str, Any]) -> int | None:
    """The length of one sample; none for one that has none, such as a picture.

    >>> length_of({"input_ids": [5, 6, 7]}), length_of({"text": "four"}), length_of({"label": 3})
    (3, 4, None)
    """
    for name in MEASURED:
        if name in sample:
            return len(sample[name])
    texts = list(texts_of(sample))
    return sum(map(len, texts)) if texts else None


def lengths_of(source: Source) -> NDArray[np.int64]:
    """The length of every sample: from the source's own `lengths()` if it has them, else by reading everything once.

    Raises:
        DataError: a sample that has no length.
    """
    known = getattr(source, "lengths", None)
    if callable(known):
        return np.asarray(known(), np.int64)
    if isinstance(source, Picked):
        return lengths_of(source.inner)[np.asarray(source._indices, np.int64)]
    return np.fromiter((_demanded(sample, index) for index, sample in enumerate(source)), np.int64)


def _demanded(sample: Any, index: int) -> int:
    length = length_of(sample)
    if length is None:
        raise DataError(
            f"a sample without a length: {describe(sample)}",
            code="no-length",
            where=f"sample {index}",
            expected=f"a text, or one of {', '.join(MEASURED)}",
            try_="put 'tokenization' before this step",
        )
    return length


def _is_turn(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("content"), str)
