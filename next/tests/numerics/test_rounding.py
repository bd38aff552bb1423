# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.numerics.rounding import RoundType, round_to_integer, uniform
from numerics_reference import LIBRARIES, host, same_bits

FLOATS = st.floats(-(2.0**22), 2.0**22, width=32)
libraries = st.sampled_from(list(LIBRARIES.values()))


def textbook(x, mode):
    """One number at a time, in exact arithmetic."""
    low = math.floor(x)
    if mode is RoundType.floor or x == low:
        return low
    distance = x - low  # exact for float32 in float64
    if distance != 0.5:
        return low + (distance > 0.5)
    return low + low % 2 if mode is RoundType.half_even else low + (x > 0)


@settings(max_examples=100, deadline=None)
@given(libraries, st.lists(FLOATS, min_size=1, max_size=20))
def test_deterministic_modes_are_those_of_the_textbook(array, numbers):
    halves = [math.floor(number) + 0.5 for number in numbers]
    x = np.array([*numbers, *halves, 0.49999997, -0.49999997, 8388609.0, -0.0], np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])
    for mode in (RoundType.half_even, RoundType.round, RoundType.floor):
        expected = [textbook(value, mode) for value in x.tolist()]
        assert host(round_to_integer(array(x), mode)).tolist() == expected


def test_what_becomes_zero_has_its_sign_and_infinities_stay(array):
    x = np.array([-0.3, -0.0, 0.3, 1e30, math.inf, -math.inf], np.float32)
    for mode in RoundType:
        rounded = host(round_to_integer(array(x), mode))
        assert mode is not RoundType.half_even or same_bits(rounded[:3], [-0.0, -0.0, 0.0])
        assert rounded[3:].tolist() == [x[3], math.inf, -math.inf]


def test_in_place_and_a_copy(array):
    x = array(np.array([0.6, 1.2], np.float32))
    for mode in RoundType:
        before = host(x).copy()
        copy = round_to_integer(x, mode, seed=1)
        assert np.array_equal(host(x), before)
        y = array(before.copy())
        assert round_to_integer(y, mode, seed=1, in_place=True) is y and np.array_equal(host(y), host(copy))


def test_float64_halves(array):
    x = array(np.array([0.49999999999999994, 0.5, -0.5, 2.5]))
    assert host(round_to_integer(x, RoundType.round)).tolist() == [0, 1, -1, 3]


def test_stochastic_rounding_is_right_on_average_and_follows_seed_and_position(array):
    x = array(np.full(100_000, 0.3, np.float32))
    one, again, other = (host(round_to_integer(x, RoundType.stochastic, seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(one, again) and set(np.unique(one)) == {0, 1}
    assert abs(one.mean() - 0.3) < 5 * math.sqrt(0.21 / x.shape[0])
    assert abs((one * other).mean() - 0.09) < 5 * math.sqrt(0.09 * 0.91 / x.shape[0]), "seeds are independent"
    whole = array(np.arange(-5, 6).astype(np.float32))
    assert np.array_equal(host(round_to_integer(whole, RoundType.stochastic)), host(whole))


def hashed(position, seed):
    """The counter hash, in plain integers."""

    def mix(word):
        for shift, multiplier in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            word = ((word ^ (word >> shift)) * multiplier) & 0xFFFFFFFF
        return word ^ (word >> 15)

    key = mix((mix(seed >> 32 & 0xFFFFFFFF) + (seed & 0xFFFFFFFF)) & 0xFFFFFFFF)
    return (mix((mix(position) + key) & 0xFFFFFFFF) >> 8) * 2.0**-24


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 5])
def test_random_numbers_are_a_hash_of_seed_and_position(seed, array):
    drawn = host(uniform((10, 7), seed, array(np.zeros(1, np.float32))))
    assert drawn.reshape(-1).tolist() == [hashed(position, seed) for position in range(70)]


def test_random_numbers_are_uniform_and_streams_are_no_shifts(array):
    x = array(np.zeros(1, np.float32))
    a, b = host(uniform((4096,), 1, x)), host(uniform((4096,), 2, x))
    assert a.min() >= 0 and a.max() < 1 and abs(a.mean() - 0.5) < 0.03
    counts = np.histogram(a, 16, (0, 1))[0]
    assert ((counts - 256) ** 2 / 256).sum() < 45
    assert not set(a.tolist()) >= set(b[:100].tolist())
