# SPDX-License-Identifier: Apache-2.0
"""Blocks of ggml: the gguf library decodes what was meant, and the search comes nearer than plain rounding."""

import numpy as np
import pytest
import torch

from fewbit.checkpoints._gguf.blocks import BLOCK_TYPES, Blocks
from fewbit.checkpoints._gguf.search import search_blocks
from fewbit.checkpoints._gguf.types import map_integers, type_for
from fewbit.errors import ModelError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

gguf = pytest.importorskip("gguf")
LIMITS = {
    "Q2_K": 0.085, "Q3_K": 0.028, "Q4_0": 0.0093, "Q4_1": 0.0064, "Q4_K": 0.0062, "Q5_0": 0.0024, "Q5_1": 0.0016,
    "Q5_K": 0.0016, "Q6_K": 0.00042, "Q8_0": 4e-5,
}  # fmt: skip
"""Relative squared error on Gaussian weights; ggml's own quantizer (llama.cpp 0.5) is 2 to 25 % above ours."""


def weights(rows=32, columns=1024, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    return x * (0.01 + 0.05 * torch.rand(rows, 1, generator=generator))


def decoded(blocks, shape):
    kind = gguf.GGMLQuantizationType[blocks.type.name]
    packed = blocks.pack()
    elements, width = gguf.GGML_QUANT_SIZES[kind]
    assert packed.shape[1] == width and blocks.type.block == elements
    return gguf.dequantize(packed.reshape(shape[0], -1), kind)


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_every_bit_of_a_block_has_its_place(name):
    """Random content in every field: whatever the search would choose, the library decodes the same."""
    kind, draw = BLOCK_TYPES[name], torch.Generator().manual_seed(1)
    count, parts = 64, kind.block // kind.part

    def integers(low, high, *shape):
        return torch.randint(low, high + 1, shape, generator=draw).float()

    def halves():
        return torch.randn(count, generator=draw).half().float()

    blocks = Blocks(kind, integers(kind.lowest, kind.highest, count, parts, kind.part), halves())
    if kind.offset:
        blocks = Blocks(kind, blocks.codes, blocks.d, halves())
    if kind.scales is not None:
        scales = integers(*kind.scales, count, parts)
        offsets = integers(*kind.scales, count, parts) if kind.offset else None
        blocks = Blocks(kind, blocks.codes, blocks.d, blocks.m, scales, offsets)
    assert np.array_equal(decoded(blocks, (count, kind.block)), blocks.values().reshape(count, -1).numpy())


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_the_search_loses_little(name):
    x = weights()
    blocks = search_blocks(x, BLOCK_TYPES[name])
    values = blocks.values().reshape(x.shape)
    assert np.array_equal(decoded(blocks, x.shape), values.numpy())
    error = float((values - x).square().sum() / x.square().sum())
    assert error < LIMITS[name]
    kind = gguf.GGMLQuantizationType[name]
    try:
        theirs = gguf.dequantize(gguf.quantize(x.numpy(), kind), kind)
    except NotImplementedError:
        return  # the library does not quantize K types
    assert error < float(np.square(theirs - x.numpy()).sum() / x.square().sum())


@pytest.mark.parametrize("name", BLOCK_TYPES)
@pytest.mark.parametrize("scale", [0.03, 1e3])
def test_scales_of_weights_do_not_matter_and_zeros_stay_zero(name, scale):
    x = weights(8, 512)
    x[0], x[1, :256] = 0, 0
    x[2, :256] = 0.5  # all the same
    blocks = search_blocks(x * scale, BLOCK_TYPES[name])
    values = blocks.values().reshape(x.shape) / scale
    assert bool(torch.isfinite(values).all()) and bool((values[0] == 0).all()) and bool((values[1, :256] == 0).all())
    error = (values[3:] - x[3:]).square().sum() / x[3:].square().sum()
    assert float(error) < 1.5 * LIMITS[name]  # tiny float16 scales are coarse


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q3_K"])
def test_columns_that_matter_are_nearer(name):
    x = weights(16, 512)
    h = torch.randn(512, generator=torch.Generator().manual_seed(3)).mul(2).exp()
    plain, weighted = (
        search_blocks(x, BLOCK_TYPES[name], importance).values().reshape(x.shape) for importance in (None, h)
    )
    loss = [float(((values - x).square() * h).sum()) for values in (plain, weighted)]
    assert loss[1] < 0.95 * loss[0]


def qtensor(grid, shape=(32, 256), seed=0):
    generator = torch.Generator().manual_seed(seed)
    counts = (shape[0], shape[1] // grid.weight_block(shape)[1])
    codes = torch.randint(int(grid.dtype.lowest), int(grid.dtype.highest) + 1, shape, generator=generator)
    scale = (torch.rand(counts, generator=generator) * 0.1 + 1e-3).to(torch.bfloat16).float()
    zero = None
    if grid.asymmetric:
        zero = torch.randint(int(grid.dtype.lowest), int(grid.dtype.highest) + 1, counts, generator=generator).float()
    storage = getattr(torch, grid.dtype.storage)
    return QTensor.from_codes(codes.to(storage), QParams(grid, grid.weight_block(shape), scale, zero))


@pytest.mark.parametrize("dtype", ["int2", "int3", "int4", "int5", "int6", "int8", "uint2", "uint3", "uint4"])
@pytest.mark.parametrize("size", [32, 128, -1])
def test_integers_of_fewbit_are_kept(dtype, size):
    grid = QuantizationGrid(
        Dtype[dtype], QSchemeType.per_group, group_size=size, symmetric=not dtype.startswith("u"),
        scale_type=ScaleType.bfloat16,
    )  # fmt: skip
    tensor = qtensor(grid)
    blocks = map_integers(tensor)
    assert blocks.type.name == type_for(grid)
    assert np.array_equal(decoded(blocks, tensor.shape), tensor.dequantize().numpy())


def test_scales_beyond_float16_are_refused():
    grid = QuantizationGrid(Dtype.int4, QSchemeType.per_group, group_size=32)
    tensor = QTensor.encode(torch.ones(1, 32), QParams(grid, (1, 32), torch.tensor([[1 / 3]])))
    with pytest.raises(ModelError, match="float16"):
        map_integers(tensor, "layer")
