# SPDX-License-Identifier: Apache-2.0
"""Augmentation as a step: by seed, epoch and sample; never of an answer, never of what is not trained on."""

import pickle

import numpy as np
import pytest

from fewbit.data.steps import augmentation, filtering, length_grouping, mixing, packing, sampling
from fewbit.data.steps._epochs import begin_epoch
from fewbit.data.views import Picked
from fewbit.errors import UsageError
from step_context import Stream, apply

QUESTIONS = [
    {"prompt": f"What is the sum of {i} and {i}, and why is that so?", "answer": f"It is {2 * i}."} for i in range(8)
]
NOISY = {"augment_characters": 0.2, "augment_words": 0.2}


def test_prompts_change_and_answers_never_do():
    source, _ = apply(augmentation, QUESTIONS, **NOISY)
    out = list(source)
    assert all(a["answer"] == b["answer"] for a, b in zip(out, QUESTIONS))
    assert sum(a["prompt"] != b["prompt"] for a, b in zip(out, QUESTIONS)) >= 6
    assert QUESTIONS[3]["prompt"].startswith("What is the sum of 3")


def test_the_same_for_seed_epoch_and_sample_however_it_is_read():
    source, _ = apply(augmentation, QUESTIONS, **NOISY)
    again, _ = apply(augmentation, Stream(QUESTIONS), **NOISY)
    first = list(source)
    assert first == list(again) == [source.get(index) for index in range(8)]
    assert begin_epoch(source, 1) and first != list(source)
    copy = pickle.loads(pickle.dumps(source))  # as a worker of a loader has it
    assert list(copy) == list(source)
    assert begin_epoch(source, 0) and first == list(source)
    assert not begin_epoch(source, 0)
    assert list(apply(augmentation, QUESTIONS, seed=1, **NOISY)[0]) != first


def test_what_is_not_trained_on_stays():
    source, _ = apply(augmentation, QUESTIONS, "validation", **NOISY)
    assert list(source) == QUESTIONS


def test_a_text_changes_where_its_label_is_learned_and_chats_where_the_user_speaks():
    labelled = [{"text": "a rather good film, all in all", "label": 1}]
    assert apply(augmentation, labelled, augment_characters=0.5)[0].get(0)["text"] != labelled[0]["text"]
    learned = [{"text": "a text of which every word is learned"}]
    with pytest.raises(UsageError, match="nothing to change"):
        apply(augmentation, learned)[0].get(0)
    named = apply(augmentation, learned, augment_columns=["text"], augment_characters=0.5)[0]
    assert named.get(0) != learned[0]
    chat = [{"role": "user", "content": "hello there, my friend"}, {"role": "assistant", "content": "good day"}]
    out = apply(augmentation, [{"messages": chat}], augment_characters=0.5)[0].get(0)["messages"]
    assert out[0]["content"] != chat[0]["content"] and out[1] == chat[1]


def test_pictures_change_and_the_given_ones_do_not():
    image = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
    before = image.copy()
    source, _ = apply(augmentation, [{"image": image, "label": 2}] * 4)
    out = list(source)
    assert all(sample["label"] == 2 for sample in out) and np.array_equal(image, before)
    assert len({sample["image"].tobytes() for sample in out}) == 4


def test_whatever_planned_with_the_old_samples_plans_again():
    words = [{"text": "many words " * count, "label": 0} for count in range(1, 9)]
    augmented, _ = apply(augmentation, words, augment_words=0.5)
    kept, _ = apply(filtering, augmented, filter_min_length=40)
    grouped, _ = apply(length_grouping, Picked(kept, [0, 1]), batch_size=2)
    for epoch in range(3):
        begin_epoch(grouped, epoch)
        lengths = [len(sample["text"]) for sample in kept]
        assert min(lengths) >= 40 and grouped.lengths().tolist() == lengths[:2]


def test_rows_fit_their_samples_in_every_epoch():
    class Letters(Stream):
        epoch = 0

        def __iter__(self):
            return iter([{"input_ids": [1] * (1 + (index + self.epoch) % 5)} for index in range(9)])

    source = Letters([])
    rows, _ = apply(packing, source, max_length=8)
    for epoch in range(4):
        begin_epoch(rows, epoch)
        assert sum(len(row["input_ids"]) for row in rows) == sum(1 + (i + epoch) % 5 for i in range(9))


def test_every_source_of_these_steps_goes_to_another_process(tmp_path):
    (tmp_path / "mine.py").write_text("def keeps(sample):\n    return len(sample['input_ids']) > 1\n")
    samples = [{"input_ids": [1] * (1 + index % 5), "labels": [1] * (1 + index % 5)} for index in range(20)]
    mixed, _ = apply(mixing, samples, mixing_with=[samples], mixing_stop="all")
    kept, _ = apply(filtering, mixed, filter_function=f"{tmp_path}/mine.py:keeps", filter_include={"labels": ""})
    some, _ = apply(sampling, kept, sampling_count=9)
    rows, _ = apply(packing, some, max_length=7)
    grouped, _ = apply(length_grouping, rows, batch_size=2)
    copy = pickle.loads(pickle.dumps(grouped))
    assert copy.order(1).tolist() == grouped.order(1).tolist()
    assert [row["input_ids"].tolist() for row in copy] == [row["input_ids"].tolist() for row in grouped]
    assert mixed.lengths().tolist() == [len(sample["input_ids"]) for sample in mixed]
    assert kept.lengths().tolist() == [len(sample["input_ids"]) for sample in kept]
