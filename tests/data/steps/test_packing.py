# SPDX-License-Identifier: Apache-2.0
"""Packing: every sample once and whole, rows full, and the loss of the samples by themselves."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.steps import packing
from fewbit.data.steps._base import NOTHING
from fewbit.data.steps._bins import best_fit
from fewbit.data.steps._segments import block_mask
from fewbit.errors import DataError, UsageError
from step_context import Stream, apply
from tiny_models import transformer

lengths_in_rows = st.integers(1, 40).flatmap(
    lambda capacity: st.tuples(st.just(capacity), st.lists(st.integers(1, capacity), max_size=60))
)


def samples_of(lengths, seed=0, vocabulary=40):
    rng = np.random.default_rng(seed)
    made = []
    for length in lengths:
        ids = rng.integers(0, vocabulary, length).tolist()
        learned = rng.random(length) < 0.7
        made.append({"input_ids": ids, "labels": [i if yes else NOTHING for i, yes in zip(ids, learned)]})
    return made


@given(lengths_in_rows, st.integers(0, 3))
def test_every_sample_is_in_one_row_and_rows_hold_what_they_can(found, seed):
    capacity, lengths = found
    rows = best_fit(np.array(lengths, np.int64), capacity, seed)
    assert sorted(sample for row in rows for sample in row) == list(range(len(lengths)))
    assert all(row == sorted(row) for row in rows)
    used = [sum(lengths[sample] for sample in row) for row in rows]
    assert all(1 <= total <= capacity for total in used)
    # No two rows would fit into one, so all but one are more than half full.
    assert all(a + b > capacity for a, b in zip(sorted(used), sorted(used)[1:]))


def fewest(lengths, capacity, rooms=()):
    """The fewest rows there could be, by trying everything."""
    if not lengths:
        return len(rooms)
    first, rest = lengths[0], lengths[1:]
    fits = {room for room in rooms if room >= first}
    tries = [fewest(rest, capacity, _without(rooms, room, room - first)) for room in fits]
    return min([*tries, fewest(rest, capacity, (*rooms, capacity - first))])


def _without(rooms, old, new):
    at = rooms.index(old)
    return (*rooms[:at], new, *rooms[at + 1 :])


@given(st.lists(st.integers(1, 10), min_size=1, max_size=7))
def test_never_more_than_eleven_ninths_of_the_fewest_rows(lengths):
    assert len(best_fit(np.array(lengths), 10, 0)) <= 11 / 9 * fewest(lengths, 10) + 6 / 9


@given(lengths_in_rows)
def test_the_number_of_rows_depends_on_lengths_alone(found):
    capacity, lengths = found
    assert len({len(best_fit(np.array(lengths, np.int64), capacity, seed)) for seed in range(4)}) == 1


@given(lengths_in_rows, st.sampled_from([None, 1, 7]), st.integers(1, 40), st.sampled_from(["split", "drop"]))
def test_rows_give_the_samples_back(found, buffer, capacity, long):
    samples = samples_of(found[1])
    rows, _ = apply(packing, samples, max_length=capacity, packing_buffer=buffer, packing_long=long)
    back = {}
    for index in range(len(rows)):
        row = rows.get(index)
        assert len(row["input_ids"]) == rows.lengths()[index] <= capacity
        for segment, sample in enumerate(rows.samples(index), 1):
            here = row["segments"] == segment
            assert row["position_ids"][here].tolist() == list(range(here.sum()))
            assert row["labels"][here][0] == NOTHING
            back.setdefault(sample, []).append((row["input_ids"][here].tolist(), row["labels"][here].tolist()))
    for index, sample in enumerate(samples):
        size = len(sample["input_ids"])
        if size > capacity and long == "drop":
            assert index not in back
            continue
        # A sample that is not split is whole; the pieces of one that is may lie in any rows.
        want = [sample["input_ids"][at : at + capacity] for at in range(0, size, capacity)]
        assert sorted(ids for ids, _ in back[index]) == sorted(want)
        if size <= capacity:
            assert back[index][0][1] == [NOTHING, *sample["labels"][1:]]


@pytest.mark.parametrize("spread", [0.4, 0.8, 1.2])
def test_rows_of_ragged_texts_are_full(spread):
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.0, spread, 20_000), 1, 2048).astype(np.int64)
    rows = best_fit(lengths, 2048, 0)
    assert lengths.sum() / (len(rows) * 2048) >= 0.99
    windows = [best_fit(lengths[at : at + 1000], 2048, 0) for at in range(0, len(lengths), 1000)]
    assert lengths.sum() / (sum(map(len, windows)) * 2048) >= 0.95


def loss_sum(model, batch, labels):
    logits = model(**batch).logits[:, :-1].double()
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=NOTHING, reduction="sum"
    )


def padded(rows, name, fill):
    wide = max(len(row["input_ids"]) for row in rows)
    return torch.tensor([[*row[name], *[fill] * (wide - len(row[name]))] for row in rows])


@pytest.mark.parametrize("way", ["eager", "sdpa", "sdpa with true and false", "positions alone"])
def test_the_loss_of_rows_is_the_loss_of_their_samples(way):
    model = transformer("llama", attn_implementation=way.split()[0] if way != "positions alone" else "sdpa").double()
    samples = samples_of([3, 9, 1, 12, 5, 2, 7, 4, 11, 6, 2])
    alone = torch.zeros((), dtype=torch.double)
    for sample in samples:
        ids, labels = (torch.tensor([sample[name]]) for name in ("input_ids", "labels"))
        if len(sample["input_ids"]) > 1:
            alone = alone + loss_sum(model, {"input_ids": ids}, labels)
    rows, _ = apply(packing, samples, max_length=16)
    rows = [rows.get(index) for index in range(len(rows))]
    assert len(rows) < len(samples)
    batch = {"input_ids": padded(rows, "input_ids", 0), "position_ids": padded(rows, "position_ids", 0)}
    if way != "positions alone":
        values = None if "true" in way else torch.double
        batch["attention_mask"] = block_mask(padded(rows, "segments", 0), values)
    else:
        batch["use_cache"] = False  # with a cache transformers does not look where positions begin anew
    together = loss_sum(model, batch, padded(rows, "labels", NOTHING))
    assert torch.isfinite(together)
    close = {"rtol": 1e-6, "atol": 1e-6} if way == "eager" else {"rtol": 1e-12, "atol": 0}  # its softmax is in float32
    torch.testing.assert_close(together, alone, **close)
    # The gradients, too.
    wanted = torch.autograd.grad(alone, list(model.parameters()))
    close = {"rtol": 1e-4, "atol": 1e-5} if way == "eager" else {"rtol": 1e-9, "atol": 1e-11}
    torch.testing.assert_close(torch.autograd.grad(together, list(model.parameters())), wanted, **close)


def test_without_the_mask_the_loss_is_another():
    model = transformer("llama").double()
    samples = samples_of([6, 7])
    rows, _ = apply(packing, samples, max_length=16)
    row = rows.get(0)
    ids, labels = torch.tensor(row["input_ids"])[None], torch.tensor(row["labels"])[None]
    alone = sum(
        loss_sum(model, {"input_ids": torch.tensor([s["input_ids"]])}, torch.tensor([s["labels"]])) for s in samples
    )
    assert abs(loss_sum(model, {"input_ids": ids}, labels) - alone) > 1e-3


def test_a_token_sees_its_own_sample_up_to_itself():
    sees = block_mask(torch.tensor([[1, 1, 2, 0, 0]]))[0, 0].int().tolist()
    assert sees == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]


def test_a_sample_longer_than_a_row_is_an_error_that_names_it():
    rows, _ = apply(packing, samples_of([3, 20, 2]), max_length=8)
    with pytest.raises(DataError, match="1 of 3 samples") as caught:
        len(rows)
    assert "sample 1 (20 tokens)" in caught.value.where and "packing_long" in caught.value.try_


def test_what_is_left_out_and_how_full_rows_are_is_recorded():
    rows, about = apply(
        packing, [*samples_of([4, 4, 20]), {"input_ids": [], "labels": []}], max_length=8, packing_long="drop"
    )
    assert len(rows) == 1
    lines = {(line["what"], line.get("why")): line for line in about.record.lines}
    assert lines["left-out", "empty"]["count"] == lines["left-out", "longer than a row"]["count"] == 1
    assert lines["packed", None]["useful"] == 1.0


def test_fields_without_an_entry_a_token_are_left_out_and_named():
    samples = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "weights": [0.5, 1.0, 0.25], "label": 3}] * 2
    rows, about = apply(packing, samples, max_length=8)
    row = rows.get(0)
    assert list(row) == ["input_ids", "weights", "position_ids", "segments"]
    assert row["weights"].tolist() == [0.5, 1.0, 0.25] * 2
    assert next(line for line in about.record.lines if line["what"] == "fields-left-out")["fields"] == ["label"]


def test_padded_samples_texts_and_no_row_length_are_told_apart():
    with pytest.raises(DataError, match="padding"):
        apply(packing, [{"input_ids": [1, 0], "attention_mask": [1, 0]}], max_length=4)[0].get(0)
    with pytest.raises(DataError, match="no tokens"):
        apply(packing, [{"text": "hello"}], max_length=4)[0].get(0)
    with pytest.raises(UsageError, match="how long a row is"):
        apply(packing, samples_of([2]))


def test_the_samples_stay_as_they_are_and_streams_work_too():
    samples = samples_of([3, 4])
    before = [dict(sample) for sample in samples]
    rows, about = apply(packing, Stream(samples), max_length=8)
    again, _ = apply(packing, samples, max_length=8)
    assert [rows.get(0)[name].tolist() for name in rows.get(0)] == [again.get(0)[n].tolist() for n in again.get(0)]
    assert samples == before and len(list(rows)) == 1
    assert [line["what"] for line in about.record.lines].count("held-in-memory") == 1


def test_no_samples_are_no_rows():
    assert len(apply(packing, Stream([]), max_length=8)[0]) == 0
