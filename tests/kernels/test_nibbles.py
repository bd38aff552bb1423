# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.kernels._nibbles import Cpu, Cuda, padded
from frozen_layers import CUDA


def nibbles(outputs, features, device="cpu"):
    return (
        torch.randint(0, 16, (outputs, features), generator=torch.Generator().manual_seed(1)).to(torch.uint8).to(device)
    )


@given(st.integers(1, 14), st.integers(1, 3))
def test_codes_come_back_from_what_pytorch_packed(steps, pairs):
    codes = nibbles(16 * steps, 32 * pairs)
    packed = torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    assert torch.equal(Cpu().pack(codes), packed)
    assert torch.equal(Cpu().unpack(packed), codes)


def test_many_rows_are_packed_piece_by_piece(monkeypatch):
    monkeypatch.setattr("fewbit.kernels._nibbles._CHUNK", 128)
    codes = nibbles(400, 32)
    assert torch.equal(Cpu().pack(codes), torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1))


@given(st.integers(1, 14), st.integers(1, 9000))
def test_tiles_hold_every_output_once(steps, elements):
    codes = nibbles(16 * steps, 32)
    found = torch.full_like(codes, 255)
    for outputs, tile in Cpu().tiles(Cpu().pack(codes), elements):
        assert (found[outputs] == 255).all()
        found[outputs] = tile.transpose(1, 2).flatten(0, 1)
    assert torch.equal(found, codes)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("features", [32, 64, 128, 192, 256])
def test_codes_come_back_on_cuda(features, device):
    codes = nibbles(48, features, device)
    layout = Cuda(features)
    packed = layout.pack(codes)
    assert torch.equal(layout.unpack(packed), codes)
    assert torch.equal(layout.fast_unpack(packed), codes.to(torch.int16))


def test_rows_are_made_up():
    assert padded(nibbles(17, 4)).shape == (32, 4)
    assert padded(nibbles(32, 4)).shape == (32, 4)
    assert not padded(nibbles(17, 4))[17:].any()
