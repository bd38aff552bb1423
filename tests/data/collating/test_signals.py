# SPDX-License-Identifier: Apache-2.0
"""Signals, numbers, tensors and everything else."""

import numpy as np
import pytest
import torch

from fewbit.data.collate import Collator
from fewbit.data.collating.padding import Padding
from fewbit.errors import DataError


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda x: {"array": np.array(x), "sampling_rate": 16}])
def test_sound_is_filled_with_silence_and_says_how_long_it_is(kind):
    batch = Collator(padding=Padding(multiple=2))(
        [{"input_values": kind([0.5, 1.5, 2.5])}, {"input_values": kind([3.5])}]
    )
    assert batch["input_values"].tolist() == [[0.5, 1.5, 2.5, 0.0], [3.5, 0.0, 0.0, 0.0]]
    assert batch["input_values"].dtype is torch.float32
    assert batch["lengths"].tolist() == [3, 1]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_a_signal_has_its_mask_in_every_batch():
    assert set(Collator()([{"audio": [1.0, 2.0]}])) == {"audio", "lengths", "attention_mask"}


def test_the_axis_that_differs_can_be_another():
    samples = [{"spectrum": np.ones((2, 3))}, {"spectrum": np.ones((2, 5))}]
    batch = Collator(ragged={"spectrum": 1})(samples)
    assert batch["spectrum"].shape == (2, 2, 5) and batch["lengths"].tolist() == [3, 5]
    with pytest.raises(DataError, match=r"sample 1.*'spectrum'") as error:
        Collator()(samples)
    assert "ragged={'spectrum': 1}" in error.value.try_


def test_signals_beside_tokens_have_masks_of_their_own():
    batch = Collator()([{"input_ids": [1], "audio": [1.0]}, {"input_ids": [1, 2], "audio": [1.0, 1.0, 1.0]}])
    assert batch["attention_mask"].shape == (2, 2)
    assert batch["audio_mask"].sum(1).tolist() == [1, 3] == batch["audio_lengths"].tolist()


def test_an_array_that_differs_is_filled_up_even_if_nobody_knows_its_name():
    batch = Collator()([{"x": np.ones((1, 2))}, {"x": np.ones((3, 2))}])
    assert batch["x"].shape == (2, 3, 2) and batch["x_lengths"].tolist() == [1, 3]
    with pytest.raises(DataError, match=r"sample 1.*'x'"):
        Collator(padding=Padding("none"))([{"x": np.ones(1)}, {"x": np.ones(3)}])


def test_other_sampling_rates_do_not_share_a_batch():
    with pytest.raises(DataError, match=r"sample 1.*8000 Hz"):
        Collator()([{"audio": {"array": [1.0], "sampling_rate": rate}} for rate in (16000, 8000)])


def test_numbers_tensors_and_texts():
    half = torch.ones(2, dtype=torch.bfloat16)
    samples = [
        {"n": i, "f": 0.5, "b": i == 1, "t": half * i, "v": [1.0, 2.0], "s": "name", "o": None} for i in range(3)
    ]
    batch = Collator()(samples)
    assert batch["n"].tolist() == [0, 1, 2] and batch["n"].dtype is torch.int64
    assert batch["f"].dtype is torch.float32 and batch["v"].dtype is torch.float32
    assert batch["b"].tolist() == [False, True, False]
    assert batch["t"].dtype is torch.bfloat16 and torch.equal(batch["t"][2], half * 2)
    assert batch["s"] == ["name"] * 3 and batch["o"] == [None] * 3
    assert Collator()([{"d": np.ones(2)}, {"d": np.ones(2)}])["d"].dtype is torch.float64  # the user's own arrays stay


def test_a_field_of_another_kind_is_named():
    with pytest.raises(DataError, match=r"sample 1.*'n'"):
        Collator()([{"n": 1}, {"n": None}])
