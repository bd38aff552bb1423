# SPDX-License-Identifier: Apache-2.0
"""Slips in a text: none at 0, digits and scripts stay, never nothing left."""

import random

from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.augmenting import text

shares = st.floats(0, 1)


@given(st.text())
def test_nothing_changes_at_nothing(words):
    rng = random.Random(0)
    for change in (text.noisy, text.without_words, text.recased):
        assert change(words, 0.0, rng) == words


@given(st.text(), shares, st.integers(0, 3))
def test_what_is_no_letter_stays_and_no_letter_is_new(words, share, seed):
    noisy = text.noisy(words, share, random.Random(seed))
    assert [c for c in noisy if not c.isalpha()] == [c for c in words if not c.isalpha()]
    assert set(noisy) <= set(words)


@given(st.lists(st.text("abc", min_size=1), min_size=1), shares, st.integers(0, 3))
def test_words_are_left_out_in_order_and_never_all(words, share, seed):
    kept = text.without_words(" ".join(words), share, random.Random(seed)).split()
    assert kept
    left = iter(words)
    assert all(word in left for word in kept)


def test_about_the_share_that_was_asked_for():
    words = "word " * 2000
    assert 0.25 < 1 - len(text.without_words(words, 0.3, random.Random(0)).split()) / 2000 < 0.35
    letters = "abcdefghij" * 500
    changed = sum(a != b for a, b in zip(text.noisy(letters, 0.002, random.Random(0)), letters))
    assert changed > 0
    assert {text.recased("Ab", 1.0, random.Random(seed)) for seed in range(20)} == {"ab", "AB", "aB"}
