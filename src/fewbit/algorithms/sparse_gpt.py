# SPDX-License-Identifier: Apache-2.0
"""SparseGPT: columns are pruned one after the other, and those to come make up for what each lost.

What is kept is then moved to the values that answer best, for the zeros that were chosen; and with a grid, to the codes
that do: zeros and codes are found together, from the same inputs. See `_sparse_columns`, `_support`, `_compensation`.
"""

from __future__ import annotations

from torch import Tensor

from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._compensation import Compensation, Effort, why_not
from fewbit.algorithms._deciding import PLAIN, decided
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._prune import Matrix
from fewbit.algorithms._sparse_columns import SparseColumns
from fewbit.algorithms.magnitude import smallest
from fewbit.algorithms.wanda import by_importance

STAGE = "prune"
NEEDS = ("moments", "gram")


@one_thread()
def solve(
    problem: Problem,
    *,
    damping: float = 0.01,
    pull: float = 1.0,
    apart: float = 0.0,
    refine: int = 32,
    sweeps: int = 2,
) -> Solution:
    """The pattern, chosen column after column, and weights that make up for its zeros.

    Args:
        problem: the weight, with a pattern and the `gram` of its input; that of a convolution is the `gram` of its
            windows, in the order `(in, kernel)`. Without, the result is that of `wanda`, and `facts["fallback"]` says
            why.
        damping: what is added to the diagonal of the second moment, as a share of its mean: how little it is believed.
        pull: how strongly each feature is held back from moving towards what is wanted, beside what it gives itself.
        apart: by which share features are taken not to go together; more is safer for data unlike that which was seen.
        refine: how many steps bring the kept weights to their best values.
        sweeps: with a grid, how often every code is looked at once more, the others being what they are.

    Raises:
        DataError: a value is not finite.
        UsageError: no pattern, shapes that do not fit together, a grid without an exact zero, a parameter out of range.

    >>> import torch
    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> from fewbit.numerics.sparsity import Pattern
    >>> same = {"gram": {"gram": torch.full((2, 2), 10.0), "count": torch.tensor(10)}}  # the inputs are alike
    >>> problem = Problem(
    ...     torch.tensor([[3.0, 1.0]]), Grid(Dtype.float32), (1, 2), statistics=same, pattern=Pattern(0.5)
    ... )
    >>> solve(problem).qtensor.dequantize().round(decimals=1)  # either does for both
    tensor([[0., 4.]])
    """
    effort, matrix = Effort(damping, pull, refine, sweeps, apart), Matrix(problem)
    if (reason := why_not(matrix)) is not None:
        return by_importance(matrix, fallback=reason)
    case = Compensation(matrix, effort)
    found = {PLAIN: smallest(matrix), "sparse_gpt": case.settled(*_swept(case))}
    return decided(matrix, found, case.moment.facts)


def _swept(case: Compensation) -> tuple[Tensor, Tensor]:
    """The mask, and values as the sweep leaves them; how many are kept where follows from the matrix as it is."""
    matrix = case.matrix
    plan = matrix.kept(case.aim.abs() * case.moment.costs.sqrt())
    mask = plan.clone()

    def prune(rows: slice) -> Tensor:
        scales = matrix.float_units(len(plan[rows]))
        part, held, pattern = plan[rows], matrix.held[rows], matrix.pattern
        work = SparseColumns(case.aim[rows], scales, case.moment, part, held, pattern, matrix.inputs)
        values, mask[rows] = work.pruned()
        return values

    values = case.by_lanes(prune)
    return mask, values
