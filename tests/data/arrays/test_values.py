# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from fewbit.data.arrays.values import VALUE_CODES, value_faults


@pytest.mark.parametrize(
    ("array", "code"),
    [
        (np.array([1.0, np.nan, np.inf]), "array-nan"),
        (np.array([1.0, -np.inf]), "array-inf"),
        (np.zeros((2, 2), np.float16), "array-zero"),
        (np.full((2, 2), 0.5), "array-constant"),
        (np.zeros((4, 4), np.uint8), "array-zero"),
        (np.zeros((0, 3)), "array-empty"),
        (np.array([np.nan + 1j, 1]), "array-nan"),
        (np.zeros(8, np.int64), None),
        (np.ones(8, np.int64), None),
        (np.float32(0), None),
        (np.arange(3.0), None),
        (np.array(["a", "a"]), None),
        (np.ones(3, bool), None),
    ],
)
def test_nan_inf_constant_and_all_zero_samples_are_flagged(array, code):
    assert [fault.code for fault in value_faults({"x": np.asarray(array)})] == ([code] if code else [])
    assert code is None or code in VALUE_CODES


def test_the_first_nan_is_named():
    array = np.ones((2, 3))
    array[1, 2] = np.nan
    (fault,) = value_faults({"x": array})
    assert "[1, 2]" in fault.message and "1 NaN of 6" in fault.message


def test_ids_beyond_the_vocabulary_are_flagged():
    sample = {"input_ids": np.array([1, 100]), "token_type_ids": np.array([0, 500]), "other": np.array([999])}
    assert [(f.code, f.name) for f in value_faults(sample, vocab_size=100)] == [("id-range", "input_ids")]
    assert not value_faults(sample, vocab_size=101)
    assert value_faults({"decoder_input_ids": np.array([-1])}, vocab_size=10)
