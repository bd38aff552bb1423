# SPDX-License-Identifier: Apache-2.0
"""What compressed-tensors has no place for, whoever reads it."""

from __future__ import annotations

from fewbit.exporters._base import Destined
from fewbit.exporters._compressed_scheme import (
    FLOATS,
    INTEGERS,
    MXFP4,
    MXFP8,
    NVFP4,
    format_of,
    input_width,
    strategy_of,
)
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleMode, ScaleType

_HAS = "integers of 2 to 8 bits in groups, rows or one tensor, fp8 e4m3, nvfp4, mxfp4 and mxfp8"


def is_stack(weight: Destined) -> bool:
    """Whether it is a stack of experts `[experts, out, in]`, and not the kernel of a convolution."""
    return len(weight.shape) == 3 and weight.tensor != "weight"


def format_faults(weight: Destined) -> list[str]:
    """Every reason why no reader could take a quantized weight."""
    grid, shape = weight.grid, weight.shape[-2:]
    assert grid is not None
    if len(weight.shape) != 2 + is_stack(weight) or (weight.tensor != "weight" and not is_stack(weight)):
        return [f"{weight.tensor} {list(weight.shape)} is not the matrix of a linear layer"]
    name, strategy = format_of(grid, shape, float_input=weight.input is None), strategy_of(grid, shape)
    if name is None:
        group = f" of {grid.group_size}" if grid.granularity is QSchemeType.per_group else f" along axis {grid.axis}"
        return [f"{grid.dtype.name} {grid.granularity.value}{group}, {grid.scale_type.name} scales: there are {_HAS}"]
    faults = []
    if strategy == "group" and shape[1] % grid.group_size:
        faults.append(f"groups of {grid.group_size} do not divide {shape[1]} inputs")
    if strategy == "block" and shape[1] % grid.weight_block(shape)[1]:
        faults.append(f"blocks of {grid.weight_block(shape)[1]} columns do not divide {shape[1]} inputs")
    if grid.free_zero:
        faults.append("zero points that are not integers (float_zero)")
    if grid.asymmetric and name == INTEGERS:
        faults.append("weights with zero points beside integer inputs: such weights are symmetric")
    return faults + ([] if weight.input is None else _input_faults(name, weight, weight.input))


def _input_faults(name: str, weight: Destined, grid: Grid) -> list[str]:
    features = weight.shape[-1]
    what, width = f"inputs of {grid.dtype.name}", input_width(grid, features)
    if name == NVFP4:
        return [f"{what}: nvfp4 ones need a global scale found beforehand, and fewbit finds theirs in each call"]
    if name in (MXFP4, MXFP8):
        like = (weight.grid.dtype if weight.grid else None, 32, ScaleType.float8_e8m0fnu, ScaleMode.even)
        same = (grid.dtype, width, grid.scale_type, grid.scale_mode) == like and weight.dynamic
        return [] if same else [f"{what} beside {name} weights: readers take the same kind, found in each call"]
    faults = []
    if grid.dtype.bits > 8 or not (grid.dtype.is_integer if name == INTEGERS else grid.dtype is Dtype.fp8_e4m3):
        faults.append(f"{what} beside {name} weights")
    if grid.free_zero:
        faults.append(f"{what} with zero points that are not integers (float_zero)")
    if width is not None and not (weight.dynamic and name == FLOATS):
        faults.append(f"{what} in groups: only those of fp8, found in each call, may be")
    if width is not None and features % width:
        faults.append(f"{what} in groups of {width}, which do not divide {features}")
    if grid.granularity is QSchemeType.per_channel:
        faults.append(f"{what} with a scale a feature: a tensor, a token or a group has one")
    if weight.dynamic and (grid.scale_type is not ScaleType.float32 or grid.signed_scale):
        faults.append(f"{what} whose scales are rounded or signed in each call: readers do neither")
    return faults
