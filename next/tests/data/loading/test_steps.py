# SPDX-License-Identifier: Apache-2.0
"""Steps one by one: what stays, what is counted, what is drawn, what varies (claims 3.5 to 3.11)."""

import json
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.loading import generate_dataset_config
from fewbit.data.loading.prepare import prepare
from fewbit.data.loading.row_steps import interleave, stratified
from fewbit.data.text.byte_tokenizer import ByteTokenizer
from fewbit.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEWBIT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


def run(rows, steps, split="train", **custom):
    prepared = prepare(generate_dataset_config(rows, list(steps), custom), split)
    return list(prepared.dataset()), prepared.preparation


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


# filtering
TEXTS = [{"text": text} for text in ("a cat", "two cats and a dog", "dog", "bird")]


def test_filters_count_each_reason():
    samples, preparation = run(
        TEXTS, ["filtering"], filter_min_length=4, filter_max_length=10, filter_include={"text": "c.t|bird"},
        filter_exclude={"text": "(?i)BIRD"},
    )  # fmt: skip
    assert samples == [{"text": "a cat"}] and preparation.rows == 4
    assert preparation.dropped == {
        "filtering: shorter than 4": 1, "filtering: longer than 10": 1, "filtering: text matches '(?i)BIRD'": 1,
    }  # fmt: skip


def test_after_tokenization_a_length_is_tokens_and_nothing_to_learn_is_nothing():
    rows = [
        {"input_ids": [1, 2], "labels": [-100, 2]},
        {"input_ids": [1, 2], "labels": [-100, -100]},
        {"input_ids": [1, 2, 3], "labels": [1, 2, 3]},
    ]
    samples, preparation = run(rows, ["filtering"], filter_max_length=2)
    assert [sample["labels"] for sample in samples] == [[-100, 2]]
    assert set(preparation.dropped) == {"filtering: nothing in it is learned", "filtering: longer than 2"}


def test_filters_by_column_chat_and_function(tmp_path):
    chats = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]}
        for text in ("hi there", "no")
    ]
    assert len(run(chats, ["filtering"], filter_exclude={"messages": "^no"})[0]) == 1
    (tmp_path / "mine.py").write_text(
        "def long(sample):\n    return len(sample['text']) > 4\n\ndef bad(sample):\n    return sample['nope']\n"
    )
    assert len(run(TEXTS, ["filtering"], filter_function=f"{tmp_path}/mine.py:long")[0]) == 2
    with pytest.raises(DataError, match="KeyError") as caught:
        run(TEXTS, ["filtering"], filter_function=f"{tmp_path}/mine.py:bad")
    assert "mine.py:5" in str(caught.value)
    with pytest.raises(UsageError, match="defines no"):
        run(TEXTS, ["filtering"], filter_function=f"{tmp_path}/mine.py:lang")
    with pytest.raises(DataError, match="no column 'txt'"):
        run(TEXTS, ["filtering"], filter_include={"txt": "a"})


# sampling
ROWS = [{"text": f"row {n}", "label": 0 if n < 90 else 1, "heavy": float(n == 7)} for n in range(100)]


def numbers(samples):
    return [int(sample["text"].split()[1]) for sample in samples]


def test_a_count_or_a_share_in_the_order_of_the_source():
    ten, share = (
        numbers(run(ROWS, ["sampling"], sampling_count=10)[0]),
        numbers(run(ROWS, ["sampling"], sampling_share=0.25)[0]),
    )
    assert len(ten) == 10 and len(share) == 25 and ten == sorted(set(ten)) and share == sorted(set(share))
    assert ten == numbers(run(ROWS, ["sampling"], sampling_count=10)[0])
    assert ten != numbers(run(ROWS, ["sampling"], sampling_count=10, seed=1)[0])


