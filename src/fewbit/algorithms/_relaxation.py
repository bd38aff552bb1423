# SPDX-License-Identifier: Apache-2.0
"""Which elements to round up: a choice between two neighbours for each, made for whole rows at once.

The error of a row is quadratic, e H eᵀ with e = start - up * step and up from {0, 1}. It is minimised over numbers
between 0 and 1 that a penalty drives to the ends (arXiv 2004.10568, section 3.2). Few steps suffice, because afterwards
elements are turned singly and in pairs for as long as that lowers the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

import torch
from torch import Tensor

# The sigmoid is stretched to [-0.1, 1.1] and cut, so that it can reach both ends.
_STRETCH, _REST = 1.2, 0.1
_BETAS = 20.0, 2.0
_WARM = 0.2  # of the steps: without penalty
_PENALTY = 0.5
_RATE = 0.1
_FIRST = 8  # elements of a row that are tried in pairs with all others


@dataclass(frozen=True)
class Choice:
    """Rows that can be rounded down or up, element by element.

    Args:
        start: what a row is off if everything is rounded down, `[rows, in]`.
        step: what rounding up takes from it, of either sign; zero where there is no choice.
    """

    start: Tensor
    step: Tensor

    def part(self, first: int, last: int) -> Choice:
        """Some of the rows."""
        return Choice(self.start[first:last], self.step[first:last])

    def error(self, up: Tensor, gram: Tensor) -> Tensor:
        """e H eᵀ of every row."""
        off = self.start - up * self.step
        return ((off @ gram) * off).sum(1)


def best(choice: Choice, near: Tensor, gram: Tensor, steps: int) -> Tensor:
    """Where to round up, from what is learned and from the nearest values, whichever ends better in a row.

    Args:
        choice: the rows.
        near: where the nearest value is the upper one, bool `[rows, in]`.
        gram: H, float32 `[in, in]`.
        steps: how many steps of Adam.

    >>> alike = torch.full((2, 2), 1.0)  # only the sum of both matters
    >>> half = Choice(torch.tensor([[0.4, 0.45]]), torch.ones(1, 2))
    >>> best(half, torch.zeros(1, 2, dtype=torch.bool), alike, 100).sum()
    tensor(1)
    """
    first, second = (descend(start, choice, gram) for start in (learn(choice, gram, steps), near))
    return torch.where((choice.error(first, gram) <= choice.error(second, gram)).unsqueeze(1), first, second)


def learn(choice: Choice, gram: Tensor, steps: int) -> Tensor:
    """Where to round up as the relaxation says, bool `[rows, in]`."""
    start, step = choice.start, choice.step
    share = torch.where(step == 0, 0.0, start / step).clamp(0, 1)  # what was cut off, in steps
    soft = torch.logit(((share + _REST) / _STRETCH).clamp(1e-4, 1 - 1e-4))
    # One row's errors may be thousands of times another's: each is measured by what rounding at random costs.
    unit = (step.square() @ gram.diagonal()).div(12 * start.shape[1]).clamp(min=torch.finfo(start.dtype).tiny)
    mean, square = torch.zeros_like(soft), torch.zeros_like(soft)
    for at in range(steps):
        sigmoid = torch.sigmoid(soft)
        raw = sigmoid * _STRETCH - _REST
        up = raw.clamp(0, 1)
        slope = (start - up * step) @ gram * step * (-2 / unit).unsqueeze(1)
        if at >= _WARM * steps:
            slope += _PENALTY * _pull(up, (at / steps - _WARM) / (1 - _WARM))
        slope *= _STRETCH * sigmoid * (1 - sigmoid) * ((raw > 0) & (raw < 1))
        mean.lerp_(slope, 0.1)
        square.lerp_(slope.square(), 0.001)
        debiased = square.div(1 - 0.999 ** (at + 1)).sqrt_().add_(1e-8)
        soft -= _RATE / (1 - 0.9 ** (at + 1)) * mean / debiased
    return (torch.sigmoid(soft) > 0.5) & (step != 0)


def _pull(up: Tensor, progress: float) -> Tensor:
    """The slope of 1 - |2 up - 1|^β: to the nearer end, from afar only late."""
    last, first = _BETAS[1], _BETAS[0]
    beta = last + (first - last) * (1 + cos(pi * progress)) / 2
    off = 2 * up - 1
    return -2 * beta * off.abs().pow(beta - 1) * off.sign()


def descend(up: Tensor, choice: Choice, gram: Tensor) -> Tensor:
    """Turn an element or a pair in every row, always what lowers the error most, until nothing does.

    One of a pair is among those that cost least alone: neighbours that go together cost much alone, little as a pair.
    """
    up, diagonal, width = up.clone(), gram.diagonal(), up.shape[1]
    step = choice.step
    off = choice.start - up * step
    slope = off @ gram
    row = torch.arange(len(up), device=up.device)
    for _ in range(4 * width):
        turn = torch.where(up, step, -step)  # what turning an element adds to what is off
        alone = 2 * turn * slope + turn.square() * diagonal
        least, first = alone.topk(min(_FIRST, width), 1, largest=False)
        both = gram[first] * (2 * turn.gather(1, first).unsqueeze(2) * turn.unsqueeze(1))
        both += least.unsqueeze(2) + alone.unsqueeze(1)  # [rows, first, in]
        both.scatter_(2, first.unsqueeze(2), least.unsqueeze(2))
        best, place = both.flatten(1).min(1)
        worth = best < -1e-6 * (off * slope).sum(1).abs()
        if not bool(worth.any()):
            break
        one, other = first[row, place // width], place % width
        for where, turned in ((one, worth), (other, worth & (one != other))):
            by = torch.where(turned, turn[row, where], 0.0)
            off[row, where] += by
            slope += by.unsqueeze(1) * gram[where]
            up[row, where] ^= turned
    return up
