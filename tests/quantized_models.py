# SPDX-License-Identifier: Apache-2.0
"""Quantized models made by hand, for tests of what happens to them afterwards."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fewbit.modules.quantized import set_weight
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

INT4 = Grid(Dtype.int4, QSchemeType.per_group, group_size=16)

_GROUPS = {"granularity": QSchemeType.per_group, "group_size": 16}
GRIDS: dict[str, Grid] = {
    **{f"{dtype.name}": Grid(dtype, QSchemeType.per_channel) for dtype in Dtype if dtype is not Dtype.int32},
    **{f"{dtype.name} asym": Grid(dtype, **_GROUPS, symmetric=False) for dtype in Dtype if dtype.is_integer},
    **{f"scale {kind.name}": Grid(Dtype.int8, **_GROUPS, scale_type=kind) for kind in ScaleType},
    "per tensor": Grid(Dtype.uint4),
    "blocks": Grid(Dtype.fp8_e4m3, QSchemeType.per_block, block_size=(5, 7)),
    "full range": Grid(Dtype.int4, **_GROUPS, full_range=True),
    "float zero": Grid(Dtype.uint4, **_GROUPS, symmetric=False, float_zero=True),
    "mxfp4": Grid(Dtype.fp4, **_GROUPS, scale_type=ScaleType.float8_e8m0fnu),
    "mxint8": Grid(Dtype.int8, **_GROUPS, scale_type=ScaleType.float8_e8m0fnu),
    "nvfp4": Grid(Dtype.fp4, **_GROUPS, scale_type=ScaleType.float8_e4m3fn),
}
del GRIDS["int32 asym"]  # its scales would be below what float32 tells apart


def encode(weight: Tensor, grid: Grid) -> QTensor:
    """A weight in fewbit's layout, rounded on scales from its own extremes."""
    blocks = Blocks(tuple(weight.shape), grid.weight_block(tuple(weight.shape)))
    rows = blocks.rows(weight.detach().float())
    low, high = (ends.reshape(blocks.counts) for ends in (rows.amin(1), rows.amax(1)))
    return QTensor.encode(weight.detach(), from_range(low, high, grid, blocks.block))


def quantize_linears(model: nn.Module, grid: Grid = INT4) -> nn.Module:
    """Quantize every linear layer of a model in place."""
    for module in list(model.modules()):
        if isinstance(module, nn.Linear):
            set_weight(module, "weight", encode(module.weight, grid))
    return model


def mlp(width: int = 40) -> nn.Sequential:
    """Two linear layers with fixed weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(width, 24), nn.ReLU(), nn.Linear(24, 8)).eval()


def numbers(*shape: int) -> Tensor:
    """Random numbers that are the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))
