# SPDX-License-Identifier: Apache-2.0
"""Bias correction, layer by layer: the mean output of the float layer against that of the quantized one.

The quantized means are taken on quantized inputs, after every layer before was corrected. So it puts right what the
fast form cannot see: rounded and clipped activations, and what reaches a layer through those before it.
"""

from __future__ import annotations

from fewbit.algorithms._base import BiasProblem, Shift
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._shift import gated

STAGE = "correct"
NEEDS = ("sum", "count")


@one_thread()
def solve(problem: BiasProblem) -> Shift:
    """What must be added to the output of a quantized layer so that its mean is the float layer's.

    Args:
        problem: the layer, with `outputs`; with `held_out_outputs` a channel is kept only where it is right on these
            too.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes that do not fit together.

    >>> import torch
    >>> from fewbit.algorithms._base import OutputMeans
    >>> means = OutputMeans(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]))
    >>> solve(BiasProblem(torch.ones(2, 1), torch.ones(2, 1), outputs=means)).amount
    tensor([ 0.0000, -0.5000])
    """
    problem.check()
    if problem.outputs is None:
        return Shift(None, {"reason": "no calibration sample reached this layer"})
    held_out = problem.held_out_outputs
    return gated(problem.outputs.off, None if held_out is None else held_out.off, problem.mean_square)
