# SPDX-License-Identifier: Apache-2.0
"""Histograms that grow: bins whose width is a power of two and whose edges are multiples of it.

Row by row, the width is the smallest 2^k for which `bins` bins cover zero and everything seen. When the range grows, k
grows, and each new bin is exactly a run of old bins. So the counts depend on the values seen and on nothing else: not
on their order, not on how they came in batches, not on which side the range grew.

A bin is numbered by its distance from zero. Bin 0 holds the zeros alone (they are on every grid, and after a ReLU they
are most of the values). Bin i > 0 holds (i - 1) 2^k <= x < i 2^k; bin -i mirrors it. Column c of a row's counts is bin
c - negative, where `negative` is how many bins the row has below zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.numerics.pieces import piece_size, pieces
from fewbit.observers._base import State

# The zeros, and at each end one more bin for an extreme that lies on an edge: data in [0, 1] would otherwise need twice
# the width because of a single 1.0.
MORE = 3
# Widths stay normal float32 numbers; no grid has scales below.
_NARROWEST = -126
_SETS = 256  # rows and sets of columns that an accelerator counts in at once


def numbers(state: State) -> Tensor:
    """The number of the bin in each column: int64, `[R, columns]`."""
    columns = torch.arange(state["counts"].shape[1], device=state["low"].device)
    return columns - negative(state["low"], state["exponent"])[:, None]


def powers(exponent: Tensor) -> Tensor:
    """2 ** exponent in float64, exact on every device."""
    return ((exponent.long() + 1023) << 52).view(torch.float64)


def exponents(low: Tensor, high: Tensor, bins: int) -> Tensor:
    """The smallest k for which `bins` bins of width 2^k cover zero and [low, high]: int32 `[R]`."""
    below, above = (-low).clamp(min=0).double(), high.clamp(min=0).double()
    # 2^(k - 1) <= span / bins < 2^k: k - 1 is too small or just right; the bins cut by zero may cost two steps more.
    k = torch.frexp((below + above) / bins).exponent.long() - 1
    k = torch.where(below + above > 0, k, _NARROWEST).clamp_(min=_NARROWEST)
    for _ in range(2):
        width = powers(k)
        k = k + ((below / width).ceil() + (above / width).ceil() > bins).long()
    return k.int()


def negative(low: Tensor, exponent: Tensor) -> Tensor:
    """How many bins a row has below zero: int64 `[R]`."""
    return torch.where(low < 0, ((-low).double() / powers(exponent)).long() + 1, 0)


def count(counts: Tensor, rows: Tensor, low: Tensor, exponent: Tensor) -> None:
    """Add rows to counts, in place; the bins cover them."""
    columns = counts.shape[1]
    width = powers(exponent).float()[:, None]
    start = negative(low, exponent).int()[:, None]
    # In one piece there are not many more bins than values.
    size = piece_size(rows.device)
    most_rows = min(max(16, size // min(columns, rows.shape[1])), max(1, 32 * size // columns))
    for place, piece in pieces(rows, most_rows):
        # Division by a power of two is exact, conversion to integers truncates: the bin, but for zero and the sign.
        column = (piece / width[place]).int().add_(piece.sign().int()).add_(start[place])
        counts[place] += (tally if rows.device.type == "cpu" else tally_spread)(column, columns)


def tally(column: Tensor, columns: int) -> Tensor:
    """How often each column is named in each row of `[R, E]`: int64 `[R, columns]`."""
    own = column + torch.arange(0, len(column) * columns, columns, device=column.device, dtype=torch.int32)[:, None]
    flat = (own.T if own.stride(0) == 1 else own).reshape(-1)  # in the order of memory
    return torch.bincount(flat, minlength=len(column) * columns).view(-1, columns)


def tally_spread(column: Tensor, columns: int) -> Tensor:
    """The same for an accelerator: `bincount` would wait for it, and a bin that many count in at once is slow.

    So each row is counted in several sets of columns, neighbours in different ones, and the sets are added up.
    """
    rows, length = column.shape
    sets = max(1, _SETS // rows)
    first = torch.arange(rows * sets, device=column.device).view(rows, sets) * columns
    own = column + first[:, torch.arange(length, device=column.device) % sets]
    found = torch.zeros(rows * sets * columns, dtype=torch.int64, device=column.device)
    found.scatter_add_(0, own.reshape(-1), found.new_ones(()).expand(own.numel()))
    return found.view(rows, sets, columns).sum(1)


def moved(state: State, low: Tensor, exponent: Tensor) -> Tensor:
    """The counts of a state in the wider bins of a range that holds its own; the same tensor if nothing changes."""
    counts = state["counts"]
    before, after = negative(state["low"], state["exponent"])[:, None], negative(low, exponent)[:, None]
    shift = (exponent - state["exponent"]).long()[:, None]
    if counts.device.type == "cpu" and torch.equal(before, after) and not shift.any():
        return counts
    number = numbers(state)
    wider = number.sign() * (((number.abs() - 1) >> shift.clamp(max=62)) + 1)
    # Columns beyond the range are empty, and may fall off the end.
    column = (wider + after).clamp_(0, counts.shape[1] - 1)
    return torch.zeros_like(counts).scatter_add_(1, column, counts)
