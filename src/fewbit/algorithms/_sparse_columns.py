# SPDX-License-Identifier: Apache-2.0
"""Columns that are pruned one after the other; those to come make up for what each lost.

The error of column k costs D[k] times its square, after those to come have made up for it (see `_columns`). So when a
group of columns is reached, its elements of which D w² is smallest become zero, w being what the columns before left of
them (E. Frantar, D. Alistarh, 2023). How many of a row lie in which group was decided beforehand, for the matrix as a
whole: the number of zeros is exact, and rows do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fewbit.algorithms._columns import Columns
from fewbit.algorithms._moment import Moment
from fewbit.algorithms._prune import zeros_last
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.qparams import QParams
from fewbit.numerics.sparsity import Pattern, highest

_GROUP = 32


def in_runs(columns: int, inputs: int, pattern: Pattern, device: torch.device) -> Tensor:
    """The order of columns `(in, kernel)` in which what the pattern ties together lies together.

    >>> in_runs(6, 3, Pattern.read("2:4"), torch.device("cpu"))
    tensor([0, 2, 4, 1, 3, 5])
    """
    natural = torch.arange(columns, device=device)
    return natural.reshape(inputs, -1).T.flatten() if _ties(pattern) else natural


class SparseColumns(Columns):
    """Some rows of a matrix.

    Args:
        weight: `[out, in]`.
        scales: of its blocks; those of floats if it stays in float.
        moment: of the input; its order is that of `in_runs`.
        plan: a mask that says how many are kept in each group of columns, `[out, in]`.
        held: where elements may be kept at all, `[out, in]`.
        pattern: which elements may be zero.
        inputs: of the layer; each has as many columns as the kernel has elements.
    """

    def __init__(
        self,
        weight: Tensor,
        scales: QParams,
        moment: Moment,
        plan: Tensor,
        held: Tensor,
        pattern: Pattern,
        inputs: int,
    ):
        super().__init__(weight, scales, moment.order, moment.feedback, moment.damping, torch.zeros_like(weight))
        self._held = held.T[moment.order]
        self._plan, self._pattern, self._inputs, self._sizes = plan.T[moment.order], pattern, inputs, moment.sizes

    def pruned(self) -> tuple[Tensor, Tensor]:
        """The codes and the mask, `[out, in]`."""
        aim = self._whole.T[self._order].contiguous()
        done, lost = torch.empty_like(aim), torch.empty_like(aim)
        assert self._mask is not None
        for start, end in self._groups():
            here = slice(start, end)
            near = torch.addmm(aim[here], self._feedback[:start, here].T, lost[:start])
            before = self._feedback[here, here].T.contiguous()
            # Each as it would be if those of the group before it were kept.
            left = torch.linalg.solve_triangular(before, near - aim[here], upper=False, unitriangular=True)
            costs = (left + aim[here]).square_() * self._sizes[here, None]
            costs = zeros_last(costs, self._held[here], self._pattern)
            self._mask[here] = (self._kept(costs, self._plan[here]) & self._held[here]).to(aim.dtype)
            done[here], lost[here] = self._panel(start, near, before, aim[here])
        mask = torch.empty_like(self._mask)
        mask[self._order] = self._mask
        return self._codes(done), mask.T > 0

    def _groups(self) -> Iterator[tuple[int, int]]:
        """Columns whose zeros are chosen at once; they never cut what the pattern ties together."""
        columns, pattern = self._whole.shape[1], self._pattern
        run = self._inputs if _ties(pattern) else columns
        width = pattern.of or -(-_GROUP // pattern.block[1]) * pattern.block[1]
        for first in range(0, columns, run):
            for start in range(first, first + run, width):
                yield start, min(start + width, first + run)

    def _kept(self, costs: Tensor, plan: Tensor) -> Tensor:
        """Of a group, `[columns, out]`: where elements are kept."""
        tall, wide = self._pattern.block
        if self._pattern.of:
            return plan if len(costs) < self._pattern.of else highest(costs.T, self._pattern.keep).T
        if (tall, wide) != (1, 1):
            blocks = Blocks(tuple(costs.shape), (wide, tall))
            # A block is kept for any of its elements: the others may be zero already.
            chosen = _first(blocks.split(costs).sum((1, 3)), blocks.split(plan).any(3).any(1).sum(0))
            return chosen.repeat_interleave(wide, 0).repeat_interleave(tall, 1)[: len(plan), : plan.shape[1]]
        return _first(costs, plan.sum(0))


def _ties(pattern: Pattern) -> bool:
    return bool(pattern.of) or pattern.block != (1, 1)


def _first(costs: Tensor, count: Tensor) -> Tensor:
    """The so many highest of each column, the first of equals."""
    ranks = torch.argsort(torch.argsort(costs, dim=0, descending=True, stable=True), dim=0, stable=True)
    return ranks < count
