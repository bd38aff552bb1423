# SPDX-License-Identifier: Apache-2.0
"""numpy, torch and CUDA give the same scales, integers, values and bytes, in every combination."""

import itertools
import random

import numpy as np
import pytest
import torch

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import BlockShape
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.quantize import fake_quantize, qparams_from_min_max
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType
from numerics_reference import to_bytes

SHAPE = (48, 70)
BLOCKS = {
    "tensor": SHAPE,
    "channel": (1, 70),
    "column": (48, 1),
    "group": (1, 35),
    "short": (1, 32),
    "block": (16, 16),
}
SYMMETRY = {
    "symmetric": {},
    "asymmetric": {"symmetric": False},
    "full range": {"full_range": True},
    "float zero": {"symmetric": False, "float_zero": True},
}
KINDS = ["normal", "halves", "tiny", "large", "zeros", "positive", "bits"]


def tensor(kind):
    draw = np.random.default_rng(len(kind))
    x = draw.normal(size=SHAPE).astype(np.float32)
    if kind == "halves":
        x = (np.round(x * 4) / 2).astype(np.float32)
    if kind == "tiny":
        x *= np.float32(2.0**-120)
    if kind == "large":
        x *= np.float32(2.0**125)
    if kind == "zeros":
        x[:24] = 0
    if kind == "positive":
        x = np.abs(x) + np.float32(3)
    if kind == "bits":
        x = draw.integers(0, 1 << 32, SHAPE, dtype=np.uint32).view(np.float32)
        x = np.where(np.isfinite(x), x, np.float32(1))
    return x


TENSORS = {kind: tensor(kind) for kind in KINDS}


def combinations():
    """Every grid that is allowed, with the kinds of values in turn."""
    kinds = itertools.cycle(KINDS)
    for dtype, block, scale, rounding, symmetry in itertools.product(Dtype, BLOCKS, ScaleType, RoundType, SYMMETRY):
        integer = dtype.is_integer
        if symmetry != "symmetric" and not integer:
            continue
        if symmetry == "full range" and not (dtype.signed and scale.signed):
            continue
        for mode in ScaleMode if scale is ScaleType.float8_e8m0fnu and symmetry == "symmetric" else [ScaleMode.even]:
            fields = {"scale_type": scale, "rounding": rounding, "scale_mode": mode, **SYMMETRY[symmetry]}
            for kind in (next(kinds), next(kinds)):
                yield dtype, block, fields, kind


ALL = list(combinations())


def everything(x, dtype, block, fields):
    """Scales, zero points, packed and unpacked integers, values."""
    grid, side = QuantizationGrid(dtype, seed=3, **fields), BLOCKS[block]
    low, high = BlockShape(SHAPE, side).extremes(x)
    qparams = qparams_from_min_max(low, high, grid, side)
    stored = QTensor.encode(x, qparams)
    return {
        **stored.tensors(),
        "codes": stored.codes(),
        "values": stored.dequantize(),
        "fake": fake_quantize(x, qparams),
    }


def differences(chosen, devices):
    """The combinations where a device does not give the bytes of numpy."""
    wrong = []
    for dtype, block, fields, kind in chosen:
        expected = {name: to_bytes(x) for name, x in everything(TENSORS[kind], dtype, block, fields).items()}
        for device in devices:
            result = everything(torch.from_numpy(TENSORS[kind]).to(device), dtype, block, fields)
            names = [name for name in expected if to_bytes(result[name]) != expected[name]]
            if names or result.keys() != expected.keys():
                wrong.append((device, dtype.name, block, kind, fields, names))
    return wrong


def test_numpy_and_torch_give_the_same_bytes():
    assert len(ALL) > 15_000
    assert differences(random.Random().sample(ALL, len(ALL) // 50), ["cpu"]) == []  # other ones in every run


@pytest.mark.slow
def test_numpy_and_torch_give_the_same_bytes_everywhere():
    assert differences(ALL, ["cpu"]) == []


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_same_bytes_everywhere():
    assert differences(ALL, ["cuda"]) == []
