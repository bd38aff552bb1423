# SPDX-License-Identifier: Apache-2.0
"""fewbit's codes as ggml's blocks, bit by bit wherever float16 holds the scales."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.errors import DataError
from fewbit.exporters._gguf_mapping import map_codes
from fewbit.exporters._gguf_types import BLOCKS, for_grid
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

gguf = pytest.importorskip("gguf")


def any_codes(grid, seed, shape=(4, 256), scale=None):
    """A tensor with every code, scale and zero point drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    block = grid.weight_block(shape)
    counts = tuple(-(-side // width) for side, width in zip(shape, block))
    low, high = int(grid.dtype.lowest), int(grid.dtype.highest)
    codes = torch.randint(low, high + 1, shape, generator=draw).to(grid.dtype.storage)
    if scale is None:
        scale = torch.rand(counts, generator=draw) * 0.1 + 1e-3
        scale = scale * torch.randint(0, 2, counts, generator=draw).mul(2).sub(1) if grid.signed_scale else scale
    zero = None
    if grid.has_zero_point:
        zero = torch.randint(low, high + 1, counts, generator=draw).float()
        zero = zero if grid.asymmetric else torch.full(counts, (high + low + 1) // 2).float()
    return QTensor.from_codes(codes, QParams(grid, block, scale.expand(counts), zero))


def decoded(tensor):
    name = for_grid(tensor.grid)
    packed = map_codes(tensor, BLOCKS[name]).pack().reshape(tensor.shape[0], -1)
    return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[name])


def grid(dtype, size=32, **fields):
    fields = {"scale_type": ScaleType.bfloat16, "granularity": QSchemeType.per_group, "group_size": size, **fields}
    return Grid(Dtype[dtype], **fields)


EXACT = {
    "int4": (grid("int4"), "Q4_0"),
    "int4 full range": (grid("int4", full_range=True), "Q4_0"),
    "int4 groups of 128": (grid("int4", 128), "Q4_0"),
    "int4 rows": (grid("int4", granularity=QSchemeType.per_channel), "Q4_0"),
    "int4 rectangles": (grid("int4", granularity=QSchemeType.per_block, block_size=(2, 64)), "Q4_0"),
    "int4 one scale": (grid("int4", granularity=QSchemeType.per_tensor), "Q4_0"),
    "int4 float16": (grid("int4", scale_type=ScaleType.float16), "Q4_0"),
    "int3": (grid("int3", full_range=True), "Q4_0"),
    "int2": (grid("int2", full_range=True), "Q4_0"),
    "uint4 symmetric": (grid("uint4"), "Q4_0"),
    "uint4": (grid("uint4", symmetric=False), "Q4_1"),
    "uint4 groups of 64": (grid("uint4", 64, symmetric=False), "Q4_1"),
    "int4 asymmetric": (grid("int4", symmetric=False), "Q4_1"),
    "uint2": (grid("uint2", symmetric=False), "Q4_1"),
    "int5": (grid("int5"), "Q5_0"),
    "int8": (grid("int8"), "Q8_0"),
    "int8 powers of two": (grid("int8", scale_type=ScaleType.pof2), "Q8_0"),
    "int6": (grid("int6", 64), "Q8_0"),
}


@pytest.mark.parametrize("case", EXACT)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_codes_come_back_bit_by_bit(case, seed):
    kind, name = EXACT[case]
    assert for_grid(kind) == name
    tensor = any_codes(kind, seed)
    assert np.array_equal(decoded(tensor), tensor.dequantize().numpy())


@pytest.mark.parametrize("exponent", [-16, -9, 0])
def test_every_bfloat16_scale_and_zero_point_fits_into_an_offset(exponent):
    """The offset has up to four bits more than the scale: with the codes turned round it never needs the fourth."""
    kind = grid("uint4", symmetric=False)
    scale = (torch.arange(128, 256) * 2.0**exponent).repeat_interleave(16)[:, None]
    zero = torch.arange(16.0).repeat(128)[:, None]
    codes = torch.arange(16, dtype=torch.uint8).repeat(len(scale), 2)
    tensor = QTensor.from_codes(codes, QParams(kind, (1, 32), scale, zero))
    assert np.array_equal(decoded(tensor), tensor.dequantize().numpy())


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint5"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_other_scales_are_rounded_to_float16_and_codes_stay(dtype, seed):
    asymmetric = dtype.startswith("u")
    tensor = any_codes(grid(dtype, scale_type=ScaleType.float32, symmetric=not asymmetric), seed)
    wanted = tensor.dequantize()
    found = torch.from_numpy(decoded(tensor))
    step = tensor.qparams.scale.repeat_interleave(32, 1)
    assert ((found - wanted).abs() <= step * 0.1).all() and not torch.equal(found, wanted)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_asymmetric_bytes_come_near(seed):
    """Codes that lie farther than 128 from their zero point are found anew, the others stay."""
    tensor = any_codes(grid("uint8", symmetric=False, granularity=QSchemeType.per_channel), seed, (3, 256))
    away = tensor.codes().float() - tensor.qparams.zero_point
    fits = ((away >= -128) & (away <= 127)).reshape(-1, 32).all(1)
    wanted = tensor.dequantize().reshape(-1, 32)
    found = torch.from_numpy(decoded(tensor)).reshape(-1, 32)
    assert torch.equal(found[fits], wanted[fits])
    most = wanted.abs().amax(1, keepdim=True)
    assert ((found - wanted).abs() <= most / 127).all()


@pytest.mark.parametrize("name", ["nf4", "fp8_e4m3", "fp4", "int9", "float16"])
def test_other_types_have_none(name):
    assert for_grid(Grid(Dtype[name])) is None


def test_a_scale_beyond_float16_is_refused():
    with pytest.raises(DataError, match="beyond float16"):
        decoded(any_codes(grid("int4"), 0, scale=torch.tensor(1e6)))
