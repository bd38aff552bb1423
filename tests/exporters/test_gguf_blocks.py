# SPDX-License-Identifier: Apache-2.0
"""The bytes of ggml's blocks, decoded bit by bit and by the gguf library; and how near the search comes."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.exporters import _gguf_kquants, _gguf_mapping
from fewbit.exporters._gguf_blocks import Blocks
from fewbit.exporters._gguf_types import BLOCKS

gguf = pytest.importorskip("gguf")


def any_blocks(kind, seed, count=3):
    """Blocks with every number drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    parts = kind.block // kind.part

    def number(low, high, *shape):
        return torch.randint(low, high + 1, shape, generator=draw).float()

    def half(*shape):
        return torch.randn(shape, generator=draw).half().float()

    codes = number(kind.lowest, kind.highest, count, parts, kind.part)
    scales = None if kind.scales is None else number(*kind.scales, count, parts)
    offsets = number(0, 63, count, parts) if scales is not None and kind.offset else None
    return Blocks(kind, codes, half(count), half(count) if kind.offset else None, scales, offsets)


def half_at(raw, place):
    return struct.unpack("<e", raw[place : place + 2])[0]


def bit_by_bit(name, raw):
    """One block, element after element, from the layouts in ggml-common.h."""
    raw = bytes(raw)
    if name == "Q8_0":
        return [half_at(raw, 0) * struct.unpack("b", raw[2 + i : 3 + i])[0] for i in range(32)]
    if name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        start = 4 if name.endswith("1") else 2
        high = int.from_bytes(raw[start : start + 4], "little") if name.startswith("Q5") else 0
        first = start + (4 if name.startswith("Q5") else 0)
        middle = {"Q4_0": 8, "Q5_0": 16}.get(name, 0)
        plus = half_at(raw, 2) if name.endswith("1") else 0.0
        found = []
        for i in range(32):
            q = raw[first + i % 16] >> (4 * (i // 16)) & 15 | (high >> i & 1) << 4
            found.append(half_at(raw, 0) * (q - middle) + plus)
        return found
    if name == "Q6_K":
        found = []
        for i in range(256):
            half, rest = divmod(i, 128)
            quarter, lane = divmod(rest, 32)
            low = raw[64 * half + 32 * (quarter % 2) + lane] >> (4 * (quarter // 2)) & 15
            high = raw[128 + 32 * half + lane] >> (2 * quarter) & 3
            scale = struct.unpack("b", raw[192 + i // 16 : 193 + i // 16])[0]
            found.append(half_at(raw, 208) * scale * ((low | high << 4) - 32))
        return found
    start = 48 if name == "Q5_K" else 16
    found = []
    for i in range(256):
        part, lane = divmod(i, 32)
        q = raw[start + 32 * (part // 2) + lane] >> (4 * (part % 2)) & 15
        if name == "Q5_K":
            q |= (raw[16 + lane] >> part & 1) << 4
        packed = raw[4:16]
        if part < 4:
            s, t = packed[part] & 63, packed[part + 4] & 63
        else:
            s = packed[part + 4] & 15 | packed[part - 4] >> 6 << 4
            t = packed[part + 4] >> 4 | packed[part] >> 6 << 4
        found.append(half_at(raw, 0) * s * q - half_at(raw, 2) * t)
    return found


@pytest.mark.parametrize("name", BLOCKS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_both_decoders_give_what_was_packed(name, seed):
    blocks = any_blocks(BLOCKS[name], seed)
    packed = blocks.pack()
    kind = gguf.GGMLQuantizationType[name]
    assert packed.shape == (3, gguf.GGML_QUANT_SIZES[kind][1]) and packed.dtype == np.uint8
    values = blocks.values().numpy()
    assert np.array_equal(gguf.quants.dequantize(packed, kind), values)
    np.testing.assert_allclose([bit_by_bit(name, row) for row in packed], values, rtol=1e-5, atol=1e-5)


def weights(seed=0):
    """Rows of several sizes, some parts off zero, with outliers."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(48, 512, generator=draw) * torch.rand(48, 1, generator=draw)
    x += 0.3 * torch.randn(48, 16, generator=draw).repeat_interleave(32, 1)
    x[::5, ::37] *= 6
    return x * 0.05


def search(name, x, importance=None):
    kind = BLOCKS[name]
    found = (_gguf_mapping if kind.scales is None else _gguf_kquants).search(x, kind, importance)
    return gguf.quants.dequantize(found.pack().reshape(len(x), -1), gguf.GGMLQuantizationType[name])


def loss(x, decoded, h=1.0):
    return float(((torch.from_numpy(decoded) - x).double().square() * h).sum())


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_the_search_loses_less_than_the_library(name):
    x, kind = weights(), gguf.GGMLQuantizationType[name]
    theirs = loss(x, gguf.quants.dequantize(gguf.quants.quantize(x.numpy(), kind), kind))
    assert loss(x, search(name, x)) < 0.95 * theirs


def plain(name, x):
    """K blocks by extremes: each part's own, rounded to the lattice of the largest."""
    kind = BLOCKS[name]
    x = x.reshape(-1, kind.block // kind.part, kind.part)
    if kind.offset:
        low, high = x.amin(-1).clamp(max=0), x.amax(-1)
        scale, offset = (high - low) / kind.highest, -low
        d, m = scale.amax(1, True) / 63, offset.amax(1, True) / 63
        step, shift = d.half() * (scale / d).round(), m.half() * (offset / m).round()
    else:
        scale = x.abs().amax(-1) / 31
        d = scale.amax(1, True) / 127
        step, shift = d.half() * (scale / d).round(), torch.zeros_like(scale)
    q = ((x + shift[..., None]) / step[..., None]).round().clamp(kind.lowest, kind.highest)
    return (q * step[..., None] - shift[..., None]).flatten().numpy()


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K"])
def test_the_search_loses_less_than_extremes(name):
    x = weights()
    assert loss(x, search(name, x)) < 0.85 * loss(x.flatten(), plain(name, x))


@pytest.mark.parametrize("name", BLOCKS)
def test_what_matters_more_is_nearer(name):
    x, h = weights(), torch.randn(512, generator=torch.Generator().manual_seed(2)).mul(1.5).exp()
    assert loss(x, search(name, x, h), h) < 0.95 * loss(x, search(name, x), h)


@pytest.mark.parametrize("name", BLOCKS)
def test_values_on_the_grid_stay(name):
    """Blocks that the search found are found again, or nearly: most of their error does not come twice."""
    x = torch.from_numpy(search(name, weights(1)))
    assert loss(x, search(name, x)) <= 0.1 * loss(weights(1), x.numpy())


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("value", [0.0, -0.3, 2.5])
@pytest.mark.parametrize("where", [slice(None), slice(0, 1), slice(77, 78)], ids=["all", "the first", "another"])
def test_blocks_of_one_value(name, value, where):
    x = torch.zeros(1, 256)
    x[:, where] = value
    decoded = search(name, x)
    assert np.isfinite(decoded).all() and loss(x, decoded) <= 1e-4 * float(x.square().sum())
