# SPDX-License-Identifier: Apache-2.0
"""A quantized weight in the terms of another format: other integers, zero points or scale types, equal values."""

from __future__ import annotations

from collections.abc import Iterator

from fewbit.checkpoints._base import CheckpointFormat, LayerFormat
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.ops import namespace
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

_SCALE_TYPES = (ScaleType.bfloat16, ScaleType.float16, ScaleType.float32)


def convert(tensor: QTensor, checkpoint: CheckpointFormat, activation: QuantizationGrid | None = None) -> QTensor | str:
    """A weight as a format can hold it, every value unchanged; or why it cannot.

    Args:
        tensor: [out, in].
        checkpoint: the format.
        activation: how the input of the layer is quantized.
    """
    reason = ""
    for grid in _alternatives(tensor.grid):
        refusal = checkpoint.refusal(LayerFormat(grid, activation), tensor.shape)
        if refusal is None:
            candidate = express(tensor, grid)
            refusal = (
                f"{grid.scale_type.name} cannot hold its scales"
                if candidate is None
                else checkpoint.mismatch(candidate)
            )
            if refusal is None and candidate is not None:
                return candidate
        reason = reason or refusal or ""
    return reason


def express(tensor: QTensor, grid: QuantizationGrid) -> QTensor | None:
    """The same values on another grid of the same width; `None` if that grid does not have them.

    >>> import numpy as np
    >>> one = QParams(QuantizationGrid(Dtype.int4), (1, 2), np.ones((1, 1), np.float32))
    >>> unsigned = QuantizationGrid(Dtype.uint4, symmetric=False)
    >>> express(QTensor.encode(np.array([[3.0, -1.0]], np.float32), one), unsigned).codes().tolist()
    [[11, 7]]
    """
    if grid == tensor.grid:
        return tensor
    xp = namespace(tensor.packed)
    qparams, codes = tensor.qparams, tensor.codes()
    shift = int(grid.dtype.lowest) - int(tensor.grid.dtype.lowest) if grid.dtype.is_integer else 0
    zero = qparams.zero_point
    if shift or grid.has_zero_point:
        wide = codes.astype("int16") + shift if hasattr(codes, "astype") else codes.short() + shift
        codes = wide.astype(grid.dtype.storage) if hasattr(wide, "astype") else wide.to(getattr(xp, grid.dtype.storage))
        zero = (xp.zeros_like(qparams.scale) if zero is None else zero) + shift
    if not grid.has_zero_point:
        if zero is not None and bool((zero != 0).any()):
            return None
        zero = None
    result = QTensor.from_codes(codes, QParams(grid, tensor.block, qparams.scale, zero, qparams.global_scale))
    same = result.dequantize() == tensor.dequantize()
    return result if bool(same.all()) else None


def _alternatives(grid: QuantizationGrid) -> Iterator[QuantizationGrid]:
    """Grids that may have the same values: itself first, then other scale types, then other signs."""
    signs = [grid]
    if grid.dtype.is_integer and not grid.free_zero:
        other = Dtype[grid.dtype.name.removeprefix("u") if not grid.dtype.signed else f"u{grid.dtype.name}"]
        symmetric = other.signed
        signs.append(grid.replace(dtype=other, symmetric=symmetric, full_range=symmetric))
    for candidate in signs:
        kinds = [candidate.scale_type]
        if candidate.scale_type in _SCALE_TYPES:
            kinds += [kind for kind in _SCALE_TYPES if kind is not candidate.scale_type]
        for kind in kinds:
            yield candidate.replace(scale_type=kind)
            if candidate.granularity is QSchemeType.per_channel:
                yield candidate.replace(scale_type=kind, granularity=QSchemeType.per_group, group_size=-1)
