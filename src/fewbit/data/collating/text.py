# SPDX-License-Identifier: Apache-2.0
"""Rows of tokens: filled up, with a mask that is true, and labels that say nothing where nothing is to be learned."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.data.collating.columns import Columns
from fewbit.data.collating.filling import as_array, fill_rows, is_array, where_kept
from fewbit.data.collating.padding import Ints, Padding, starts, width
from fewbit.data.steps._segments import block_mask

Attention = Literal["mask", "positions"]

_ONES = ("special_tokens_mask",)
_ANSWER_PLACES = ("start_positions", "end_positions")


def join_text(columns: Columns, padding: Padding, attention: Attention) -> dict[str, Tensor]:
    """The fields that have one entry a token, filled up to one width.

    Args:
        columns: with `input_ids`.
        padding: how far, where, with what.
        attention: of rows that hold several texts: `"mask"` gives a mask of four axes, to be added to the scores;
            `"positions"` gives none: the model tells the texts apart where `position_ids` begin anew.

    Raises:
        DataError: a row that is empty, too long or of the wrong kind, or a field that does not go with it.
    """
    rows = columns.take("input_ids")
    lengths = np.array([_length(columns, row, ids) for row, ids in enumerate(rows)], np.int64)
    _check_widths(columns, lengths, padding)
    across = width(padding, lengths)
    first = starts(padding, lengths, across)
    keep = where_kept(first, lengths, across)
    batch = {"input_ids": fill_rows(rows, keep, padding.id)}
    if batch["input_ids"].dtype is not torch.int64:
        odd = next(row for row, ids in enumerate(rows) if as_array(ids).dtype.kind not in "iu")
        raise columns.misfit(odd, "input_ids", f"{as_array(rows[odd]).dtype} numbers", "whole numbers")
    for name in [name for name in columns.values if _beside(columns, name, lengths)]:
        value = padding.label if name == "labels" else int(name in _ONES)
        batch[name] = fill_rows(columns.take(name), keep, value)
    for name in _ANSWER_PLACES:  # the places of an answer move with the tokens
        if name in columns:
            batch[name] = torch.from_numpy(np.array(columns.take(name), np.int64) + first)
    return batch | _attention(batch, keep, attention)


def _attention(batch: dict[str, Tensor], keep: NDArray[np.bool_], attention: Attention) -> dict[str, Tensor]:
    real = batch.pop("attention_mask", torch.from_numpy(keep).long())
    positions, segments = batch.pop("position_ids", None), batch.pop("segments", None)
    if positions is None:
        return {"attention_mask": real}
    padded = real == 0
    if segments is None:
        segments = 1 + (torch.diff(positions, dim=1, prepend=positions[:, :1]) != 1).cumsum(1)
    # Padding is a text of its own with positions of its own, so that nothing else is seen from it or sees it.
    positions = torch.where(padded, padded.cumsum(1) - 1, positions)
    if attention == "positions":
        return {"position_ids": positions}
    return {"position_ids": positions, "attention_mask": block_mask(segments.masked_fill(padded, 0), torch.float32)}


def _length(columns: Columns, row: int, ids: Any) -> int:
    shape = (len(ids),) if isinstance(ids, list | tuple) else tuple(getattr(ids, "shape", ()))
    if len(shape) != 1:
        raise columns.misfit(row, "input_ids", f"shape {shape}", "one row of tokens, without a batch axis")
    if not shape[0]:
        raise columns.misfit(row, "input_ids", "no token at all", "one token or more", "the step 'filtering'")
    return int(shape[0])


def _check_widths(columns: Columns, lengths: Ints, padding: Padding) -> None:
    limit = padding.length if padding.to == "max_length" else None
    if limit is not None and lengths.max() > limit:
        row = int(np.argmax(lengths > limit))
        helps = "the step 'truncation', or a larger max_length"
        raise columns.misfit(row, "input_ids", f"{lengths[row]} tokens", f"at most max_length={limit}", helps)
    if padding.to == "none" and lengths.min() != lengths.max():
        row = int(np.argmax(lengths != lengths[0]))
        helps = "padding=True, or the step 'packing' or 'padding'"
        raise columns.misfit(row, "input_ids", f"{lengths[row]} tokens", f"{lengths[0]}, as before it", helps)


def _beside(columns: Columns, name: str, lengths: Ints) -> bool:
    """Whether a field has one entry a token.

    Raises:
        DataError: it ought to have, and has not in some sample.
    """
    values = columns.values[name]
    if not all(map(is_array, values)):
        return False
    sizes = np.array([len(value) for value in values])
    if (sizes == lengths).all():
        return all(getattr(value, "ndim", 1) < 3 for value in values)
    apart = name not in _TOKENS and (sizes == sizes[0]).all()  # several labels a text: as many for every one
    if apart or name not in (*_TOKENS, "labels"):
        return False
    row = int(np.argmax(sizes != lengths))
    raise columns.misfit(row, name, f"{sizes[row]} entries", f"{lengths[row]}, one for each of input_ids")


_TOKENS = ("attention_mask", "token_type_ids", "position_ids", "segments", "special_tokens_mask")
