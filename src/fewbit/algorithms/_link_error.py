# SPDX-License-Identifier: Apache-2.0
"""What rounding both sides of a link is expected to cost, as a function of how the link is scaled.

The expected squared error of the consumers' outputs, over the mean square of these, has three parts:

- the consumers' weights are off by steps Δ: Δ²/12 an element, times E[x²] of what it is multiplied with;
- the activation is off by its step, Δ²/12 a channel (E[x²] where that is less: what is below the step becomes zero),
  times the energy of the weights that read the channel;
- the producer's weights are off, which reaches the consumers as noise in the activation.

A factor s on a channel divides the activation and the producer's row by s and multiplies the weights that read it. So
extremes are taken from every weight once, and each factor costs one pass over a table `[out, in]`. Elements that are
floats are off by a share of themselves, which no factor changes: they are left out. A ReLU's zeros are exact and are
counted as if they were not, so its links lose up to half less than is expected here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewbit.algorithms._link import LinkProblem, Operand, by_row
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Float, Table
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range


class Sheet:
    """A weight `[out, in, kernel…]` as tables `[out, in]`, the kernel taken together.

    Attributes:
        kernel: elements in a kernel.
        columns: the largest magnitude by input channel.
        rows: the largest magnitude by output channel.
        energy: the sum of squares by input channel, in float64.
    """

    def __init__(self, operand: Operand) -> None:
        weight = operand.weight.detach()
        flat = weight.reshape(*weight.shape[:2], -1)
        self.grid, self.groups, self.kernel = operand.grid, operand.groups, flat.shape[2]
        self.block = None if self.grid is None else self.grid.weight_block(tuple(weight.shape))[:2]
        low, high = (x.float() for x in flat.aminmax(dim=2)) if self.kernel > 1 else (flat[..., 0].float(),) * 2
        size = torch.maximum(high, -low)
        lopsided = self.grid is not None and (self.grid.asymmetric or self.grid.signed_scale)
        self._low: Tensor | None = low if lopsided else None
        self._high = high if lopsided else size
        self.rows, self.columns = size.amax(1), size.reshape(self.groups, -1, size.shape[1]).amax(1).flatten()
        parted = flat.float().square().reshape(self.groups, -1, *flat.shape[1:])
        self.energy = parted.sum((1, 3), dtype=torch.float64).flatten()

    def noise(self, by: Tensor, mean_square: Tensor) -> Tensor:
        """By row of blocks, how far the output is off if the weight is multiplied by `by` and rounded, in float64.

        Args:
            by: to be broadcast to `[out, in]`.
            mean_square: E[x²] of the inputs of the weight so multiplied, by input channel.
        """
        out, width = self._high.shape
        if self.grid is None or self.block is None or _floats(self.grid):
            return mean_square.new_zeros(out)
        high = self._high * by
        low = -high if self._low is None else self._low * by
        squares = _squared_steps(low, high, self.grid, self.block)
        # A column of zeros stays one.
        matters = by_row(torch.where(self.columns > 0, mean_square, 0.0), out, self.groups)
        height = min(self.block[0], len(matters))
        sums = Blocks((len(matters), width), (height, self.block[1])).split(matters).sum((1, 3)) * self.kernel
        if self.groups == 1:
            whole = torch.ones(out, 1, dtype=sums.dtype, device=sums.device)
            sums = sums * Blocks((out, 1), (self.block[0], 1)).split(whole).sum((1, 3))
        return (squares * sums).sum(1) / 12


class LinkError:
    """The expected error of a link.

    >>> from fewbit.algorithms._link import Activation
    >>> weight = torch.tensor([[1.0, 0.01]])
    >>> link = LinkProblem([Operand(weight)], [0, 1], activation=Activation(None, None, torch.tensor([1.0, 1e4])))
    >>> error = LinkError(link)
    >>> error(torch.tensor([1.0, 1.0])) > 1000 * error(torch.tensor([1.0, 100.0]))
    True
    """

    def __init__(self, problem: LinkProblem) -> None:
        self.problem, seen = problem, problem.activation
        self.readers = [Sheet(consumer) for consumer in problem.consumers]
        self.device = self.readers[0].energy.device
        self.index = problem.index(self.device)
        producer = problem.producer
        self.producer = Sheet(producer) if producer is not None and producer.weight.ndim > 1 else None
        self.low, self.high = (
            None if x is None else x.to(self.device).float().flatten() for x in (seen.low, seen.high)
        )
        self.mean_square = self._mean_square()
        self._fed = self._producer_inputs()

    def __call__(self, factors: Tensor) -> float:
        """The expected error over the mean square of the output, the mean over the consumers; factors `[outputs]`."""
        by = self.problem.spread(factors.to(self.device).float())
        mean_square = self.mean_square / by.double().square()
        noise = self._activation_noise(by, mean_square) + self._producer_noise(factors.to(self.device).float())
        found = []
        for index, reader in enumerate(self.readers):
            size = (self.mean_square * reader.energy).sum()
            if size > 0:
                told = (noise * reader.energy * by.double().square()).sum() / size
                found.append(self._own_error(index, by, mean_square, size) + told)
        return float(torch.stack(found).mean()) if found else 0.0

    def _own_error(self, index: int, by: Tensor, mean_square: Tensor, size: Tensor) -> Tensor:
        """What rounding a consumer's weight, multiplied by `by`, costs of the mean square of its output."""
        reader = self.readers[index]
        return reader.noise(by_row(by, len(reader.rows), reader.groups), mean_square).sum() / size

    def _activation_noise(self, by: Tensor, mean_square: Tensor) -> Tensor:
        grid = self.problem.activation.grid
        if grid is None or _floats(grid) or self.low is None or self.high is None:
            return torch.zeros_like(mean_square)
        low, high = (self.low / by).unsqueeze(0), (self.high / by).unsqueeze(0)
        blocks = Blocks(tuple(low.shape), grid.activation_block(tuple(low.shape), dynamic=False))
        squares = _squared_steps(low, high, grid, blocks.block)
        return torch.minimum(squares.repeat_interleave(blocks.block[1], 1)[0, : len(by)] / 12, mean_square)

    def _producer_noise(self, factors: Tensor) -> Tensor:
        if self.producer is None or self._fed is None:
            return torch.zeros_like(self.mean_square)
        found = self.producer.noise(1 / factors.unsqueeze(1), self._fed)
        # Rows that share a scale are counted together; each has its share.
        height = -(-len(factors) // len(found))
        own = (found / height).repeat_interleave(height)[: len(factors)]
        return torch.where(self.index >= 0, own[self.index.clamp(min=0)], 0.0)

    def _mean_square(self) -> Tensor:
        """E[x²] by channel in float64: as seen, else as if spread evenly over the range, else as the producer says."""
        seen, producer = self.problem.activation.mean_square, self.problem.producer
        if seen is not None:
            return seen.detach().to(self.device).double().flatten()
        if self.low is not None and self.high is not None:
            low, high = self.low.double(), self.high.double()
            return (low * low + low * high + high * high) / 3
        if producer is None:
            return torch.ones(len(self.index), dtype=torch.float64, device=self.device)
        square = producer.weight.detach().to(self.device).double().reshape(len(producer.weight), -1).square().sum(1)
        return torch.where(self.index >= 0, square[self.index.clamp(min=0)], square.mean())

    def _producer_inputs(self) -> Tensor | None:
        """E[x²] of the producer's input by channel; as much for each as its output calls for, where it was not seen."""
        if self.producer is None:
            return None
        seen = self.problem.producer.mean_square if self.problem.producer is not None else None
        if seen is not None:
            return seen.detach().to(self.device).double().flatten()
        linked = self.index >= 0
        energy, size = self.producer.energy, self.mean_square[linked].mean() if bool(linked.any()) else 0.0
        rows = len(self.producer.rows)
        return torch.ones_like(energy) * size * rows / energy.sum().clamp(min=torch.finfo(torch.float64).tiny)


def _squared_steps(low: Tensor, high: Tensor, grid: Grid, block: tuple[int, ...]) -> Tensor:
    """Δ² of every block `[n, m]`, in float64, from tables of extremes; zero for a block of zeros."""
    blocks = Blocks(tuple(high.shape), block)
    low, high = blocks.split(low).amin((1, 3)), blocks.split(high).amax((1, 3))
    number = grid.dtype.value
    step = from_range(low, high, grid, block).step.double()
    if isinstance(number, Table):
        step = step * 2 / (len(number.values) - 1)
    return torch.where((low == 0) & (high == 0), 0.0, step.square())


def _floats(grid: Grid) -> bool:
    return isinstance(grid.dtype.value, Float)