def test_more_than_there_are_is_all_and_noted():
    samples, preparation = run(ROWS, ["sampling"], sampling_count=1000)
    assert len(samples) == 100 and "there are 100" in preparation.notes[0]


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=50), st.floats(0, 1), st.integers(0, 3))
def test_each_value_keeps_its_share_to_within_one(values, share, seed):
    count = round(share * len(values))
    positions = stratified(values, count, np.random.default_rng(seed))
    assert len(set(positions.tolist())) == len(positions) == count
    for value, there in Counter(values).items():
        taken = sum(values[position] == value for position in positions)
        assert abs(taken - there * count / len(values)) < 1 + 1e-9


def test_classes_in_proportion_or_balanced():
    samples, _ = run(ROWS, ["sampling"], sampling_count=20, sampling_by="label")
    assert Counter(sample["label"] for sample in samples) == {0: 18, 1: 2}
    balanced, _ = run(ROWS, ["sampling"], sampling_count=1000, sampling_by="label", sampling_weights="balanced")
    assert abs(sum(sample["label"] for sample in balanced) - 500) < 80
    only, _ = run(ROWS, ["sampling"], sampling_by="label", sampling_weights={"0": 0.0, "1": 2.5})
    assert len(only) == 100 and {sample["label"] for sample in only} == {1}
    seven, _ = run(ROWS, ["sampling"], sampling_count=5, sampling_weights="heavy")
    assert numbers(seven) == [7] * 5
    with pytest.raises(DataError, match="no weight for 1"):
        run(ROWS, ["sampling"], sampling_by="label", sampling_weights={"0": 1.0})


def test_other_splits_stay_whole_unless_named():
    assert len(run(ROWS, ["sampling"], "validation", sampling_count=5, validation_ratio=0.2)[0]) == 20
    both = {"sampling_count": 5, "sampling_splits": ["train", "validation"], "validation_ratio": 0.2}
    assert len(run(ROWS, ["sampling"], "validation", **both)[0]) == 5


# mixing
def named(name, count):
    return [{"text": f"{name} {n}"} for n in range(count)]


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 10)), min_size=1, max_size=4),
    st.sampled_from(["first", "all"]), st.integers(0, 5),
)  # fmt: skip
def test_datasets_give_their_samples_in_order_until_the_stop(datasets, stop, seed):
    lengths, weights = np.array([n for n, _ in datasets]), np.array([w for _, w in datasets])
    dataset, position = interleave(lengths, weights, stop, seed)
    through = []
    for number, length in enumerate(lengths):
        positions = position[dataset == number]
        assert positions.tolist() == [index % length for index in range(len(positions))]
        through.append(len(positions) >= length)
    assert any(through) if stop == "first" else all(through)
    assert (dataset[:-1] == dataset[-1]).sum() < lengths[dataset[-1]]  # the last sample is the one that ended it


def test_weights_are_how_often_a_dataset_is_drawn():
    part, _ = interleave(np.array([30_000] * 3), np.array([6.0, 3.0, 1.0]), "first", 0)
    assert np.allclose(np.bincount(part) / len(part), [0.6, 0.3, 0.1], atol=0.01)
    assert np.allclose(np.bincount(part[:3000]) / 3000, [0.6, 0.3, 0.1], atol=0.04)


def test_several_datasets_as_one(tmp_path):
    other = write(tmp_path / "more.jsonl", named("b", 2))
    samples, preparation = run(
        named("a", 50),
        ["mixing"],
        mixing_with=[other, named("c", 5)],
        mixing_weights=[2.0, 1.0, 1.0],
        mixing_stop="all",
    )
    counts = Counter(sample["text"][0] for sample in samples)
    assert {sample["text"] for sample in samples} == {
        row["text"] for row in [*named("a", 50), *named("b", 2), *named("c", 5)]
    }
    assert preparation.notes == [f"mixing: {counts['a']} + {counts['b']} + {counts['c']} samples"]


def test_mixing_goes_through_the_steps_before_it_and_validation_is_everything_once():
    rows = named("a", 8)
    samples, _ = run(rows, ["tokenization", "mixing"], tokenizer="bytes", mixing_with=[named("b", 3)])
    assert {chr(sample["input_ids"][0]) for sample in samples} == {"a", "b"}
    held_out, _ = run(rows, ["mixing"], "validation", mixing_with=[named("b", 8)], validation_ratio=0.25)
    assert len(held_out) == 4 and [sample["text"][0] for sample in held_out] == ["a", "a", "b", "b"]


