# SPDX-License-Identifier: Apache-2.0
"""What a run shows of an activation: its values, or only what was asked about them.

A backend that can reduce inside its graph does so, and the values never leave it; one that has the values at hand
reduces them where they lie, with `reductions`. Whoever watches does not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.numerics.pieces import parts

VALUES, LOW, HIGH, SUM, SQUARE, COUNT, SAMPLE = "values", "low", "high", "sum", "square", "count", "sample"
TAPS, WINDOWS, PRODUCTS = "taps", "windows", "products"
NEEDS = (VALUES, LOW, HIGH, SUM, SQUARE, COUNT, SAMPLE, TAPS, WINDOWS, PRODUCTS)
"""What can be asked about the values of one item at a point, padding taken out.

values   all of them, `[positions, features]`
low      the smallest by feature, `[features]`; so `high`, `sum` and `square` (the sum of squares), sums in float64
count    the number of positions, int64 without axes
sample   some of them, `[n]`, spread evenly over positions and features; all where they are fewer than asked for
taps     of a layer's input: for every input feature and kernel element the sum, over the positions of the output, of
         what that element is multiplied with (zero where it is padding), `[features, kernel…]` in float64; so the mean
         output of a layer without bias is `(weight * taps).sum() / windows`, grouped as the layer is. A layer without a
         kernel has `taps` equal to `sum`. Not there for a layer whose own code decides what its kernel meets
windows  the number of positions of the output that `taps` were summed over, int64 without axes; there if `taps` are
products of a convolution's input: for every two places of its kernel, `[features · kernel…]` in that order, the sum,
         over the same positions, of the product of what they are multiplied with, float32; with `windows`, and there
         if `taps` could be; not for other layers, of which `values` say as much
"""


@dataclass(frozen=True)
class Watch:
    """Who wants to know what about a point.

    Args:
        needs: some of `NEEDS`.
        take: called each time an item reaches the point (a layer may run twice, attention may read two tensors), with
            what was asked for, perhaps more, and the item's index. What it is shown is not to be changed.
        sample: how many values `sample` holds, at least, where the item has so many; a few times as many may come.

    Raises:
        UsageError: a need that nobody knows.
    """

    needs: frozenset[str]
    take: Callable[[Mapping[str, Tensor], int], None]
    sample: int = 1024

    def __post_init__(self) -> None:
        unknown = sorted(self.needs - set(NEEDS))
        if unknown:
            raise UsageError(f"nobody can tell {', '.join(unknown)}", where="needs", expected=", ".join(NEEDS))


def reductions(values: Tensor, needs: frozenset[str], sample: int = 1024, features: int = -1) -> dict[str, Tensor]:
    """What was asked about values that are at hand; all but `taps`, `windows` and `products`, which need to know
    the layer.

    Args:
        values: float, any shape with at least one position.
        needs: some of `NEEDS`.
        sample: as in `Watch`.
        features: the axis of the features; all others hold positions.

    >>> found = reductions(torch.tensor([[1.0, -2.0], [3.0, 4.0]]), frozenset({"low", "sum"}))
    >>> found["low"], found["sum"]
    (tensor([ 1., -2.]), tensor([4., 2.], dtype=torch.float64))
    """
    axes = [axis for axis in range(values.ndim) if axis != features % values.ndim]
    makers: dict[str, Callable[[], Tensor]] = {
        VALUES: lambda: values.movedim(features, -1).reshape(-1, values.shape[features]),
        LOW: lambda: values.amin(axes) if axes else values,
        HIGH: lambda: values.amax(axes) if axes else values,
        COUNT: lambda: whole(values.numel() // max(1, values.shape[features]), values.device),
        SAMPLE: lambda: values.reshape(-1)[:: stride(values.numel(), sample)],
    }
    found = {name: make() for name, make in makers.items() if name in needs}
    return found | _sums(values, needs & {SUM, SQUARE}, features % values.ndim, axes)


def whole(number: int, device: torch.device) -> Tensor:
    """A whole number as `count` and `windows` are told: int64 without axes."""
    return torch.full((), number, dtype=torch.int64, device=device)


def _sums(values: Tensor, needs: frozenset[str], features: int, axes: list[int]) -> dict[str, Tensor]:
    if not needs:
        return {}
    found = {name: values.new_zeros(values.shape[features], dtype=torch.float64) for name in (SUM, SQUARE)}
    for place, part in parts(values, features):
        wide = part.double()
        if SUM in needs:
            found[SUM][place].add_(wide.sum(axes) if axes else wide)
        if SQUARE in needs:
            square = wide.square() if wide is part else wide.square_()
            found[SQUARE][place].add_(square.sum(axes) if axes else square)
    return {name: found[name] for name in needs}


def stride(count: int, sample: int) -> int:
    """Steps through a flat tensor that give at least `sample` of its elements, as few as go evenly through all axes.

    A step that has a divisor in common with an axis would meet the same few features again and again.

    >>> stride(100, 1000), stride(4096, 1024), stride(768 * 20, 1024)
    (1, 3, 13)
    """
    step = max(1, count // max(1, sample))
    while gcd(step, count) > 1:
        step -= 1
    return step
