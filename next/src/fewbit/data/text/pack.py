# SPDX-License-Identifier: Apache-2.0
"""Several samples in one row of tokens.

`best_fit` and `join` pack training samples so that they do not see one another; `concatenate` runs texts together and
cuts them, as language models are calibrated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.text.roles import IGNORED, Ints
from fewbit.data.types import Location
from fewbit.rng import generator

if TYPE_CHECKING:
    from torch import Tensor, dtype

Piece = tuple[Mapping[str, Any], int, int]
"""A sample, and from which token to which it is taken."""


def best_fit(lengths: Ints, capacity: int, seed: int = 0) -> list[list[int]]:
    """Which samples share a row: the longest first, each into the row it fills best.

    At most 11/9 of the fewest rows possible, plus one. The seed decides between samples of the same length.

    Args:
        lengths: of each sample, from 1 to `capacity`.
        capacity: tokens of a row.
        seed: of the ties, so that the order of the file does not decide who shares a row.

    Returns:
        The samples of each row in ascending order; rows by their first sample.

    >>> best_fit(np.array([5, 3, 6, 4, 2]), 10)
    [[0, 1, 4], [2, 3]]
    """
    order = np.lexsort((generator(seed).random(len(lengths)), -lengths))
    rows: list[list[int]] = []
    rows_by_room: dict[int, list[int]] = {}
    rooms = 0  # bit n is set if some row has room for n tokens, so the best fit is the lowest bit from a length up
    for sample, length in zip(order.tolist(), lengths[order].tolist()):
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = rows_by_room[room].pop()
            if not rows_by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(sample)
        if room > length:
            rows_by_room.setdefault(room - length, []).append(row)
            rooms |= 1 << (room - length)
    return sorted(sorted(row) for row in rows)


def join(pieces: Sequence[Piece], fields: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Pieces one after the other as one row.

    Args:
        pieces: what to join.
        fields: what to keep, `input_ids` among it; one entry per token.

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
    row["position_ids"] = np.concatenate([np.arange(length) for length in lengths])
    row["seq_lens"] = lengths
    return row


def block_mask(segments: Tensor, values: dtype | None = None) -> Tensor:
    """Which token may attend to which: the earlier ones of its own segment, and itself.

    Padding (segment 0) attends to padding, because a row of the mask without any entry gives NaN.

    Args:
        segments: [batch, length].
        values: a floating dtype for a mask that is added to the scores (0, or the lowest number), which `eager`
            attention needs; booleans otherwise, which only `sdpa` takes.

    Returns:
        [batch, 1, length, length].
    """
    import torch

    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    allowed = ((segments[:, :, None] == segments[:, None, :]) & causal)[:, None]
    if values is None:
        return allowed
    return torch.zeros(allowed.shape, dtype=values, device=allowed.device).masked_fill(
        ~allowed, torch.finfo(values).min
    )


def concatenate(
    texts: Iterable[tuple[Sequence[int], Location]], max_length: int, start: Sequence[int] = ()
) -> Iterator[tuple[list[int], Location]]:
    """Texts one after the other, cut into sequences that each begin with the start tokens.

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
    first: Location | None = None
    count = 0
    for ids, location in texts:
        first = first or location
        waiting += ids
        position = 0
        while len(waiting) - position >= room:
            yield [*start, *waiting[position : position + room]], first
            count += 1
            position += room
            first = location
        del waiting[:position]
        if not waiting:
            first = None
    if waiting and not count:
        yield [*start, *waiting], first or Location()
