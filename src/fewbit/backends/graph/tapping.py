# SPDX-License-Identifier: Apache-2.0
"""What the kernel of a convolution meets, summed inside a graph in about one pass over its input.

Along one axis an element of the kernel meets every s-th position from one place to another: all positions of a
remainder by s, but for a few at the ends. So the graph gives the sums by remainder and the positions at both ends, axis
after axis, which is little; the host takes the ends off the sums, in float64.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import onnx_ir as ir
import torch
from torch import Tensor

from fewbit.backends.graph.adding import Adder
from fewbit.backends.graph.kernel_axes import Axis

Dims = tuple[int, ...]


class Taps:
    """`taps` and `windows` of one convolution.

    Args:
        add: the graph.
        value: the convolution's input, float32.
        axes: of `kernel_axes.axes_of`.
    """

    def __init__(self, add: Adder, value: ir.Value, axes: tuple[Axis, ...]):
        self._axes = axes
        # The first axis of positions first: its rows lie together, and what remains after it is small.
        for place, axis in enumerate(axes, 2):
            before, after = axis.ends
            parts = [
                value if axis.step == 1 else add.cut(value, place, rest, step=axis.step) for rest in axis.remainders
            ]
            parts = [add.reduce("ReduceSum", part, [place], keepdims=True) for part in parts]
            parts += [add.cut(value, place, 0, before)] if before else []
            parts += [add.cut(value, place, -after)] if after else []
            value = add.join(parts, place)
        self.value = add.reshape(add.reduce("ReduceSum", value, [0]), -1)

    @property
    def has_sum(self) -> bool:
        """Whether the plain sum is among what the graph gives."""
        return all(len(axis.remainders) == axis.step for axis in self._axes)

    def length(self, dims: Dims) -> int:
        """How many numbers the graph gives."""
        return dims[1] * prod(axis.size(length) for axis, length in zip(self._axes, dims[2:]))

    def taps(self, given: Tensor, dims: Dims) -> Tensor:
        """`[features, kernel…]` from what the graph gave."""
        found = given.reshape(dims[1], -1) @ _matrix(self._axes, dims[2:])
        return found.reshape(dims[1], *(axis.kernel for axis in self._axes))

    def sum(self, given: Tensor, dims: Dims) -> Tensor:
        """`[features]` from what the graph gave; where it `has_sum`."""
        return given.reshape(dims[1], -1) @ _totals(self._axes, dims[2:])

    def windows(self, dims: Dims) -> int:
        """The number of positions of the output."""
        return dims[0] * prod(axis.windows(length) for axis, length in zip(self._axes, dims[2:]))


@lru_cache(maxsize=512)
def _matrix(axes: tuple[Axis, ...], dims: Dims) -> Tensor:
    """`[what the graph gives, kernel elements]` for all axes at once: one small product is faster than one for each."""
    found = torch.ones(1, 1, dtype=torch.float64)
    for axis, length in zip(axes, dims):
        found = torch.kron(found, _along(axis, length))
    return found


@lru_cache(maxsize=512)
def _totals(axes: tuple[Axis, ...], dims: Dims) -> Tensor:
    """`[what the graph gives]`: one for the sums by remainder, zero for the ends."""
    found = torch.ones(1, dtype=torch.float64)
    for axis, length in zip(axes, dims):
        found = torch.kron(found, (torch.arange(axis.size(length)) < axis.step).double())
    return found


def _along(axis: Axis, length: int) -> Tensor:
    """`[what the graph gives, kernel]`: the sum of a remainder, less the positions at the ends that are not met."""
    before, after = (min(end, length) for end in axis.ends)
    rest = {remainder: row for row, remainder in enumerate(axis.remainders)}
    found = torch.zeros(axis.size(length), axis.kernel, dtype=torch.float64)
    for element, met in enumerate(axis.reach(length)):
        if not met:
            continue
        found[rest[met.start % axis.step], element] = 1.0
        for place in range(met.start % axis.step, met.start, axis.step):
            assert place < before
            found[len(rest) + place, element] = -1.0
        for place in range(met[-1] + axis.step, length, axis.step):
            assert place >= length - after
            found[len(rest) + before + place - (length - after), element] = -1.0
    return found
