# SPDX-License-Identifier: Apache-2.0
"""A weight that is pruned, as a matrix with a row for each output."""

from __future__ import annotations

from math import lcm, prod

import torch
from torch import Tensor

from fewbit.algorithms import rtn, scale_search
from fewbit.algorithms._base import Problem
from fewbit.errors import UsageError
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dealing import dealt
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.sparsity import Pattern, count, highest, kept


class Matrix:
    """A weight to prune: `[out, in · kernel]`, whatever its shape.

    Args:
        problem: the weight, its pattern and grid.

    Raises:
        DataError: a value is not finite.
        UsageError: no pattern; shapes that do not fit together; a grid without an exact zero.
    """

    def __init__(self, problem: Problem):
        problem.check()
        _refuse(problem)
        assert problem.pattern is not None
        self.pattern: Pattern = problem.pattern
        self._shape, self._block = tuple(problem.weight.shape), problem.block
        self.is_float = problem.grid.dtype.is_cast
        self.inputs = self._shape[1]
        wide = prod(self._shape[2:])
        self.flat = Problem(
            problem.weight.detach().float().flatten(1),
            problem.grid,
            (problem.block[0], problem.block[1] * wide),
            self._flattened(problem.importance),
            self._flattened(problem.held_out),
            problem.statistics,
            problem.held_out_statistics,
            problem.name,
            problem.super_scale,
            problem.shared,
            problem.pattern,
        )
        # What is zero stays so, whatever is pruned now, and counts among the zeros asked for.
        self.held = self.weight != 0
        self._above = rtn.qparams(self.flat).super_scale if problem.grid.two_level else None

    def _flattened(self, importance: Tensor | None) -> Tensor | None:
        if importance is None or (len(self._shape) == 2 and importance.ndim <= 2):
            return importance
        return importance.expand(1 if len(importance) == 1 else self._shape[0], *self._shape[1:]).flatten(1)

    @property
    def weight(self) -> Tensor:
        """Float32 `[out, columns]`."""
        return self.flat.weight

    @property
    def band(self) -> int:
        """How many rows one choice is made for."""
        if self.pattern.of or self.pattern.by_row:
            together = lcm(self.pattern.block[0], 1 if self.is_float else self._block[0])
            return min(together, len(self.weight))
        return max(1, len(self.weight))

    @property
    def height(self) -> int:
        """How many rows can only be settled together."""
        return min(lcm(self.pattern.block[0], 1 if self.is_float else self._block[0]), max(1, len(self.weight)))

    def kept(self, scores: Tensor, pattern: Pattern | None = None) -> Tensor:
        """The mask of the pattern, `[out, columns]`, by scores of which those of a block are squared and summed."""
        pattern = pattern or self.pattern
        if pattern.block != (1, 1):
            scores = (scores / scores.amax().clamp(min=torch.finfo(torch.float32).tiny)).square_()
        scores = zeros_last(scores, self.held, pattern)
        return kept(scores.reshape(self._shape), pattern).reshape(scores.shape) & self.held

    def kept_in_rows(self, scores: Tensor, pattern: Pattern | None = None) -> Tensor:
        """The same, where only elements of one output are compared: the zeros of the weight are dealt to its rows as
        evenly as can be. N:M and blocks are what they are."""
        pattern = pattern or self.pattern
        if pattern.of or pattern.by_row or pattern.block != (1, 1):
            return self.kept(scores, pattern)
        width, held = scores.shape[1], self.held
        zeros = dealt(count(pattern.share, scores.numel()), width - held.sum(1))
        scores, mask = zeros_last(scores, held, pattern), torch.empty_like(held)
        for number in sorted(set(zeros.tolist())):  # two, where there were no zeros before
            some = (zeros == number).to(scores.device)
            mask[some] = highest(scores[some], width - number)
        return mask

    def on_grid(self, values: Tensor, rows: slice = slice(None)) -> QTensor:
        """Values of some rows as floats, or on the grid with the scales that suit them; zeros are exact."""
        if self.is_float:
            return QTensor.encode(values, self._units(self.flat.grid, len(values)))
        flat = self.flat
        seen, aside = (
            x if x is None or x.ndim < 2 or len(x) == 1 else x[rows] for x in (flat.importance, flat.held_out)
        )
        part = Problem(values, flat.grid, flat.block, seen, aside, name=flat.name, super_scale=self._above)
        return scale_search.solve(part).qtensor

    def float_units(self, rows: int) -> QParams:
        """The scales of so many rows of floats, whatever the grid."""
        return self._units(Grid(Dtype.float32), rows)

    def _units(self, grid: Grid, rows: int) -> QParams:
        return QParams(grid, (max(1, rows), max(1, self.weight.shape[1])), self.weight.new_ones(1, 1))

    def shaped(self, flat: QTensor) -> QTensor:
        """Codes of the matrix as those of the weight."""
        params, counts = flat.qparams, Blocks(self._shape, self._block).counts
        if self.is_float:
            params = QParams(params.grid, self._block, params.scale.new_ones(counts))
        else:
            params = params.reshape(self._block, counts)
        return QTensor.from_codes(flat.codes().reshape(self._shape), params)


def zeros_last(scores: Tensor, held: Tensor, pattern: Pattern) -> Tensor:
    """Scores by which what is not held is below all that is, even where that counts for nothing."""
    if pattern.block == (1, 1):
        return scores.masked_fill(~held, -1.0)
    # Those of a block are summed; so what is held is above zero.
    return scores.clamp(min=torch.finfo(torch.float32).tiny) * held


def _refuse(problem: Problem) -> None:
    shape, block, where = problem.weight.shape, problem.block, problem.name or None
    if problem.pattern is None:
        raise UsageError("no pattern of zeros", where=where, expected="a Pattern, such as Pattern.read(0.5)")
    if len(shape) < 2:
        raise UsageError(f"a weight of shape {list(shape)}", where=where, expected="outputs and inputs to prune")
    if problem.grid.free_zero:
        raise UsageError(
            "a grid whose zero point is no code has no exact zero",
            where=where,
            expected="a symmetric grid, or an integer zero point",
            try_="float_zero=False",
        )
    if not problem.grid.dtype.is_cast and tuple(block[2:]) != tuple(shape[2:]):
        raise UsageError(
            f"scales for blocks of shape {list(block)} in a weight of shape {list(shape)}",
            where=where,
            expected="blocks that hold the kernel as a whole",
        )
