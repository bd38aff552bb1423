# SPDX-License-Identifier: Apache-2.0
"""Best fit, longest first: which samples share a row so that little of it stays empty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def best_fit(lengths: NDArray[np.int64], capacity: int, seed: int) -> list[list[int]]:
    """Put samples into rows, each where it leaves the least room, the longest first.

    Never more than 11/9 of the fewest rows there could be, and one. How many rows there are depends on the lengths
    alone; which of equally long samples share one depends on the seed.

    Args:
        lengths: of each sample, from 1 to `capacity`.
        capacity: of a row.
        seed: decides between samples of the same length.

    Returns:
        The samples of each row in ascending order, rows by their first sample.

    >>> best_fit(np.array([5, 3, 6, 4, 2]), 10, seed=0)
    [[0, 1, 4], [2, 3]]
    """
    # Spread at random before sorting: files are often in an order that means something.
    ties = np.random.Generator(np.random.PCG64(seed)).random(len(lengths))
    order = np.lexsort((ties, -lengths))
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}
    rooms = 0  # bit n: some row has room for n more; so the tightest fit is the lowest bit from a length up
    for sample, length in zip(order.tolist(), lengths[order].tolist()):
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(sample)
        left = room - length
        if left:
            with_room.setdefault(left, []).append(row)
            rooms |= 1 << left
    return sorted(sorted(row) for row in rows)
