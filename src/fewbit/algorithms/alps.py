# SPDX-License-Identifier: Apache-2.0
"""ALPS: which weights to keep is found for all of them at once, and these then answer as well as they can.

Slower than `sparse_gpt` and nearer, the more so the fewer weights are kept. With a grid, the weights kept are rounded
by the sweep of `sparse_gpt`. See `_alps` and `_compensation`.
"""

from __future__ import annotations

from fewbit.algorithms._alps import kept_by_turns
from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._compensation import Compensation, Effort, why_not
from fewbit.algorithms._deciding import PLAIN, decided
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._prune import Matrix
from fewbit.algorithms.magnitude import smallest
from fewbit.algorithms.wanda import by_importance
from fewbit.errors import UsageError

STAGE = "prune"
NEEDS = ("moments", "gram")


@one_thread()
def solve(
    problem: Problem,
    *,
    damping: float = 0.01,
    pull: float = 1.0,
    apart: float = 0.0,
    turns: int = 64,
    refine: int = 32,
    sweeps: int = 2,
) -> Solution:
    """The pattern that answers best, as far as turns between answers and zeros find it.

    Args:
        problem: the weight, with a pattern and the `gram` of its input; that of a convolution is the `gram` of its
            windows, in the order `(in, kernel)`. Without, the result is that of `wanda`, and `facts["fallback"]` says
            why.
        damping: what is added to the diagonal of the second moment, as a share of its mean: how little it is believed.
        pull: how strongly each feature is held back from moving towards what is wanted, beside what it gives itself.
        apart: by which share features are taken not to go together; more is safer for data unlike that which was seen.
        turns: how many at most; `facts["turns"]` says how many it took until zeros stayed where they were.
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
    >>> solve(problem).qtensor.dequantize().round(decimals=1)
    tensor([[4., 0.]])
    """
    effort = Effort(damping, pull, refine, sweeps, apart)
    if turns < 0:
        raise UsageError(f"turns={turns!r}", where="turns", expected="how many times, from 0 up")
    matrix = Matrix(problem)
    if (reason := why_not(matrix)) is not None:
        return by_importance(matrix, fallback=reason)
    case = Compensation(matrix, effort)
    mask, values, took = kept_by_turns(case, turns)
    found = {PLAIN: smallest(matrix), "alps": case.settled(mask, values)}
    return decided(matrix, found, {**case.moment.facts, "turns": took})
