# SPDX-License-Identifier: Apache-2.0
"""Wanda: the weights whose products with their inputs are smallest are zero, |w| √E[x²] (M. Sun et al., 2023).

They are compared within each output, all of which have the same share of zeros, as in the paper: where the pattern
counts zeros over the weight, these are dealt to its rows evenly, those that were there among them, and their number is
exact.
"""

from __future__ import annotations

from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._deciding import PLAIN, decided
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._prune import Matrix
from fewbit.algorithms.magnitude import smallest

STAGE = "prune"
NEEDS = ("moments",)


@one_thread()
def solve(problem: Problem, *, by_row: bool = True) -> Solution:
    """The pattern with the largest |w| √E[x²] in it, and if there is a grid, its nearest values.

    Args:
        problem: the weight, with a pattern, and the importance of its inputs. Without, the result is that of
            `magnitude`, and `facts["fallback"]` says why.
        by_row: compare weights of the same output only; if not, as the pattern counts them.

    Raises:
        DataError: a value is not finite.
        UsageError: no pattern, shapes that do not fit together, a grid without an exact zero.

    >>> import torch
    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> from fewbit.numerics.sparsity import Pattern
    >>> seen, weight = torch.tensor([[1.0, 100.0]]), torch.tensor([[3.0, -1.0]])
    >>> solve(Problem(weight, Grid(Dtype.float32), (1, 2), seen, pattern=Pattern(0.5))).qtensor.dequantize()
    tensor([[ 0., -1.]])
    """
    matrix = Matrix(problem)
    return by_importance(matrix, by_row=by_row)


def by_importance(matrix: Matrix, *, by_row: bool = True, fallback: str | None = None) -> Solution:
    """The same for a matrix, and why nothing better was done, if so."""
    found, reason = {PLAIN: smallest(matrix)}, fallback
    h = matrix.flat.importance
    if h is None:
        told = "how large the inputs are is not known"
        reason = told if reason is None else f"{reason}; {told}"
    else:
        scores = matrix.weight.abs() * h.float().clamp(min=0).sqrt()
        mask = matrix.kept_in_rows(scores) if by_row else matrix.kept(scores)
        found["wanda"] = matrix.on_grid(matrix.weight.masked_fill(~mask, 0.0))
    return decided(matrix, found, {} if reason is None else {"fallback": reason})
