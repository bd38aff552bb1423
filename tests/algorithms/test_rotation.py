# SPDX-License-Identifier: Apache-2.0
"""Hadamard matrices by their definition, rotations by what they are for, and which one a stream gets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.algorithms._base import StreamProblem
from fewbit.algorithms._hadamard import hadamard_factors
from fewbit.algorithms._orthogonal import Orthogonal
from fewbit.algorithms.rotation import solve
from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType

# Widths of real models: SmolLM2, Qwen2.5, Gemma 3, GPT-2, Phi-3, Llama.
WIDTHS = [576, 640, 768, 896, 960, 1152, 1280, 1536, 1600, 1920, 2048, 2304, 2560, 2880, 3072, 3584, 4096, 5120, 7168]
MX = Grid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu)
NV = Grid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn)
TOKEN = Grid(Dtype.int4, QSchemeType.per_token)


def test_hadamard_by_its_definition():
    for order in range(1, 600):
        factors = hadamard_factors(order)
        assert factors is not None or order & (order - 1)  # every power of two has one
        assert factors is None or order in (1, 2) or order % 4 == 0  # no other order can have one
        for factor in factors or ():
            size = len(factor)
            assert (factor.abs() == 1).all() and (factor[0] == 1).all() and (factor[:, 0] == 1).all()
            assert torch.equal(factor @ factor.T, size * torch.eye(size, dtype=torch.float64))


@pytest.mark.parametrize("width", WIDTHS)
def test_widths_of_real_models_are_mixed_whole(width):
    sizes = [len(factor) for factor in hadamard_factors(width)]
    assert torch.tensor(sizes).prod() == width and max(sizes) <= 200
    assert Orthogonal.spreading(width, width).block == width


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 130), st.integers(1, 130), st.booleans(), st.integers(0, 9))
def test_any_width_and_block(width, block, centred, seed):
    turn = Orthogonal.spreading(width, block, centred=centred, seed=seed)
    q = turn.matrix
    torch.testing.assert_close(q @ q.T, torch.eye(width, dtype=torch.float64), rtol=0, atol=1e-12)
    assert block % turn.block == 0 and width % turn.block == 0
    for row in range(width):  # nothing leaves its block
        start = row // turn.block * turn.block
        assert not q[row, :start].any() and not q[row, start + turn.block :].any()
    if centred:
        torch.testing.assert_close(q.sum(0), torch.ones(width, dtype=torch.float64), rtol=0, atol=1e-12)
    else:
        torch.testing.assert_close(q.abs().amax(), torch.tensor(turn.block**-0.5, dtype=torch.float64))


@pytest.mark.parametrize("centred", [False, True])
def test_the_factors_are_the_matrix(centred):
    """Written out: D H for blocks of the Kronecker product, or H D Hᵀ."""
    turn = Orthogonal.spreading(96, 48, centred=centred, seed=3)
    h = torch.ones(1, 1, dtype=torch.float64)
    for factor in turn.factors:
        h = torch.kron(h, factor)
    h = torch.block_diag(h, h) / 48**0.5
    wanted = h @ turn.signs.diag() @ h.T if centred else turn.signs.diag() @ h
    torch.testing.assert_close(turn.matrix, wanted, rtol=0, atol=1e-14)
    x = torch.randn(5, 7, 96, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(turn(x), (x.double() @ wanted).float())
    assert turn(x.bfloat16()).dtype is torch.bfloat16


@pytest.mark.parametrize(("centred", "most"), [(False, 0.1), (True, 0.2)])
def test_what_stands_out_is_spread(centred, most):
    """One channel is a row of the matrix: 1/24 each, or, where the mean stays, as uneven as noise."""
    x = torch.randn(64, 576, generator=torch.Generator().manual_seed(0))
    x[:, 100] *= 100
    turned = Orthogonal.spreading(576, 576, centred=centred)(x)
    before, after = (y.abs().amax(1) / y.norm(dim=1) for y in (x, turned))
    assert before.median() > 0.9 and after.median() < most


def test_signs_follow_the_seed():
    one, same, other = (Orthogonal.spreading(64, 64, seed=seed).signs for seed in (1, 1, 2))
    assert torch.equal(one, same) and 10 < (one != other).sum() < 54 and 10 < (one > 0).sum() < 54


def test_which_one_a_stream_gets():
    whole = solve(StreamProblem(576, [64, 64, 128], grids=[TOKEN]))
    assert whole.facts == {"block": 576, "heads": {"64": 64, "128": 128}} and set(whole.heads) == {64, 128}
    assert not whole.stream.centred and solve(StreamProblem(64, centred=True)).stream.centred
    groups = solve(StreamProblem(576, [64], grids=[TOKEN, MX]))
    assert groups.facts == {"block": 32, "heads": {"64": 32}}  # a global rotation and MX scales do not go together
    assert solve(StreamProblem(576, grids=[MX]), block=64).facts["block"] == 64
    left = solve(StreamProblem(576, [64], grids=[NV]))
    assert left.stream is None and "reason" in left.facts


def test_what_cannot_be():
    with pytest.raises(UsageError, match="0 channels"):
        solve(StreamProblem(0))
    with pytest.raises(UsageError, match="block=0"):
        solve(StreamProblem(8), block=0)
