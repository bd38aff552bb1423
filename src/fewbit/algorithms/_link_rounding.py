# SPDX-License-Identifier: Apache-2.0
"""What rounding the weights of a link costs, measured on the rounded weights instead of estimated from their steps.

A consumer's weight W, multiplied by factors s and rounded, stands for Q(W s) / s. Its output is off by the sum of
E[x²] (Q(W s) / s - W)², which is the error of rounding W s where the inputs have E[x²] / s²: what any algorithm that
rounds measures anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fewbit.algorithms._base import Problem
from fewbit.algorithms._error import errors, relative
from fewbit.algorithms._link import LinkProblem, Operand, by_row
from fewbit.algorithms._link_error import LinkError
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize
from fewbit.numerics.scales import ScaleType

Rounding = Callable[[Problem], QParams | QTensor]
"""The scales, or the codes, of a weight."""

_FINE = (ScaleType.float32, ScaleType.float16, ScaleType.bfloat16)


class RoundedError(LinkError):
    """The error of a link, its weights really rounded.

    What a rounded activation costs is estimated as in `LinkError`, and so is how far a producer's error reaches. A
    producer whose rows have scales of their own is left out: a row and its scales are divided alike.

    Args:
        problem: the link.
        rounding: rounds one weight.

    >>> from fewbit.algorithms import rtn
    >>> from fewbit.algorithms._link import Activation
    >>> link = LinkProblem([Operand(torch.tensor([[1.0, 0.004]]))], [0, 1], None, Activation(None, None, torch.ones(2)))
    >>> RoundedError(link, rtn.qparams)(torch.ones(2)) > 0
    True
    """

    def __init__(self, problem: LinkProblem, rounding: Rounding) -> None:
        producer = problem.producer
        if producer is not None and not _depends_on_factors(producer):
            problem = replace(problem, producer=replace(producer, grid=None))
        super().__init__(problem)
        self._rounding = rounding

    def _own_error(self, index: int, by: Tensor, mean_square: Tensor, size: Tensor) -> Tensor:
        problem = _problem(self.problem.consumers[index].multiplied(by), mean_square)
        if problem is None:
            return torch.zeros_like(size)
        found, silence = errors(problem, self._rounding(problem), None)
        return torch.full_like(size, relative(found, silence)[0])

    def _producer_noise(self, factors: Tensor) -> Tensor:
        producer = self.problem.producer
        problem = None if producer is None or self._fed is None else _problem(producer.divided(factors), self._fed)
        if producer is None or self._fed is None or problem is None:
            return torch.zeros_like(self.mean_square)
        found = self._rounding(problem)
        rounded = found.dequantize() if isinstance(found, QTensor) else fake_quantize(problem.weight, found)
        off = (rounded.double() - problem.weight.double()).square()
        rows = (off * _beside(self._fed, producer)).flatten(1).sum(1)
        return torch.where(self.index >= 0, rows[self.index.clamp(min=0)], 0.0)


def thinned(problem: LinkProblem, rows: int) -> LinkProblem:
    """A smaller link of about the same error: some rows of each consumer, and consumers of one grid as one weight.

    Rows are spread evenly. Only rows with scales of their own can go, or come together: they do not see each other.
    """
    alone, together = list[Operand](), dict[Grid, list[Tensor]]()
    square = problem.activation.mean_square
    for consumer in problem.consumers:
        weight, grid = consumer.weight.detach(), consumer.grid
        if square is None or grid is None or weight.ndim != 2 or grid.weight_block(tuple(weight.shape))[0] > 1:
            alone.append(consumer)
            continue
        some = weight[:: max(1, len(weight) // rows)].float()
        # Each counts by its share of what it answers, so it is weighed by that, which changes no share.
        energy = (some.square().sum(0, dtype=torch.float64) * square.to(some.device)).sum()
        together.setdefault(grid, []).append(some / energy.clamp(min=torch.finfo(torch.float32).tiny).sqrt().float())
    return replace(problem, consumers=[*alone, *(Operand(torch.cat(some), grid) for grid, some in together.items())])


def _problem(operand: Operand, mean_square: Tensor) -> Problem | None:
    """The weight to round; none if it stays in float."""
    weight, grid = operand.weight.detach().float(), operand.grid
    if grid is None or grid.dtype.is_cast or weight.ndim < 2:
        return None
    # In units of the largest: only how they compare matters, and squares leave float32 sooner than what they are of.
    share = mean_square / mean_square.amax().clamp(min=torch.finfo(torch.float64).tiny)
    return Problem(weight, grid, grid.weight_block(tuple(weight.shape)), _beside(share, operand).float())


def _beside(channels: Tensor, operand: Operand) -> Tensor:
    """What belongs to input channels, to be broadcast against a weight."""
    rows = by_row(channels, len(operand.weight), operand.groups)
    return rows.reshape(*rows.shape, *(1,) * (operand.weight.ndim - 2))


def _depends_on_factors(producer: Operand) -> bool:
    """Whether dividing rows changes by how much, of its size, each of them is off."""
    if producer.grid is None or producer.weight.ndim < 2:
        return False
    height = producer.grid.weight_block(tuple(producer.weight.shape))[0]
    return height > 1 or producer.grid.scale_type not in _FINE
