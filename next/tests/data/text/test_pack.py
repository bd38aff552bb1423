# SPDX-License-Identifier: Apache-2.0
"""Packing: rows are full, samples do not see one another, and joined texts lose nothing but the end."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.text.pack import best_fit, block_mask, concatenate, join
from fewbit.data.types import Location


@given(st.lists(st.integers(1, 16), max_size=60), st.integers(0, 3))
def test_every_sample_is_in_one_row_that_holds_it(lengths, seed):
    rows = best_fit(np.array(lengths, np.int64), 16, seed)
    assert sorted(sample for row in rows for sample in row) == list(range(len(lengths)))
    assert all(sum(lengths[sample] for sample in row) <= 16 for row in rows)


@pytest.mark.parametrize("sigma", [0.4, 0.8, 1.2])
def test_rows_of_uneven_texts_are_full(sigma):
    lengths = np.clip(np.random.default_rng(0).lognormal(5.0, sigma, 5_000), 1, 2048).astype(np.int64)
    assert lengths.sum() / (len(best_fit(lengths, 2048)) * 2048) >= 0.98


def test_the_seed_decides_between_equal_lengths():
    lengths = np.full(100, 4)
    assert best_fit(lengths, 8, 0) == best_fit(lengths, 8, 0) != best_fit(lengths, 8, 1)


def test_joining_takes_parts_and_leaves_the_samples_alone():
    first = {"input_ids": np.arange(5, 9), "labels": np.arange(5, 9)}
    row = join([(first, 0, 4), ({"input_ids": [1, 2], "labels": [1, 2]}, 1, 2)], ["input_ids", "labels"])
    assert row["input_ids"].tolist() == [5, 6, 7, 8, 2] and row["labels"].tolist() == [-100, 6, 7, 8, -100]
    assert row["position_ids"].tolist() == [0, 1, 2, 3, 0] and row["seq_lens"].tolist() == [4, 1]
    assert first["labels"].tolist() == [5, 6, 7, 8]


def test_a_token_attends_to_its_own_sample_and_padding_to_padding():
    mask = block_mask(torch.tensor([[1, 1, 2, 0, 0]]))[0, 0]
    visible = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    assert (mask == 0).int().tolist() == visible and mask.min() == torch.finfo(torch.float32).min


@given(st.lists(st.lists(st.integers(10, 95), max_size=12), max_size=10), st.integers(2, 9), st.booleans())
def test_running_text_loses_nothing_but_the_end(texts, max_length, has_start):
    start = [3] if has_start else []
    room = max_length - len(start)
    tokens = [token for text in texts for token in text]
    complete = len(tokens) // room * room or len(tokens)
    sequences = [ids for ids, _ in concatenate(((text, Location()) for text in texts), max_length, start)]
    assert [token for ids in sequences for token in ids[len(start) :]] == tokens[:complete]
    assert all(ids[: len(start)] == start and len(ids) == max_length for ids in sequences) or len(sequences) == 1


def test_a_sequence_knows_where_its_first_token_comes_from():
    texts = [([1] * 5, Location(index=0)), ([2] * 2, Location(index=1)), ([3] * 5, Location(index=2))]
    assert [location.index for _, location in concatenate(texts, 4)] == [0, 0, 2]
