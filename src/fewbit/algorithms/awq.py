# SPDX-License-Identifier: Apache-2.0
"""AWQ: channels that carry much are multiplied before rounding, so that less of what they carry is lost.

s = rms(x)^r by channel, or rms(x)^r / mean|w|^(1 - r), over sqrt(max s · min s) (arXiv 2306.00978, section 3.2; there
mean|x| stands for the size of a channel, here the root of the second moment, which the error is weighed with). r comes
from a grid, "not at all" among the choices, and what Q(W s) / s really loses decides: some rows are rounded with every
candidate, all of them with the best. The paper's second part, clipping a group's extremes, is what `scale_search` does
wherever weights are rounded, for every group and by the same error; so candidates are judged by what it makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fewbit.algorithms import scale_search
from fewbit.algorithms._base import LinkProblem, Operand, Problem, Rescaling
from fewbit.algorithms._link_rounding import RoundedError, thinned
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._rescaling import Ranges, choose, gathered
from fewbit.errors import UsageError
from fewbit.numerics.qtensor import QTensor

STAGE = "prepare"
NEEDS = ("low", "high", "square", "count")

_ROWS, _FINALISTS = 64, 2  # rows of each weight for the first choice; candidates that are judged by all
# Channels that the samples hardly lit may be lit later: they count as this share of the median. And those that hardly
# any weight reads are not to be blown up without end.
_LEAST_CARRIED, _LEAST_WEIGHED = 0.1, 0.01


@one_thread()
def solve(problem: LinkProblem, *, steps: int = 20, margin: float = 0.01) -> Rescaling:
    """Factors for the channels that carry much, if rounding then loses less.

    Args:
        problem: the link; all its consumers share the factors.
        steps: how many exponents are tried, evenly spaced from [0, 1].
        margin: by which share the error has to fall.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes that do not fit together, no step, or a margin that is no share.

    >>> from fewbit.algorithms._base import Activation
    >>> from fewbit.numerics.dtypes import Dtype
    >>> from fewbit.numerics.grid import Grid
    >>> reads = Operand(torch.tensor([[0.3, 1.0], [0.4, -1.0]]), Grid(Dtype.int3))
    >>> seen = Activation(mean_square=torch.tensor([100.0, 1.0]), grid=None)
    >>> found = solve(LinkProblem([reads], [0, 1], activation=seen))
    >>> bool(found.factors[0] > found.factors[1]), found.facts["error"] < found.facts["error_unscaled"]
    (True, True)
    """
    if steps < 1:
        raise UsageError(f"steps={steps!r}", where="steps", expected="a whole number from 1 up, such as 20")
    problem.check()
    judge = RoundedError(problem, _searched)
    screen = RoundedError(thinned(problem, _ROWS), _searched_quickly)
    candidates = sorted(_candidates(problem, judge, steps), key=lambda each: screen(each[1]))
    return choose(judge, problem.outputs, candidates[:_FINALISTS], margin)


def _searched(problem: Problem) -> QTensor:
    return scale_search.solve(problem).qtensor


def _searched_quickly(problem: Problem) -> QTensor:
    return scale_search.solve(problem, candidates=3, refits=0).qtensor


def _candidates(problem: LinkProblem, model: RoundedError, steps: int) -> Iterator[tuple[dict[str, Any], Tensor]]:
    if problem.activation.mean_square is None:
        return
    ranges = Ranges(problem, model)
    carried = gathered(problem, model.mean_square, "mean").sqrt()
    weighed = gathered(problem, torch.stack([_mean_size(each) for each in problem.consumers]).mean(0), "mean")
    live = (carried > 0) & (weighed > 0)
    if not bool(live.any()):
        return
    x = torch.where(live, carried.clamp(min=_LEAST_CARRIED * carried[live].median()), 1.0).log()
    w = torch.where(live, weighed.clamp(min=_LEAST_WEIGHED * weighed[live].median()), 1.0).log()
    for form, logs in (("activation", 0 * w), ("activation over weight", w)):
        for step in range(steps + 1):
            exponent = step / steps
            found = exponent * x - (1 - exponent) * logs
            found = found - (found[live].amax() + found[live].amin()) / 2
            if bool(found[live].any()):
                factors = torch.where(live, ranges.bounded(found).exp(), 1.0).float()
                yield {"by": form, "exponent": exponent}, factors


def _mean_size(consumer: Operand) -> Tensor:
    """Mean |w| by input channel, in float64."""
    weight = consumer.weight.detach()
    parted = weight.abs().reshape(consumer.groups, -1, weight.shape[1], weight[0, 0].numel())
    return parted.mean((1, 3), dtype=torch.float64).flatten()
