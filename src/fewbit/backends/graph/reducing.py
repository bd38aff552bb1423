# SPDX-License-Identifier: Apache-2.0
"""Statistics of one value, computed where it is: what leaves the graph is a few numbers a feature.

Measured in ONNX Runtime 1.31: reductions over all that follows an axis are as fast as memory. The sum of squares is
fastest as a product of rows with themselves where rows are long, and as Mul and ReduceSum where not; ReduceSumSquare
takes twice as long, Einsum ten times. A value that convolutions keep in blocks of channels is brought to its own order
once, because everything here reads a reshaped one; `x * x` itself the runtime would compute in blocks and reorder too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import onnx_ir as ir
import torch
from torch import Tensor

from fewbit.backends.graph.adding import Adder
from fewbit.backends.graph.kernel_axes import Axis, is_pointwise
from fewbit.backends.graph.tapping import Dims, Taps
from fewbit.backends.graph.writing import RUNTIME
from fewbit.model.watch import COUNT, HIGH, LOW, SAMPLE, SQUARE, SUM, TAPS, VALUES, WINDOWS

_LONG = 400  # positions in a row: of shorter ones a product for each costs more than it saves

Key = str | tuple[Axis, ...]
"""Names a piece: a need, or the axes of the convolution whose taps it holds."""


@dataclass(frozen=True)
class Piece:
    """Numbers that leave the graph.

    Args:
        value: a flat list of float32.
        wide: whether they are handed over in float64.
        length: how many there are, given the value's shape and the step of its sample.
    """

    value: ir.Value
    wide: bool
    length: Callable[[Dims, int], int]


class Gauge:
    """Statistics of one value by the features along one axis.

    Args:
        add: the graph.
        value: the value.
        shape: that one item gave it; others may be larger or smaller.
        features: the axis of the features; none where nobody asks by feature.
        needs: of `model.watch.NEEDS`.
        step: through the flat value, where a sample is asked for; a list of one number.
        layers: how the convolutions whose `taps` are asked for read it.
        sparse: whether an item may leave it empty; then it is not reshaped, which the runtime does not do with nothing.

    Attributes:
        pieces: what leaves the graph.
        dims: the value's shape, a list of int64.
        raw: the value itself in float32, if it was asked for.
    """

    def __init__(
        self,
        add: Adder,
        value: ir.Value,
        shape: Dims,
        features: int | None,
        needs: frozenset[str],
        step: ir.Value | None = None,
        layers: Iterable[tuple[Axis, ...]] = (),
        sparse: bool = False,
    ):
        floats, rank = add.floats(value), len(shape)
        # Whoever asks about the whole is given the sum of parts: rows that lie together, for which reductions are fast.
        self._axis = (1 if rank > 2 else 0) if features is None else features % max(1, rank)
        self.raw = add.op("Identity", [floats]) if VALUES in needs else None
        self._taps = {axes: Taps(add, floats, axes) for axes in layers if not is_pointwise(axes)}
        self.pieces: dict[Key, Piece] = {
            axes: Piece(taps.value, True, lambda dims, step, taps=taps: taps.length(dims))  # type: ignore[misc]
            for axes, taps in self._taps.items()
        }
        self.dims = add.op("Shape", [value])
        if self._axis >= rank - 1:
            rows, others, long = add.op("Flatten", [floats], axis=max(0, rank - 1)), [0], False
        elif sparse:
            rows, others, long = floats, [axis for axis in range(rank) if axis != self._axis], False
        else:
            rows = add.reshape(floats, *[0] * (self._axis + 1), 1, -1)
            others = [*range(self._axis), self._axis + 1, self._axis + 2]
            long = prod(shape[self._axis + 1 :]) >= _LONG
        for need, op_type in ((LOW, "ReduceMin"), (HIGH, "ReduceMax")):
            if need in needs:
                self.pieces[need] = Piece(add.reduce(op_type, rows, others), False, self._width)
        if SQUARE in needs:
            square = add.op("FusedMatMul", [rows, rows], RUNTIME, transB=1) if long else add.op("Mul", [rows, rows])
            self.pieces[SQUARE] = Piece(add.reduce("ReduceSum", square, others), True, self._width)
        if not any(taps.has_sum for taps in self._taps.values()) and _needs_sum(needs):
            self.pieces[SUM] = Piece(add.reduce("ReduceSum", rows, others), True, self._width)
        if step is not None:
            sample = add.cut(add.reshape(rows, -1), 0, 0, step=step)
            self.pieces[SAMPLE] = Piece(sample, False, lambda dims, step: -(-prod(dims) // step))

    def found(self, given: Mapping[Key, Tensor], dims: Dims, clean: bool) -> dict[str, Tensor]:
        """What is known of one item's value, all but `values`, `taps` and `windows`.

        Args:
            given: the pieces.
            dims: the value's shape.
            clean: whether all sums of this item are finite; if not, it is seen to that what is not shows.
        """
        found = {need: given[need] for need in (LOW, HIGH, SUM, SQUARE, SAMPLE) if need in given}
        for axes, taps in self._taps.items():
            if SUM not in found and taps.has_sum:
                found[SUM] = taps.sum(given[axes], dims)
        found[COUNT] = _number(prod(dims) // max(1, self._width(dims)))
        return found if clean else _shown(found)

    def taps(self, axes: tuple[Axis, ...] | None, given: Mapping[Key, Tensor], dims: Dims) -> dict[str, Tensor]:
        """`taps` and `windows` of one of the layers; `axes` are none for a layer without a kernel."""
        if axes is None or is_pointwise(axes):
            found = self.found(given, dims, clean=True)
            return {TAPS: found[SUM].reshape(-1, *[1] * len(axes or ())), WINDOWS: found[COUNT]}
        taps = self._taps[axes]
        return {TAPS: taps.taps(given[axes], dims), WINDOWS: _number(taps.windows(dims))}

    def _width(self, dims: Dims, step: int = 1) -> int:
        return dims[self._axis] if dims else 1


def whole(found: Mapping[str, Tensor], dims: Dims) -> dict[str, Tensor]:
    """Statistics by feature as those of all features together, which count as one."""
    joined: dict[str, Callable[[Tensor], Tensor]] = {
        LOW: torch.amin,
        HIGH: torch.amax,
        SUM: torch.sum,
        SQUARE: torch.sum,
    }
    made = {need: join(found[need]).reshape(1) for need, join in joined.items() if need in found}
    if VALUES in found:
        made[VALUES] = found[VALUES].reshape(-1, 1)
    return {**found, **made, COUNT: _number(prod(dims))}


@lru_cache(maxsize=1024)
def _number(number: int) -> Tensor:
    return torch.tensor(number)


def _needs_sum(needs: frozenset[str]) -> bool:
    """Whether somebody asks for the sum, or it has to tell of NaN, over which the runtime's extremes pass."""
    return bool(needs & {SUM, TAPS}) or (SQUARE not in needs and bool(needs & {LOW, HIGH, SAMPLE}))


def _shown(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Statistics in which NaN, of which the sums know, can be seen; infinities show by themselves in the extremes."""
    sums = found[SUM] if SUM in found else found[SQUARE]
    lost = sums.isnan() if LOW in found and HIGH in found else ~sums.isfinite()
    shown = {need: torch.where(lost, torch.nan, found[need]) for need in (LOW, HIGH) if need in found}
    if SAMPLE in found and bool(lost.any()):
        shown[SAMPLE] = torch.cat([found[SAMPLE], torch.tensor([torch.nan])])
    return {**found, **shown}
