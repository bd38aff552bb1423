# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.packing import pack
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import dequantize, fake_quantize, quantize
from fewbit.numerics.scales import ScaleType
from numerics.pinning import pin

GRIDS = {
    "int8 channel": Grid(Dtype.int8, QSchemeType.per_channel),
    "uint4 groups": Grid(Dtype.uint4, QSchemeType.per_group, group_size=16, symmetric=False),
    "int4 full range": Grid(
        Dtype.int4, QSchemeType.per_group, group_size=16, full_range=True, scale_type=ScaleType.float16
    ),
    "int3 free zero": Grid(Dtype.int3, QSchemeType.per_group, group_size=16, symmetric=False, float_zero=True),
    "uint16": Grid(Dtype.uint16, symmetric=False, scale_type=ScaleType.bfloat16),
    "int12 columns": Grid(Dtype.int12, QSchemeType.per_channel, axis=1),
    "mxfp4": Grid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu),
    "mxfp6": Grid(Dtype.fp6_e2m3, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu),
    "nvfp4": Grid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn),
    "amdfp4": Grid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e5m3),
    "fp8 blocks": Grid(Dtype.fp8_e4m3, QSchemeType.per_block, block_size=(4, 16)),
    "nf4": Grid(Dtype.nf4, QSchemeType.per_group, group_size=16),
    "int8 power": Grid(Dtype.int8, scale_type=ScaleType.pof2),
    "int32": Grid(Dtype.int32, QSchemeType.per_channel),
    "bfloat16": Grid(Dtype.bfloat16),
}


def weight(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("shape", [(6, 64), (5, 41), (3, 4, 33), (7,), (2, 3, 3, 3), (), (0, 4), (4, 0), (1, 1)])
def test_a_tensor_comes_back_as_the_values_of_its_codes(grid, shape):
    x = weight(*shape)
    qparams = pin(x, grid)
    kept = QTensor.encode(x, qparams)
    assert kept.shape == shape and kept.scale.shape == kept.blocks.counts
    assert torch.equal(kept.codes().double(), quantize(x, qparams).double())
    assert torch.equal(kept.dequantize(), fake_quantize(x, qparams))
    assert torch.equal(kept.dequantize(torch.bfloat16), fake_quantize(x, qparams).bfloat16())
    # The stored scales are the ones that were used: reading them back changes nothing.
    again = QTensor.from_codes(kept.codes(), kept.qparams)
    assert all(torch.equal(a.double(), b.double()) for a, b in zip(kept.tensors().values(), again.tensors().values()))
    parts = QTensor.from_tensors(kept.grid, kept.shape, kept.block, kept.tensors())
    assert torch.equal(parts.dequantize(), kept.dequantize())


def test_the_parts_and_their_sizes():
    kept = QTensor.encode(weight(8, 64), pin(weight(8, 64), GRIDS["nvfp4"]))
    assert {name: (tuple(part.shape), part.dtype) for name, part in kept.tensors().items()} == {
        "packed": ((8, 32), torch.uint8),
        "scale": ((8, 4), torch.float8_e4m3fn),
        "super_scale": ((), torch.float32),
    }
    assert kept.nbytes == 8 * 32 + 8 * 4 + 4
    shifted = QTensor.encode(weight(8, 64), pin(weight(8, 64), GRIDS["uint4 groups"]))
    assert shifted.zero_point.dtype is torch.uint8 and shifted.scale.dtype is torch.float32
    free = QTensor.encode(weight(8, 64), pin(weight(8, 64), GRIDS["int3 free zero"]))
    assert free.zero_point.dtype is torch.float32 and free.packed.shape == (8, 24)


@given(
    st.sampled_from(sorted(GRIDS)),
    st.integers(0, 3),
    st.integers(0, 12),
    st.sampled_from([(12, 40), (12, 33), (12, 4, 5), (12,)]),
)
def test_a_part_is_those_rows(name, start, stop, shape):
    grid = GRIDS[name]
    x = weight(*shape)
    kept = QTensor.encode(x, pin(x, grid))
    start *= 4 if kept.block[0] < 12 and kept.block[0] > 1 else 1
    part = kept.part(start, stop)
    assert torch.equal(part.dequantize(), kept.dequantize()[start:stop])
    assert part.shape == kept.dequantize()[start:stop].shape
    assert torch.equal(part.packed.double(), pack(part.codes(), grid.dtype).double())


def test_a_part_begins_at_the_border_of_a_block():
    kept = QTensor.encode(weight(12, 40), pin(weight(12, 40), GRIDS["fp8 blocks"]))
    assert torch.equal(kept.part(4, 10).dequantize(), kept.dequantize()[4:10])
    with pytest.raises(UsageError, match="row 3"):
        kept.part(3, 10)


def test_codes_found_elsewhere_are_kept_as_they_are():
    x = weight(4, 32)
    qparams = pin(x, GRIDS["uint4 groups"])
    codes = torch.randint(0, 16, (4, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    kept = QTensor.from_codes(codes, qparams)
    assert torch.equal(kept.codes(), codes) and torch.equal(kept.dequantize(), dequantize(codes, qparams))
