# SPDX-License-Identifier: Apache-2.0
"""Cross-layer equalization: channels of very different ranges are evened out between a layer and those that read it.

A ReLU lets a positive factor through, so a layer's output channels can be divided by factors that the next layers'
weights make up for (arXiv 1906.04721, section 4.1). The classical factors make the ranges r of both sides equal,
sqrt(r1 / r2); here they stand beside others, and beside leaving the link alone, and the expected error decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fewbit.algorithms._base import LinkProblem, Rescaling
from fewbit.algorithms._link_error import LinkError
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._rescaling import Ranges, choose

STAGE = "prepare"
NEEDS = ("low", "high", "square", "count")

# 1/2 shares the difference between both sides, 1 leaves all of it to the consumers: right for depthwise ones, whose
# channels have scales of their own. Half the strength goes half the way.
_ALPHAS, _STRENGTHS = (0.5, 0.75, 1.0), (1.0, 0.5)


@one_thread()
def solve(problem: LinkProblem, *, margin: float = 0.1) -> Rescaling:
    """Factors that even out the ranges of a link, if they are expected to lower the error.

    Args:
        problem: the link; between producer and consumers lies nothing but what lets a positive factor through.
        margin: by which share the expected error has to fall.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes that do not fit together, or a margin that is no share.

    >>> import torch
    >>> from fewbit.algorithms._base import Activation, Operand
    >>> reads = Operand(torch.tensor([[[1.0]], [[1.0]]]), groups=2)
    >>> seen = Activation(torch.zeros(2), torch.tensor([1.0, 8.0]))
    >>> solve(LinkProblem([reads], [0, 1], Operand(torch.tensor([[0.1], [0.8]])), seen)).factors
    tensor([0.1250, 1.0000])
    """
    problem.check()
    model = LinkError(problem)
    return choose(model, problem.outputs, _candidates(Ranges(problem, model)), margin)


def _candidates(ranges: Ranges) -> Iterator[tuple[dict[str, Any], Tensor]]:
    for name, first in (("activation", ranges.activation), ("weight", ranges.producer)):
        if first is None:
            continue
        for alpha in _ALPHAS:
            for strength in _STRENGTHS:
                yield {"by": name, "alpha": alpha, "strength": strength}, ranges.factors(first, alpha, strength)
