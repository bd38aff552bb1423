# SPDX-License-Identifier: Apache-2.0
"""Several samples in one row of tokens.

`best_fit` and `join` pack training samples so that they do not see one another; `concatenate` runs texts together and
cuts them, as language models are calibrated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.text.roles import IGNORED, Ints
from fewbit.data.types import Location
from fewbit.rng import generator

if TYPE_CHECKING:
    from torch import Tensor

Piece = tuple[Mapping[str, Any], int, int]
"""A sample, and from which token to which it is taken."""


def best_fit(lengths: Ints, capacity: int, seed: int = 0) -> list[list[int]]:
    """Which samples share a row: the longest first, each into the row it fills best.

    Args:
        lengths: of each sample, from 1 to `capacity`.
        capacity: tokens of a row.
        seed: decides between samples of the same length, which the order of the file must not.

    Returns:
        The samples of each row in ascending order; rows by their first sample.

    >>> best_fit(np.array([5, 3, 6, 4, 2]), 10)
    [[0, 1, 4], [2, 3]]
    """
    order = np.lexsort((generator(seed).random(len(lengths)), -lengths))
    rows: list[list[int]] = []
    rows_by_room: defaultdict[int, list[int]] = defaultdict(list)
    rooms = 1 << capacity  # bit n is set if a row has room for n tokens; a new row always has room for all
    for sample, length in zip(order.tolist(), lengths[order].tolist()):
        fitting = rooms >> length
        room = length + (fitting & -fitting).bit_length() - 1  # the lowest bit is the best fit
        if room == capacity:
            rows_by_room[capacity].append(len(rows))
            rows.append([])
        row = rows_by_room[room].pop()
        rows[row].append(sample)
        if not rows_by_room[room] and room < capacity:
            rooms ^= 1 << room
        if room > length:
            rows_by_room[room - length].append(row)
            rooms |= 1 << (room - length)
    return sorted(sorted(row) for row in rows)


def join(pieces: Sequence[Piece], fields: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Pieces one after the other as one row.

    Args:
        pieces: what to join.
        fields: which fields, all with one entry per token.

    Returns:
        The fields; `position_ids`, from 0 in each piece; `seq_lens`, the tokens of each piece. The first label of each
        piece is -100: a model that shifts labels would learn it from the piece before.

    >>> two = [({"input_ids": [7, 8], "labels": [7, 8]}, 0, 2), ({"input_ids": [9], "labels": [9]}, 0, 1)]
    >>> {name: values.tolist() for name, values in join(two, ["input_ids", "labels"]).items()}
    {'input_ids': [7, 8, 9], 'labels': [-100, 8, -100], 'position_ids': [0, 1, 0], 'seq_lens': [2, 1]}
    """
    lengths = np.array([stop - start for _, start, stop in pieces], np.int64)
    row = {
        name: np.concatenate([np.asarray(sample[name])[start:stop] for sample, start, stop in pieces])
        for name in fields
    }
    if "labels" in row:
        row["labels"][np.cumsum(lengths) - lengths] = IGNORED
    positions = np.concatenate([np.arange(length) for length in lengths])
    return row | {"position_ids": positions, "seq_lens": lengths}


def block_mask(segments: Tensor) -> Tensor:
    """What is added to the attention scores: 0 where a token may look, the lowest number elsewhere.

    A token sees itself and the earlier ones of its segment; padding (segment 0) sees padding, because a row of the mask
    without any entry gives NaN. Booleans would do for `sdpa`, but not for `eager` attention.

    Args:
        segments: [batch, length].

    Returns:
        [batch, 1, length, length], float32.
    """
    import torch

    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    visible = ((segments[:, :, None] == segments[:, None, :]) & causal)[:, None]
    return torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)


def concatenate(
    texts: Iterable[tuple[Sequence[int], Location]], max_length: int, start: Sequence[int] = ()
) -> Iterator[tuple[list[int], Location]]:
    """Texts one after the other, cut into sequences of `max_length` that each begin with the start tokens.

    Args:
        texts: tokens of each text with its end-of-text, and where it comes from.
        max_length: tokens of a sequence.
        start: special tokens that every sequence begins with.

    Yields:
        A sequence, and where its first token comes from. The rest, too short for a sequence, is left out unless it is
        all there is.

    >>> [ids for ids, _ in concatenate([([5, 6, 2], Location()), ([7, 2], Location())], 3, start=[1])]
    [[1, 5, 6], [1, 2, 7]]
    """
    room = max_length - len(start)
    waiting: list[int] = []
    first = Location()
    complete = False
    for ids, location in texts:
        first = first if waiting else location
        waiting += ids
        for position in range(0, len(waiting) - room + 1, room):
            yield [*start, *waiting[position : position + room]], first
            complete, first = True, location
        waiting = waiting[len(waiting) // room * room :]
    if waiting and not complete:
        yield [*start, *waiting], first
