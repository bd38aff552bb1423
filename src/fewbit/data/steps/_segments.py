# SPDX-License-Identifier: Apache-2.0
"""Several samples as one row of tokens that do not see one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.steps._base import NOTHING
from fewbit.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor, dtype

Piece = tuple[Mapping[str, Any], int, int]
"""A sample, and from where to where it is taken."""

_MADE = ("attention_mask", "position_ids", "segments")


def token_columns(sample: Mapping[str, Any]) -> list[str]:
    """The fields of a sample that have one entry a token, besides those a row gets anew.

    >>> token_columns({"input_ids": [1, 2], "labels": [-100, 2], "attention_mask": [1, 1], "label": 0})
    ['input_ids', 'labels']
    """
    count = len(sample["input_ids"])
    lists = [name for name, value in sample.items() if isinstance(value, list | tuple | np.ndarray)]
    return [name for name in lists if name not in _MADE and len(sample[name]) == count]


def join(pieces: Sequence[Piece], columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Pieces one after the other.

    The first token of each piece has the label "nothing": a model that shifts labels by one would learn it from the
    last token of the piece before.

    Args:
        pieces: what to join.
        columns: the fields to keep, `input_ids` among them; a piece without `labels` has nothing to learn.

    Returns:
        The columns, `position_ids` from 0 in each piece, and `segments`, the number of the piece from 1.

    >>> two = [({"input_ids": [7, 8], "labels": [7, 8]}, 0, 2), ({"input_ids": [9]}, 0, 1)]
    >>> {name: values.tolist() for name, values in join(two, ["input_ids", "labels"]).items()}
    {'input_ids': [7, 8, 9], 'labels': [-100, 8, -100], 'position_ids': [0, 1, 0], 'segments': [1, 1, 2]}
    """
    lengths = [stop - start for _, start, stop in pieces]
    row = {name: np.concatenate([_cut(piece, name) for piece in pieces]) for name in columns}
    if "labels" in row:
        row["labels"][np.cumsum([0, *lengths[:-1]])] = NOTHING
    row["position_ids"] = np.concatenate([np.arange(length) for length in lengths])
    row["segments"] = np.repeat(np.arange(1, len(pieces) + 1), lengths)
    return row


def block_mask(segments: Tensor, values: dtype | None = None) -> Tensor:
    """Which token may look at which: those before it in its own segment, and itself.

    Padding (segment 0) sees padding, so that no token sees nothing, which would be not-a-number.

    Args:
        segments: `(batch, length)`.
        values: a floating dtype gives what is added to scores (0, or the lowest number), which `"eager"` attention of
            transformers needs and `"sdpa"` takes; left out, true and false, which only `"sdpa"` takes.

    Returns:
        `(batch, 1, length, length)`, used by transformers as it is.
    """
    import torch

    length = segments.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    sees = ((segments[:, :, None] == segments[:, None, :]) & before)[:, None]
    if values is None:
        return sees
    return torch.zeros(sees.shape, dtype=values, device=sees.device).masked_fill(~sees, torch.finfo(values).min)


def _cut(piece: Piece, name: str) -> NDArray[Any]:
    sample, start, stop = piece
    if name == "labels" and name not in sample:
        return np.full(stop - start, NOTHING)
    values, count = sample.get(name), len(sample["input_ids"])
    if values is None or len(values) != count or count < stop or not np.all(sample.get("attention_mask", True)):
        raise DataError(
            f"{name!r} has {0 if values is None else len(values):,} entries for {count:,} tokens, or some are padding",
            code="cannot-pack",
            where=getattr(sample, "place", None),
            expected="one entry a token, and the same in every epoch",
            try_="put 'padding' after 'packing'",
        )
    return np.asarray(values[start:stop])
