# SPDX-License-Identifier: Apache-2.0
"""Fast bias correction, exact: what rounding the weight does to the mean output is put back into the bias.

A layer is linear in its weight, so the mean output changes by (Ŵ - W) times the mean of what every weight element is
multiplied with, padding counted as the zeros it is. That mean is taken in the one pass over the data, and nothing is
run again: exact for every padding, stride, dilation, for groups and transposed convolutions, and zero where nothing was
rounded. A bias is not looked at: whether it is zero, small or missing makes no difference.
"""

from __future__ import annotations

from fewbit.algorithms._base import BiasProblem, Shift
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._shift import gated

STAGE = "correct"
NEEDS = ("taps", "windows")


@one_thread()
def solve(problem: BiasProblem) -> Shift:
    """What must be added to the output of a layer with rounded weights so that its mean is right.

    Args:
        problem: the layer, with `taps`; with `held_out_taps` a channel is kept only where it is right on these too.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes that do not fit together.

    >>> import torch
    >>> from fewbit.algorithms._base import Taps
    >>> taps = Taps(torch.tensor([30.0, 10.0]), 10)
    >>> solve(BiasProblem(torch.tensor([[1.2, 0.9]]), torch.tensor([[1.0, 1.0]]), taps=taps)).amount
    tensor([0.5000])
    """
    problem.check()
    if problem.taps is None:
        return Shift(None, {"reason": "no calibration sample reached this layer"})
    lost = problem.weight.detach().double() - problem.rounded.detach().double()
    off = problem.taps.mean_output(lost, problem.groups)
    held_out = problem.held_out_taps
    judge = None if held_out is None else held_out.mean_output(lost, problem.groups)
    return gated(off, judge, problem.mean_square)
