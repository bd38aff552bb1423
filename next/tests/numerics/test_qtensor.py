# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.numerics import qtensor
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import dequantize, quantize
from fewbit.numerics.scales import ScaleType
from numerics_reference import fit, host, normal, same_bits, to_bytes

GRIDS = {
    "int8 channel": QuantizationGrid(Dtype.int8, QSchemeType.per_channel),
    "uint4 group": QuantizationGrid(
        Dtype.uint4, QSchemeType.per_group, group_size=16, symmetric=False, scale_type=ScaleType.bfloat16
    ),
    "int3 full range": QuantizationGrid(Dtype.int3, QSchemeType.per_group, group_size=16, full_range=True),
    "uint2 float zero": QuantizationGrid(Dtype.uint2, QSchemeType.per_channel, symmetric=False, float_zero=True),
    "uint16": QuantizationGrid(Dtype.uint16, symmetric=False),
    "fp8 rectangle": QuantizationGrid(Dtype.fp8_e4m3, QSchemeType.per_block, block_size=(8, 16)),
    "nvfp4": QuantizationGrid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn),
    "mxfp6": QuantizationGrid(
        Dtype.fp6_e2m3, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu
    ),
    "nf4": QuantizationGrid(Dtype.nf4, QSchemeType.per_group, group_size=64),
}


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("shape", [(16, 64), (10, 37), (3, 5, 18), (20,), (4, 6, 3, 3)])
def test_nothing_is_lost_between_quantizing_and_reading(name, shape, array):
    x = array(normal(shape))
    qparams = fit(x, GRIDS[name])
    stored = QTensor.encode(x, qparams)
    quantized = quantize(x, qparams)
    assert to_bytes(stored.codes()) == to_bytes(quantized) and stored.shape == shape
    assert same_bits(stored.dequantize(), dequantize(quantized, qparams))
    again = QTensor.from_tensors(stored.grid, stored.shape, stored.block, stored.tensors())
    assert same_bits(again.dequantize(), stored.dequantize())
    assert stored.nbytes == sum(host(part).nbytes for part in stored.tensors().values())


def test_the_bytes_that_are_stored(array):
    x = array(normal((8, 64)))
    stored = QTensor.encode(x, fit(x, GRIDS["uint4 group"]))
    kinds = {name: (host(part).dtype.name, part.shape) for name, part in stored.tensors().items()}
    assert kinds == {"packed": ("uint8", (8, 32)), "scale": ("uint16", (8, 4)), "zero_point": ("uint8", (8, 4))}
    nvfp4 = QTensor.encode(x, fit(x, GRIDS["nvfp4"]))
    assert host(nvfp4.scale).dtype == np.uint8 and host(nvfp4.global_scale).dtype == np.float32
    assert nvfp4.nbytes == 8 * 64 // 2 + 8 * 4 + 4


@pytest.mark.parametrize("name", GRIDS)
def test_rows_are_those_of_the_tensor(name, array):
    x = array(normal((16, 64)))
    stored = QTensor.encode(x, fit(x, GRIDS[name]))
    for start, stop in ((0, 8), (8, 16), (8, 99), (0, 0)):
        part = stored.rows(start, stop)
        assert part.shape == (len(range(16)[start:stop]), 64)
        assert same_bits(part.dequantize(), host(stored.dequantize())[start:stop])
    if stored.block[0] == 8:
        with pytest.raises(UsageError, match="inside a block"):
            stored.rows(3, 5)


def test_rows_of_a_vector(array):
    x = array(normal((20,)))
    stored = QTensor.encode(x, fit(x, QuantizationGrid(Dtype.int4)))
    assert same_bits(stored.rows(3, 9).dequantize(), host(stored.dequantize())[3:9])


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("shape", [(40, 64), (40, 37), (5, 8, 64)])
def test_pieces_change_nothing(name, shape, array, monkeypatch):
    x = array(normal(shape))
    stored = QTensor.encode(x, fit(x, GRIDS[name]))
    expected = to_bytes(stored.dequantize())
    monkeypatch.setattr(qtensor, "NUMPY_CHUNK", 300)
    monkeypatch.setattr(qtensor, "TORCH_CHUNK", 300)
    assert to_bytes(stored.dequantize()) == expected


def test_scalars(array):
    x = array(np.array(2.0, np.float32))
    for dtype in (Dtype.int8, Dtype.uint4, Dtype.fp8_e4m3, Dtype.nf4):
        stored = QTensor.encode(x, fit(x, QuantizationGrid(dtype)))
        assert stored.shape == () and abs(host(stored.dequantize()) - 2.0) < 0.3
