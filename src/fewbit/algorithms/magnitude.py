# SPDX-License-Identifier: Apache-2.0
"""The smallest weights are zero, the others stay as they are."""

from __future__ import annotations

from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._deciding import PLAIN, decided
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._prune import Matrix
from fewbit.numerics.qtensor import QTensor

STAGE = "prune"
NEEDS: tuple[str, ...] = ()


@one_thread()
def solve(problem: Problem) -> Solution:
    """The pattern with the largest |w| in it, and if there is a grid, its nearest values.

    Args:
        problem: the weight, with a pattern; a float32 grid leaves it in float.

    Raises:
        DataError: a value is not finite.
        UsageError: no pattern, shapes that do not fit together, a grid without an exact zero.

    >>> import torch
    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> from fewbit.numerics.sparsity import Pattern
    >>> weight = torch.tensor([[3.0, -1.0, 2.0, 0.5]])
    >>> solve(Problem(weight, Grid(Dtype.float32), (1, 4), pattern=Pattern.read("2:4"))).qtensor.dequantize()
    tensor([[3., 0., 2., 0.]])
    """
    matrix = Matrix(problem)
    return decided(matrix, {PLAIN: smallest(matrix)}, {})


def smallest(matrix: Matrix) -> QTensor:
    """A matrix without its smallest elements."""
    weight = matrix.weight
    return matrix.on_grid(weight.masked_fill(~matrix.kept(weight.abs()), 0.0))
