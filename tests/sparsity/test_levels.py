# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.sparsity.levels import read_level, recipe_for, zeros_at
from fewbit.sparsity.recipe import Recipe

RANGES = {"one-shot": ("0.40", "0.80"), "training-aware": ("0.60", "0.95")}


def zeros(mode, level):
    """What a recipe asks for, and whether it makes codes."""
    found = dict(recipe_for(mode, level).stages)
    if mode == "one-shot":
        share = found["prune"].sparsity if "prune" in found else None
        return share, "quantize" in found
    train = found.get("train")
    return (None, False) if train is None else (train.final, train.quantize is not None)


@pytest.mark.parametrize("mode", RANGES)
def test_the_meaning_of_levels_is_that_of_the_guide(mode):
    assert zeros(mode, 0) == (None, False) and recipe_for(mode, 0).stages == ()
    assert zeros(mode, 0.01) == (None, True) and zeros(mode, 0.2999) == (None, True)
    low, high = map(Fraction, RANGES[mode])
    for percent in range(30, 101):
        exact = low + (Fraction(percent, 100) - Fraction(3, 10)) / Fraction(7, 10) * (high - low)
        share, codes = zeros(mode, percent / 100)
        assert codes and abs(Fraction(share) - exact) <= Fraction(1, 10_000)
    assert zeros(mode, 0.3)[0] == float(low) and zeros(mode, 1)[0] == float(high)


@given(a=st.floats(0, 1), b=st.floats(0, 1), mode=st.sampled_from(sorted(RANGES)))
def test_a_higher_level_never_asks_for_less(a, b, mode):
    low, high = sorted((a, b))
    assert (zeros_at(mode, low) or 0) <= (zeros_at(mode, high) or 0)
    assert zeros(mode, low)[1] <= zeros(mode, high)[1]


@given(percent=st.integers(2, 100), mode=st.sampled_from(["one-shot", "training-aware", "sparse-transfer"]))
def test_whole_numbers_are_percents(percent, mode):
    assert recipe_for(mode, percent) == recipe_for(mode, percent / 100)


@pytest.mark.parametrize("level", [-0.1, 1.5, 50.0, 101, -1, True, False, float("nan"), float("inf"), "0.5", None])
def test_anything_else_is_refused(level):
    with pytest.raises(UsageError, match="optim_level"):
        read_level(level)


def test_sparse_transfer_keeps_the_zeros_that_are_there_and_makes_codes_at_the_end():
    ((name, train),) = recipe_for("sparse-transfer", 0).stages
    assert (name, train.final, train.quantize, train.distill) == ("train", None, None, False)
    ((_, train),) = recipe_for("sparse-transfer", 0.5, teacher=True).stages
    assert (train.final, train.quantize, train.distill) == (None, "w8a8", True)


@pytest.mark.parametrize("mode", ["one-shot", "training-aware", "sparse-transfer"])
@pytest.mark.parametrize("level", [0, 0.2, 0.5, 1])
def test_the_recipe_of_a_level_can_be_read(mode, level):
    recipe = recipe_for(mode, level, use_case="image_classification")
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe


def test_another_mode_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as error:
        recipe_for("training_aware", 0.5)
    assert "'training-aware'" in error.value.expected
