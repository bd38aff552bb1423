# SPDX-License-Identifier: Apache-2.0
"""Zeros that come step by step; after each, what is left makes up for them, and tells which are the next.

No column waits for another: a step is a few products with the second moment, for all rows at once. As near as `alps`
on a walk, in less time. With a grid, the weights kept are rounded by the sweep of `sparse_gpt`. See `_compensation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from fewbit.algorithms._base import Problem, Solution
from fewbit.algorithms._compensation import Compensation, Effort, why_not
from fewbit.algorithms._deciding import PLAIN, decided
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._prune import Matrix
from fewbit.algorithms._support import refined
from fewbit.algorithms.magnitude import smallest
from fewbit.algorithms.wanda import by_importance
from fewbit.errors import UsageError
from fewbit.numerics.sparsity import Pattern

STAGE = "prune"
NEEDS = ("moments", "gram")

_BETWEEN = 3  # steps towards the best values, before more zeros come


@one_thread()
def solve(
    problem: Problem,
    *,
    damping: float = 0.01,
    pull: float = 1.0,
    apart: float = 0.5,
    by_row: bool = True,
    steps: int = 8,
    refine: int = 12,
    sweeps: int = 2,
) -> Solution:
    """The pattern, in steps that become smaller, and weights that make up for its zeros.

    Args:
        problem: the weight, with a pattern and the `gram` of its input; that of a convolution is the `gram` of its
            windows, in the order `(in, kernel)`. Without, the result is that of `wanda`, and `facts["fallback"]` says
            why.
        damping: what is added to the diagonal of the second moment, as a share of its mean: how little it is believed.
        pull: how strongly each feature is held back from moving towards what is wanted, beside what it gives itself.
        apart: by which share features are taken not to go together; more is safer for data unlike that which was seen.
        by_row: compare weights of the same output only; if not, as the pattern counts them.
        steps: in how many the zeros come; N:M keeps one less of M in each.
        refine: how many steps bring the kept weights to their best values in the end.
        sweeps: with a grid, how often every code is looked at once more, the others being what they are.

    Raises:
        DataError: a value is not finite.
        UsageError: no pattern, shapes that do not fit together, a grid without an exact zero, a parameter out of range.

    >>> import torch
    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> same = {"gram": {"gram": torch.full((2, 2), 10.0), "count": torch.tensor(10)}}  # the inputs are alike
    >>> problem = Problem(
    ...     torch.tensor([[3.0, 1.0]]), Grid(Dtype.float32), (1, 2), statistics=same, pattern=Pattern(0.5)
    ... )
    >>> solve(problem, apart=0.0).qtensor.dequantize().round(decimals=1)
    tensor([[4., 0.]])
    """
    effort = Effort(damping, pull, refine, sweeps, apart)
    if steps < 1:
        raise UsageError(f"steps={steps!r}", where="steps", expected="how many, from 1 up")
    matrix = Matrix(problem)
    if (reason := why_not(matrix)) is not None:
        return by_importance(matrix, fallback=reason)
    case = Compensation(matrix, effort)
    found = {PLAIN: smallest(matrix), "stepwise": case.settled(*_stepped(case, steps, by_row))}
    return decided(matrix, found, case.moment.facts)


def growing(pattern: Pattern, steps: int) -> Iterator[Pattern]:
    """Patterns with more and more zeros, the last one the one itself.

    >>> [each.text for each in growing(Pattern.read("2:4"), 8)], [each.text for each in growing(Pattern(0.5), 2)]
    (['3:4', '2:4'], ['44%', '50%'])
    """
    if pattern.of:
        yield from (replace(pattern, keep=keep) for keep in range(max(pattern.of - 1, pattern.keep), pattern.keep, -1))
    else:
        yield from (replace(pattern, share=pattern.share * (1 - (1 - at / steps) ** 3)) for at in range(1, steps))
    yield pattern


def _stepped(case: Compensation, steps: int, by_row: bool) -> tuple[Tensor, Tensor]:
    """The mask, and values on it."""
    costs, gram, values = case.moment.costs.sqrt(), case.moment.gram, case.aim
    mask, choose = case.matrix.held, case.matrix.kept_in_rows if by_row else case.matrix.kept
    for pattern in growing(case.matrix.pattern, steps):
        mask = choose(values.abs() * costs, pattern)
        held, before = mask, values
        values = case.by_lanes(lambda r: refined(before[r] * held[r], case.aim[r], held[r], gram, _BETWEEN))  # noqa: B023
    return mask, values
