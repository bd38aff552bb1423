# SPDX-License-Identifier: Apache-2.0
"""Tokens in batches: masks are true, labels say nothing under padding, packed texts do not see one another."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.collate import Collator
from fewbit.data.collating.padding import Padding
from fewbit.errors import DataError
from tiny_models import transformer

ROWS = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8], "labels": [8]}]
rows = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=6)


def collator(**padding):
    return Collator(padding=Padding(**padding))


def by_hand(lists, width, fill, side):
    def one(row):
        rest = [fill] * (width - len(row))
        return rest + row if side == "left" else row + rest

    return [one(row) for row in lists]


@given(rows, st.sampled_from(["left", "right"]), st.sampled_from([None, 1, 4, 7]), st.integers(0, 9), st.booleans())
def test_rows_masks_and_labels_are_those_made_by_hand(lists, side, multiple, token, as_arrays):
    kind = np.array if as_arrays else list
    samples = [{"input_ids": kind(row), "labels": kind([i + 100 for i in row])} for row in lists]
    batch = collator(side=side, multiple=multiple, id=token)(samples)
    longest = max(map(len, lists))
    width = next(n for n in range(longest, 100) if n % (multiple or 1) == 0)
    assert batch["input_ids"].tolist() == by_hand(lists, width, token, side)
    assert batch["labels"].tolist() == by_hand([[i + 100 for i in row] for row in lists], width, -100, side)
    assert batch["attention_mask"].tolist() == by_hand([[1] * len(row) for row in lists], width, 0, side)
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_an_end_that_is_also_the_padding_is_seen_and_learned():
    batch = collator(id=2)([{"input_ids": [7, 2], "labels": [7, 2]}, {"input_ids": [7, 8, 2], "labels": [7, 8, 2]}])
    assert batch["labels"].tolist() == [[7, 2, -100], [7, 8, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


def test_up_to_a_length():
    assert collator(to="max_length", length=6)(ROWS)["input_ids"].shape == (2, 6)
    with pytest.raises(DataError, match=r"sample 0 of the batch, field 'input_ids'.*3 tokens") as error:
        collator(to="max_length", length=2)(ROWS)
    assert "truncation" in error.value.try_


def test_no_padding_at_all():
    same = [{"input_ids": [1, 2]}, {"input_ids": [3, 4]}]
    assert collator(to="none")(same)["input_ids"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(DataError, match="sample 41, field 'input_ids'"):
        collator(to="none")(ROWS, [40, 41])


def test_fields_beside_the_tokens_are_filled_with_them():
    samples = [
        {
            "input_ids": [1, 2, 3],
            "token_type_ids": [0, 1, 1],
            "bbox": np.ones((3, 4), int),
            "special_tokens_mask": [0, 0, 0],
        },
        {"input_ids": [1], "token_type_ids": [1], "bbox": np.ones((1, 4), int), "special_tokens_mask": [0]},
    ]
    batch = collator()(samples)
    assert batch["token_type_ids"].tolist() == [[0, 1, 1], [1, 0, 0]]
    assert batch["bbox"].shape == (2, 3, 4) and batch["bbox"].sum() == 16
    assert batch["special_tokens_mask"].tolist() == [[0, 0, 0], [0, 1, 1]]


def test_padding_that_is_there_already_stays_unseen():
    samples = [
        {"input_ids": [1, 0, 0], "attention_mask": [1, 0, 0]},
        {"input_ids": [1, 2, 3, 4], "attention_mask": [1] * 4},
    ]
    assert collator()(samples)["attention_mask"].tolist() == [[1, 0, 0, 0], [1, 1, 1, 1]]


def test_a_label_of_the_whole_text_or_several_of_them():
    one = [{"input_ids": [1, 2], "label": 1}, {"input_ids": [3], "label": 0}]
    assert collator()(one)["labels"].tolist() == [1, 0]
    several = [{"input_ids": [1, 2], "labels": [1.0, 0.0, 1.0]}, {"input_ids": [3], "labels": [0.0, 0.0, 1.0]}]
    batch = collator()(several)
    assert batch["labels"].shape == (2, 3) and batch["labels"].dtype is torch.float32


def test_the_place_of_an_answer_moves_with_its_tokens():
    samples = [{"input_ids": [1, 2, 3], "start_positions": 1}, {"input_ids": [4], "start_positions": 0}]
    assert collator()(samples)["start_positions"].tolist() == [1, 0]
    assert collator(side="left")(samples)["start_positions"].tolist() == [1, 2]


FAULTS = {
    "other labels than tokens": (
        [{"input_ids": [1, 2], "labels": [1]}, {"input_ids": [1], "labels": [1, 2]}],
        "sample 0.*'labels'",
    ),
    "another mask": ([{"input_ids": [1, 2], "attention_mask": [1]}], "sample 0.*'attention_mask'"),
    "nothing": ([{"input_ids": [1]}, {"input_ids": []}], "sample 1.*'input_ids'.*no token"),
    "a batch in a batch": ([{"input_ids": np.ones((1, 3), int)}], r"sample 0.*shape \(1, 3\)"),
    "fractions": ([{"input_ids": [1, 2]}, {"input_ids": [0.5]}], "sample 1.*float"),
    "a field less": ([{"input_ids": [1], "labels": [1]}, {"input_ids": [1]}], "sample 1.*'labels'.*nothing"),
    "a field more": ([{"input_ids": [1]}, {"input_ids": [1], "labels": [1]}], "sample 0.*'labels'.*nothing"),
    "no dict": ([{"input_ids": [1]}, [1, 2]], "sample 1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_sample_that_does_not_fit_is_named(fault):
    samples, message = FAULTS[fault]
    with pytest.raises(DataError, match=message):
        collator()(samples)


def packed(parts):
    return {
        "input_ids": np.concatenate(parts),
        "labels": np.concatenate([[-100, *part[1:]] for part in parts]),
        "position_ids": np.concatenate([np.arange(len(part)) for part in parts]),
        "segments": np.repeat(np.arange(1, len(parts) + 1), [len(part) for part in parts]),
    }


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("attention", ["mask", "positions"])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("said", ["segments", "positions alone"])
def test_packed_texts_have_the_losses_they_have_alone(side, attention, implementation, said):
    model = transformer("llama").eval()
    model.set_attn_implementation(implementation)
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 40, n) for n in (4, 1, 6, 5, 3)]
    samples = [packed(texts[:3]), packed(texts[3:])]
    if said == "positions alone":
        samples = [{name: value for name, value in each.items() if name != "segments"} for each in samples]
    batch = Collator(padding=Padding(side=side), attention=attention)(samples)
    assert ("attention_mask" in batch) == (attention == "mask") and "segments" not in batch
    with torch.no_grad():
        labels = batch.pop("labels")
        logits = model(**batch, use_cache=False).logits
        found = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
        )
        alone = 0.0
        for text in texts:
            ids = torch.tensor(text)[None]
            scores = model(input_ids=ids, use_cache=False).logits[0, :-1]
            alone += (
                float(torch.nn.functional.cross_entropy(scores, ids[0, 1:], reduction="sum")) if len(text) > 1 else 0.0
            )
    assert float(found) == pytest.approx(alone, rel=1e-5)
