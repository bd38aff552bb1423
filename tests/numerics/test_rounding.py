# SPDX-License-Identifier: Apache-2.0
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.numerics.rounding import RoundType, round_to_integer, uniform

NUMBERS = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20)


def by_fractions(x, mode):
    number = Fraction(x)
    low = math.floor(number)
    if mode is RoundType.floor:
        return low
    if mode is RoundType.half_even:
        return round(number)
    away = low + 1 if number > 0 else low
    return away if number - low == Fraction(1, 2) else round(number)


@pytest.mark.parametrize("mode", [RoundType.half_even, RoundType.round, RoundType.floor])
@given(NUMBERS)
def test_rounding_is_that_of_exact_fractions(mode, numbers):
    x = torch.tensor(numbers)
    expected = [by_fractions(value, mode) for value in x.tolist()]
    assert round_to_integer(x, mode).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_halves_and_their_neighbours(dtype):
    halves = torch.arange(-8, 8, dtype=dtype) + 0.5
    up, down = halves.nextafter(torch.tensor(100, dtype=dtype)), halves.nextafter(torch.tensor(-100, dtype=dtype))
    for x in (halves, up, down):
        expected = [by_fractions(value, RoundType.round) for value in x.tolist()]
        assert round_to_integer(x, RoundType.round).tolist() == expected


def test_large_numbers_stay_as_they_are():
    x = torch.tensor([2.0**23 + 1, -(2.0**24), 3e38, -(2.0**23) - 3])
    for mode in RoundType:
        assert torch.equal(round_to_integer(x, mode), x)


@pytest.mark.parametrize("mode", list(RoundType))
def test_what_becomes_zero_keeps_its_sign_and_the_input_is_left_alone(mode):
    x = torch.tensor([-0.0, 0.0, 2.0**-20])
    before = x.clone()
    assert round_to_integer(x, mode).signbit().tolist() == [True, False, False]
    assert torch.equal(x, before) and x.signbit()[0]
    if mode is not RoundType.floor:
        assert round_to_integer(torch.tensor([-(2.0**-20)]), mode, seed=1).signbit().item()


def test_stochastic_rounding_is_unbiased_and_takes_only_the_two_neighbours():
    n = 50_000
    for share in (0.1, 0.5, 0.9):
        for whole in (-3, 0, 5):
            rounded = round_to_integer(torch.full((n,), whole + share), RoundType.stochastic, seed=3)
            assert rounded.unique().tolist() == [whole, whole + 1]
            # Five standard deviations of the mean of n coin flips.
            assert abs((rounded - whole).mean().item() - share) < 5 * math.sqrt(share * (1 - share) / n)


def test_stochastic_rounding_depends_on_seed_and_position_alone():
    x = torch.full((64, 33), 0.5)
    torch.manual_seed(1)
    first = round_to_integer(x, RoundType.stochastic, seed=7)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(first, round_to_integer(x, RoundType.stochastic, seed=7))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.flatten(), round_to_integer(x.flatten(), RoundType.stochastic, seed=7))
    assert not torch.equal(first, round_to_integer(x, RoundType.stochastic, seed=8))


def hashed(position, seed):
    """The generator once more, in plain Python integers."""

    def mix(word):
        word &= 0xFFFFFFFF
        word = (word ^ word >> 16) * 0x21F0AAAD % 2**32
        word = (word ^ word >> 15) * 0x735A2D97 % 2**32
        return word ^ word >> 15

    seed_word = mix(mix(seed >> 32) + seed)
    return (mix(mix(position) + seed_word) >> 8) / 2**24


@given(st.integers(0, 2**63 - 1))
def test_the_numbers_are_those_of_the_hash_in_plain_integers(seed):
    drawn = uniform(torch.Size([3, 5]), seed, torch.device("cpu")).flatten().tolist()
    assert drawn == [hashed(position, seed) for position in range(15)]


def test_the_numbers_look_uniform_and_seeds_are_independent():
    n = 1 << 17
    streams = [uniform(torch.Size([n]), seed, torch.device("cpu")).double() for seed in range(4)]
    for u in streams:
        assert u.min() >= 0 and u.max() < 1
        counts = np.histogram(u.numpy(), bins=256, range=(0, 1))[0]
        chi = ((counts - n / 256) ** 2 / (n / 256)).sum()
        assert abs(chi - 255) < 6 * math.sqrt(2 * 255)
        assert abs(torch.corrcoef(torch.stack([u[1:], u[:-1]]))[0, 1]) < 5 / math.sqrt(n)
    pairs = torch.corrcoef(torch.stack(streams)) - torch.eye(4)
    assert pairs.abs().max() < 5 / math.sqrt(n)