def test_lengths_of_mixed_datasets_are_those_of_their_samples():
    config = generate_dataset_config(
        [{"text": "a" * n} for n in range(1, 9)],
        ["tokenization", "mixing"],
        {"tokenizer": "bytes", "mixing_with": [[{"text": "b" * n} for n in (20, 30, 40)]]},
    )
    view = prepare(config).view
    assert view.lengths().tolist() == [len(view.get(index)["input_ids"]) for index in range(len(view))]


# steps of the user
OWN = """
def shout(sample):
    return {**sample, "text": sample["text"].upper()}

def broken(sample):
    return sample.no_such_thing

def choosy(sample):
    return sample if sample["text"] != "dog" else None

def odd(sample):
    return [sample]
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    return f"{tmp_path}/mine.py"


def test_the_users_own_steps(own):
    samples, preparation = run(TEXTS, [f"{own}:choosy", f"{own}:shout"])
    assert [sample["text"] for sample in samples] == ["A CAT", "TWO CATS AND A DOG", "BIRD"]
    assert sum(preparation.dropped.values()) == 1 and "choosy returned None" in preparation.lines()[0]


def test_errors_in_the_users_step_name_its_line(own, tmp_path):
    with pytest.raises(DataError, match="AttributeError") as caught:
        run(TEXTS, [f"{own}:broken"])
    assert "mine.py:6" in str(caught.value)
    with pytest.raises(DataError, match="odd returned list"):
        run(TEXTS, [f"{own}:odd"])
    with pytest.raises(UsageError, match="defines no 'shot'"):
        run(TEXTS, [f"{own}:shot"])


def test_prepared_samples_go_to_another_process(own, tmp_path):
    path = write(tmp_path / "a.jsonl", [{"text": f"row {n}", "label": n % 2} for n in range(9)])
    for steps in (
        [f"{own}:shout"],
        ["tokenization", "truncation"],
        [f"{own}:shout", "tokenization", "sampling"],
        ["augmentation", "tokenization"],
    ):
        custom = {"sampling_count": 5} if "sampling" in steps else {}
        view = prepare(generate_dataset_config(path, steps, {"tokenizer": "bytes", "max_length": 4, **custom})).view
        copy = pickle.loads(pickle.dumps(view))
        assert len(copy) == len(view) and str(copy.get(3, 2)) == str(view.get(3, 2))


# tokenization
def test_tokens_are_kept_in_the_cache_by_what_they_depend_on(tmp_path):
    class Counting(ByteTokenizer):
        calls = 0

        def __call__(self, text, *args, **options):
            type(self).calls += not isinstance(text, str)
            return super().__call__(text, *args, **options)

    path = write(tmp_path / "rows.jsonl", [{"prompt": f"{n}?", "completion": str(n)} for n in range(30)])

    def first(steps=("tokenization", "masking"), split="train", **custom):
        return str(run(path, steps, split, tokenizer=Counting(), **custom)[0][0])

    one = first()
    calls = Counting.calls
    assert first() == one and Counting.calls == calls
    assert first(mask_prompt=False) != one and Counting.calls == calls  # later steps do not matter
    for change in (
        {"add_eos": False},
        {"validation_ratio": 0.2},
        {"columns": {"prompt": "completion", "completion": "prompt"}},
        {"cache_tokens": False},
    ):
        first(**change)
        assert Counting.calls > calls, change
        calls = Counting.calls
    write(tmp_path / "rows.jsonl", [{"prompt": "new?", "completion": "yes"}] * 3)
    assert first() != one and Counting.calls > calls


def test_samples_are_the_readers_own(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"text": "abc"}] * 3)
    view = prepare(generate_dataset_config(path, ["tokenization"], {"tokenizer": "bytes"})).view
    for name in ("input_ids", "labels"):
        view.get(0)[name][:] = 7
    assert view.get(0)["input_ids"].tolist() == [*b"abc", 256] == view.get(0)["labels"].tolist()


def test_samples_of_different_kinds_are_an_error():
    rows = [{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [3]}]
    with pytest.raises(DataError, match="different kinds"):
        run(rows, ["tokenization"], tokenizer="bytes")


def test_nothing_left_is_an_error_that_says_why():
    for steps in ([], ["tokenization"]):
        with pytest.raises(DataError, match="'completion' is empty"):
            run([{"prompt": "q", "completion": ""}], steps, **({"tokenizer": "bytes"} if steps else {}))


def test_on_error_raise_stops_at_the_first_unusable_row():
    rows = [{"prompt": "q", "completion": "a"}, {"prompt": "q", "completion": ""}]
    with pytest.raises(DataError, match="'completion' is empty"):
        run(rows, ["tokenization"], tokenizer="bytes", on_error="raise")


# truncation, packing
def test_truncation_counts_samples_and_lost_answers():
    rows = [
        {"prompt": "012345678 ", "completion": "abc"},
        {"prompt": "a ", "completion": "0123456789"},
        {"prompt": "a ", "completion": "b"},
    ]
    samples, preparation = run(rows, ["tokenization", "masking", "truncation"], tokenizer="bytes", max_length=8)
    assert (
        bytes(samples[0]["input_ids"][:-1].tolist()) == b"678 abc" and samples[0]["labels"].tolist()[:4] == [-100] * 4
    )
    assert bytes(samples[1]["input_ids"].tolist()) == b"01234567"
    assert preparation.notes == ["truncation: 2 samples of 3 cut to 8 tokens; 1 answer lost the end"]


def test_answers_in_a_context_move_with_the_cut():
    rows = [
        {
            "question": "q",
            "context": "x " * 20 + "here " + "y " * 20,
            "answers": {"text": ["here"], "answer_start": [40]},
        }
    ]
    (sample,) = run(rows, ["tokenization", "truncation"], tokenizer="bytes", max_length=20)[0]
    span = sample["input_ids"][sample["start_positions"] : sample["end_positions"] + 1]
    assert len(sample["input_ids"]) == 20 and bytes(span.tolist()) == b"here"


def lengths(*sizes):
    return [{"input_ids": list(range(1, size + 1)), "labels": list(range(1, size + 1))} for size in sizes]


def test_packing_keeps_every_sample_once_in_full_rows():
    samples, preparation = run(lengths(3, 9, 1, 12, 5, 2, 7, 4), ["packing"], max_length=16)
    assert sorted(np.concatenate([row["seq_lens"] for row in samples]).tolist()) == [1, 2, 3, 4, 5, 7, 9, 12]
    for row in samples:
        starts = np.cumsum(row["seq_lens"]) - row["seq_lens"]
        assert (row["labels"][starts] == -100).all() and (row["position_ids"][starts] == 0).all()
        assert set(row) == {"input_ids", "labels", "position_ids", "seq_lens"}
    assert preparation.notes[0].startswith("packing: 8 samples in 3 rows")


def test_samples_longer_than_a_row():
    with pytest.raises(DataError, match="1 sample of 3 longer than a row") as caught:
        run(lengths(3, 20, 2), ["packing"], max_length=8)
    assert "packing_long" in caught.value.hint
    split, _ = run(lengths(3, 20, 2), ["packing"], max_length=8, packing_long="split")
    assert sum(len(row["input_ids"]) for row in split) == 25
    drop, preparation = run(lengths(3, 20, 2), ["packing"], max_length=8, packing_long="drop")
    assert sum(len(row["input_ids"]) for row in drop) == 5 and preparation.dropped == {"packing: longer than a row": 1}


def test_packing_needs_tokens_and_samples_that_stay_the_same():
    with pytest.raises(DataError, match="no tokens"):
        run([{"text": "hello"}], ["packing"], max_length=8)
    with pytest.raises(UsageError, match="same in every epoch"):
        run(
            [{"text": "hello", "label": 1}],
            ["augmentation", "tokenization", "packing"],
            tokenizer="bytes",
            max_length=64,
        )
