# SPDX-License-Identifier: Apache-2.0
"""Precision, recall and F1 against the definition, class by class and draw by draw."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.tuning.measures.class_rates import class_rates


def by_definition(labels, said):
    """Means over the classes of a list of pairs."""
    pairs = list(zip(labels.tolist(), said.tolist()))
    classes = {label for label, _ in pairs} | {told for _, told in pairs if told >= 0}
    rates = []
    for kind in classes:
        found = sum(pair == (kind, kind) for pair in pairs)
        there, told = (sum(pair[side] == kind for pair in pairs) for side in (0, 1))
        precision, recall = found / told if told else 0.0, found / there if there else 0.0
        rates.append((precision, recall, 2 * precision * recall / (precision + recall) if found else 0.0))
    return np.mean(rates, 0) if rates else [np.nan] * 3


@given(st.integers(0, 10**6), st.integers(1, 25))
def test_each_draw_by_definition(seed, samples):
    rng = np.random.default_rng(seed)
    labels, said = rng.integers(0, 5, samples), rng.integers(-1, 6, samples)
    times = rng.integers(0, 3, (4, samples))
    found = class_rates(labels, said, times)
    for draw in range(4):
        often = np.repeat(np.arange(samples), times[draw])
        expected = by_definition(labels[often], said[often])
        np.testing.assert_allclose([found[name][draw] for name in ("precision", "recall", "f1")], expected)


def test_a_hand_made_case():
    """Class 2 is always found and twice said in vain; class 7 is said and not there."""
    found = class_rates(np.array([0, 0, 1, 2]), np.array([0, 2, 2, 2]), np.ones((1, 4)))
    assert found["recall"][0] == pytest.approx((1 / 2 + 0 + 1) / 3)
    assert found["precision"][0] == pytest.approx((1 + 0 + 1 / 3) / 3)
    other = class_rates(np.array([0, 0]), np.array([0, 7]), np.ones((1, 2)))
    assert other["recall"][0] == pytest.approx(1 / 4)
