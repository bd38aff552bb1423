# SPDX-License-Identifier: Apache-2.0
"""Links for tests: what they are expected to lose, written out element by element, and what they really lose."""

import torch
from torch import nn

from fewbit.algorithms._base import Activation, LinkProblem, Operand
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid

BY_TENSOR = Grid(Dtype.int8)
BY_CHANNEL = Grid(Dtype.int8, QSchemeType.per_channel)


def step(values, grid):
    """Of plain rounding: 255 steps from end to end, zero among them."""
    low, high = min(values.min().item(), 0.0), max(values.max().item(), 0.0)
    return (high - low) / 255 if grid.asymmetric else 2 * max(-low, high) / 255


def steps(weight, grid):
    """The step of every row, by channel or by tensor."""
    return [step(weight if grid.granularity is QSchemeType.per_tensor else row, grid) for row in weight]


def reads(consumer, o):
    """Which input channel each element of a row's `in` axis reads."""
    inner = consumer.weight.shape[1]
    return [o // (len(consumer.weight) // consumer.groups) * inner + i for i in range(inner)]


def expected(problem):
    """The expected error of a link whose weights are by channel or by tensor, as loops in float64.

    The producer's `mean_square` and the activation's three statistics have to be there.
    """
    seen, producer = problem.activation, problem.producer
    square = seen.mean_square.double()
    noise = [0.0] * len(problem.channels)
    if seen.grid is not None:
        span = step(torch.cat([seen.low, seen.high]), seen.grid)
        noise = [min(span**2 / 12, each) for each in square.tolist()]
    if producer is not None:
        fed = producer.mean_square.double()
        own = steps(producer.weight, producer.grid)
        for i, c in enumerate(problem.channels):
            if c >= 0:
                kernel = producer.weight[c, 0].numel()
                noise[i] += sum(own[c] ** 2 / 12 * fed[j].item() * kernel for j in reads(producer, c))
    found = []
    for consumer in problem.consumers:
        error = size = 0.0
        own = steps(consumer.weight, consumer.grid)
        alive = {
            channel
            for o in range(len(own))
            for i, channel in enumerate(reads(consumer, o))
            if bool((consumer.weight[o, i] != 0).any())
        }
        for o in range(len(own)):
            for i, channel in enumerate(reads(consumer, o)):
                energy = consumer.weight[o, i].double().square().sum().item()
                kernel = consumer.weight[o, i].numel()
                error += kernel * own[o] ** 2 / 12 * square[channel].item() * (channel in alive)
                error += noise[channel] * energy
                size += energy * square[channel].item()
        found += [error / size] if size else []
    return sum(found) / len(found) if found else 0.0


def rounded(x, grid, by_row=False):
    """To the nearest of 256 values, without any of fewbit's own rounding."""
    if by_row:
        return torch.stack([rounded(row, grid) for row in x])
    width = step(x, grid) or 1.0
    if grid.asymmetric:
        zero = round(-min(x.min().item(), 0.0) / width)
        return ((x / width).round() + zero).clamp(0, 255).sub(zero) * width
    return (x / width).round().clamp(-128, 127) * width


def statistics(x, grid=None):
    """Of an activation `[positions, channels]`."""
    return Activation(x.amin(0), x.amax(0), x.square().mean(0), grid or Grid(Dtype.uint8, symmetric=False))


def link_of(first, second, x, *, grid=BY_CHANNEL, groups=1, between=torch.relu):
    """A linear layer, a ReLU, and a layer that reads it (1x1, with groups)."""
    middle = between(x @ first.T)
    producer = Operand(first, grid, mean_square=x.square().mean(0))
    return LinkProblem([Operand(second, grid, groups)], range(len(first)), producer, statistics(middle))


def lost(problem, x, between=torch.relu):
    """What the outputs of a link of linear layers with a ReLU between really lose, everything rounded."""
    (consumer,), producer = problem.consumers, problem.producer
    middle = between(x @ producer.weight.T)
    by_row = producer.grid is BY_CHANNEL
    noisy = rounded(between(x @ rounded(producer.weight, producer.grid, by_row).T), problem.activation.grid)
    wanted, found = (
        nn.functional.conv1d(act.unsqueeze(2), weight.unsqueeze(2), groups=consumer.groups).squeeze(2)
        for act, weight in ((middle, consumer.weight), (noisy, rounded(consumer.weight, consumer.grid, by_row)))
    )
    return ((found - wanted).square().mean() / wanted.square().mean()).item()
