# SPDX-License-Identifier: Apache-2.0
"""SmoothQuant: channels that stand out in an activation are divided, and the weights that read them multiplied.

s = max|x|^α / max|w|^(1 - α) by channel (arXiv 2211.10438, section 4). How much of the difficulty the weights can take
differs from layer to layer, so α is chosen for each link by the expected error, "not at all" among the choices.
"""

from __future__ import annotations

from fewbit.algorithms._base import LinkProblem, Rescaling
from fewbit.algorithms._link_error import LinkError
from fewbit.algorithms._parallel import one_thread
from fewbit.algorithms._rescaling import Ranges, choose
from fewbit.errors import UsageError

STAGE = "prepare"
NEEDS = ("low", "high", "square", "count")

_ALPHAS = tuple(step / 10 for step in range(11))


@one_thread()
def solve(problem: LinkProblem, *, alpha: float | None = None, margin: float = 0.1) -> Rescaling:
    """Factors that smooth an activation, if they are expected to lower the error.

    Args:
        problem: the link; all its consumers share the factors.
        alpha: the one exponent to try, from [0, 1], in place of eleven.
        margin: by which share the expected error has to fall.

    Raises:
        DataError: a value is not finite.
        UsageError: shapes that do not fit together, an alpha or a margin out of range.

    >>> import torch
    >>> from fewbit.algorithms._base import Activation, Operand
    >>> seen = Activation(torch.tensor([-1.0, -64.0]), torch.tensor([1.0, 64.0]), torch.tensor([0.1, 400.0]))
    >>> reads = Operand(torch.tensor([[0.5, 0.5], [-0.5, 0.5]]))
    >>> solve(LinkProblem([reads], [0, 1], activation=seen), alpha=0.5).factors
    tensor([0.1250, 1.0000])
    """
    if alpha is not None and not 0 <= alpha <= 1:
        raise UsageError(f"alpha={alpha!r}", where="alpha", expected="a number from 0 (weights) to 1 (activation)")
    problem.check()
    model = LinkError(problem)
    ranges = Ranges(problem, model)
    first, alphas = ranges.activation, _ALPHAS if alpha is None else (alpha,)
    candidates = [] if first is None else [({"alpha": each}, ranges.factors(first, each)) for each in alphas]
    return choose(model, problem.outputs, candidates, margin)
