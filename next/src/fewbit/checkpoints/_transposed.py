# SPDX-License-Identifier: Apache-2.0
"""What GPTQ and AWQ have in common: unsigned integers in words of 32 bits, `[in, out]`, and float16 scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fewbit.checkpoints._base import LayerFormat
from fewbit.errors import ModelError
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.packing import pack
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

if TYPE_CHECKING:
    from torch import Tensor


def refuse_layer(layer: LayerFormat, shape: tuple[int, ...] | None, title: str, bits: Sequence[int]) -> str | None:
    """Why such a format cannot hold a layer; `None` if it can."""
    grid = layer.weight
    if layer.activation is not None:
        return f"{title} files hold quantized weights only, no activations"
    if not grid.dtype.is_integer:
        return f"{title} files hold integers, not {grid.dtype.name}"
    if grid.dtype.bits not in bits:
        return f"{title} files hold weights of {' or '.join(map(str, bits))} bits, not {grid.dtype.bits}"
    if grid.free_zero:
        return f"{title} files have no zero points that are floats"
    if grid.granularity not in (QSchemeType.per_group, QSchemeType.per_channel) or grid.axis not in (0, -2):
        return f"{title} files have one scale per group or output, not {grid.granularity.value} along axis {grid.axis}"
    if grid.scale_type not in (ScaleType.float16, ScaleType.bfloat16):
        return f"{title} files have float16 scales, which cannot hold {grid.scale_type.name} exactly"
    if shape is not None:
        if len(shape) != 2:
            return f"{title} files hold linear layers, not a weight of {len(shape)} axes"
        if shape[0] % 32 or shape[1] % 32:
            return f"{title} files need multiples of 32 inputs and outputs, not {shape[1]} and {shape[0]}"
        size = group_size(grid)
        if size > 0 and shape[1] % size:
            return f"groups of {size} do not divide its {shape[1]} inputs"
    return None


def group_size(grid: QuantizationGrid) -> int:
    """Inputs that share a scale; -1 if all do."""
    return grid.group_size if grid.granularity is QSchemeType.per_group else -1


def unsigned(tensor: QTensor) -> tuple[Tensor, Tensor]:
    """Integers [out, in] and the integer that means zero [out, groups], both counted from zero on, uint8."""
    import torch

    lowest = int(tensor.grid.dtype.lowest)
    codes = torch.as_tensor(tensor.codes())
    zero = tensor.zero_point
    zero = torch.zeros(tensor.scale.shape, dtype=torch.int8) if zero is None else torch.as_tensor(zero)
    return (codes.to(torch.int16) - lowest).to(torch.uint8), (zero.to(torch.int16) - lowest).to(torch.uint8)


def encode_words(integers: Tensor, bits: int) -> Tensor:
    """Unsigned integers [n, m] as int32 [n, m · bits / 32]; a row fills complete words."""
    import torch

    rows = integers.clone(memory_format=torch.contiguous_format)  # a transposed column calls itself contiguous
    packed: Tensor = pack(rows, bits).contiguous()
    return packed.view(torch.int32)


def refuse_scales(tensor: QTensor, title: str) -> str | None:
    """Why such a format cannot hold the scales of a weight.

    Every bfloat16 from 2^-17 to 65280 is a float16.
    """
    import torch

    scale = torch.as_tensor(tensor.qparams.scale)
    rounded = scale.to(torch.float16).float()
    if torch.equal(rounded, scale):
        return None
    return f"{title} files have float16 scales, and {float(scale[rounded != scale][0]):.6g} is none"


def half_scales(layer: str, tensor: QTensor, title: str) -> Tensor:
    """The scales [out, groups] in float16.

    Raises:
        ModelError: float16 does not have one of them.
    """
    import torch

    if (reason := refuse_scales(tensor, title)) is not None:
        raise ModelError(
            reason, code="scale-float16", where=layer, expected="scales from 2^-17 to 65280",
            hint="{format=compressed-tensors}, which keeps them, or {ignore} this layer",
        )  # fmt: skip
    return torch.as_tensor(tensor.qparams.scale).to(torch.float16)
