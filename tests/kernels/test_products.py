# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.kernels._products import LONGEST, Plain, Prepacked, has_onednn, int_mm, product
from frozen_layers import DEVICES

needs_onednn = pytest.mark.skipif(not has_onednn(), reason="no oneDNN here")
WAYS = [Plain, pytest.param(Prepacked, marks=needs_onednn)]


def bytes_(*shape, seed=0):
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("way", WAYS)
@given(st.integers(1, 40), st.integers(1, 90), st.integers(2, 70), st.integers(0, 2**31))
def test_sums_are_exact(way, tokens, outputs, features, seed):
    codes, weight = bytes_(tokens, features, seed=seed), bytes_(outputs, features, seed=seed + 1)
    found = way(weight)(codes, torch.ones(outputs))
    assert torch.equal(found, (codes.long() @ weight.long().t()).float())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("code", [-128, 127])
@pytest.mark.parametrize("weight", [-128, 127])
def test_the_longest_sums_of_the_largest_products_do_not_overflow(way, code, weight):
    codes = torch.full((2, LONGEST), code, dtype=torch.int8)
    weights = torch.full((3, LONGEST), weight, dtype=torch.int8)
    found = way(weights)(codes, torch.ones(3))
    assert torch.equal(found, torch.full((2, 3), float(code * weight * LONGEST)))


@pytest.mark.parametrize("way", WAYS)
@given(st.integers(1, 130), st.integers(1, 130))
def test_the_weight_comes_back(way, outputs, features):
    weight = bytes_(outputs, features)
    assert torch.equal(way(weight.clone()).codes(), weight)


@pytest.mark.parametrize("way", WAYS)
def test_steps_multiply_outputs(way):
    codes, weight, step = bytes_(3, 16), bytes_(5, 16, seed=1), torch.rand(5)
    assert torch.equal(way(weight)(codes, step), (codes.long() @ weight.long().t()).float() * step)


def test_small_weights_and_those_to_be_kept_stay_as_they_are():
    small, large = bytes_(8, 8), bytes_(1024, 1024)
    assert product(small).weight is small
    assert product(large, keep=True).weight is large


@needs_onednn
def test_large_weights_get_a_layout_of_their_own():
    assert isinstance(product(bytes_(1024, 1024)), Prepacked)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 18, 33])
def test_any_number_of_rows(device, tokens):
    codes, weight = bytes_(tokens, 32), bytes_(24, 32, seed=1)
    found = int_mm(codes.to(device), weight.to(device)).cpu()
    assert torch.equal(found, (codes.long() @ weight.long().t()).int())
