# SPDX-License-Identifier: Apache-2.0
"""How the kernel of a convolution goes along each axis of its input, as ONNX's attributes say it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fewbit.backends.graph.adding import END
from fewbit.backends.graph.layers import Layer
from fewbit.model.ops import CONV_TRANSPOSE
from fewbit.model.taps import Reach, conv_reach, transposed_reach, windows
from fewbit.model.windows import conv_meets, transposed_meets


@dataclass(frozen=True)
class Axis:
    """How a kernel goes along one axis of positions.

    Args:
        kernel: number of elements.
        stride: of the windows, or of what the inputs of a transposed convolution add to.
        dilation: of the elements.
        pads: before and after; none where they depend on the length.
        same: `SAME_UPPER` or `SAME_LOWER`, where the operator finds the padding.
        transposed: whether it is one.
        extra: positions that a transposed convolution adds at the end of its output.
        out: the length that a transposed convolution's output is to have.
    """

    kernel: int
    stride: int
    dilation: int
    pads: tuple[int, int] | None
    same: str = ""
    transposed: bool = False
    extra: int = 0
    out: int | None = None

    @property
    def step(self) -> int:
        """From one position that an element meets to the next."""
        return 1 if self.transposed else self.stride

    @property
    def remainders(self) -> list[int]:
        """The remainders of all positions that any element meets."""
        if self.pads is None or self.step == 1:
            return list(range(self.step))
        return sorted({(element * self.dilation - self.pads[0]) % self.step for element in range(self.kernel)})

    @property
    def ends(self) -> tuple[int, int]:
        """How many positions at the beginning, and at the end, some element may not meet."""
        before, after = self.pads or (0, 0)
        reach = (self.kernel - 1) * self.dilation
        if not self.transposed:
            return max(0, reach - before - self.stride + 1), max(0, reach - after)
        if self.out is not None:
            return END, END
        if self.pads is None:  # what is cut off is never more than the kernel reaches
            before = after = max(0, reach + 1 + self.extra - self.stride)
        return max(0, -(-before // self.stride)), max(0, -(-(after - self.extra) // self.stride))

    def size(self, length: int) -> int:
        """How many numbers the graph gives for an axis of this length."""
        return len(self.remainders) + sum(min(end, length) for end in self.ends)

    def windows(self, length: int) -> int:
        """The length of the output."""
        if not self.transposed:
            return windows(length, self.kernel, self.stride, self.dilation, self._pads(length))
        if self.out is not None:
            return self.out
        if self.pads is None:
            return min(self._natural(length), length * self.stride)
        return self._natural(length) - sum(self.pads)

    def reach(self, length: int) -> Reach:
        """The positions that each element meets."""
        pads = self._pads(length)
        if self.transposed:
            return transposed_reach(length, self.kernel, self.windows(length), self.stride, self.dilation, pads[0])
        return conv_reach(length, self.kernel, self.stride, self.dilation, pads)

    def meets(self, length: int) -> Tensor:
        """The same window by window; see `fewbit.model.windows`."""
        pads = self._pads(length)
        if self.transposed:
            return transposed_meets(length, self.kernel, self.windows(length), self.stride, self.dilation, pads[0])
        return conv_meets(length, self.kernel, self.stride, self.dilation, pads)

    def _natural(self, length: int) -> int:
        """The length of a transposed convolution's output before anything is cut off."""
        return (length - 1) * self.stride + self.extra + (self.kernel - 1) * self.dilation + 1

    def _pads(self, length: int) -> tuple[int, int]:
        if self.transposed and (self.out is not None or self.pads is None):
            total = max(0, self._natural(length) - self.windows(length))
        elif self.pads is not None:
            return self.pads
        else:
            covered = (-(-length // self.stride) - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
            total = max(0, covered - length)
        less, more = total // 2, total - total // 2
        upper = self.same == "SAME_UPPER"
        return (less, more) if upper else (more, less)


def axes_of(layer: Layer) -> tuple[Axis, ...]:
    """How a convolution's kernel goes along each axis of its input."""
    node, shape = layer.node, layer.weight_value.const_value
    assert shape is not None
    kernel = [int(str(side)) for side in shape.shape][2:]
    count = len(kernel)

    def each(name: str, default: int) -> list[int]:
        found = node.attributes.get_ints(name, None)
        return [default] * count if found is None else list(found)

    auto = node.attributes.get_string("auto_pad", "NOTSET")
    pads = each("pads", 0) * (1 if "pads" in node.attributes and auto == "NOTSET" else 2)
    if auto != "NOTSET":
        pads = [0] * (2 * count)
    transposed = layer.op == CONV_TRANSPOSE
    sizes = node.attributes.get_ints("output_shape", None) if transposed else None
    same = auto if auto.startswith("SAME") else ""
    return tuple(
        Axis(
            kernel[i],
            each("strides", 1)[i],
            each("dilations", 1)[i],
            None if same or sizes is not None else (pads[i], pads[i + count]),
            same,
            transposed,
            each("output_padding", 0)[i] if transposed else 0,
            None if sizes is None else list(sizes)[-count:][i],
        )
        for i in range(count)
    )


def is_pointwise(axes: tuple[Axis, ...]) -> bool:
    """Whether every position of the input is met once, and by the one element there is."""
    return all((axis.kernel, axis.stride, axis.pads, axis.transposed) == (1, 1, (0, 0), False) for axis in axes)
