# SPDX-License-Identifier: Apache-2.0
"""Steps one by one: what remains, what is counted, what is drawn, what is cached (claims 3.5 to 3.10)."""

import pickle
import tarfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.loading import generate_dataset_config
from fewbit.data.loading.prepare import prepare
from fewbit.data.loading.row_steps import interleave
from fewbit.data.text.byte_tokenizer import ByteTokenizer
from fewbit.errors import DataError, UsageError

TEXTS = [{"text": text} for text in ("a cat", "two cats and a dog", "dog", "bird")]
LABELED = [{"text": f"row {n}", "label": int(n >= 90), "heavy": float(n == 7)} for n in range(100)]
FUNCTIONS = """
def long(sample):
    return len(sample["text"]) > 4

def shout(sample):
    return {**sample, "text": sample["text"].upper()}

def broken(sample):
    return sample.no_such_thing

def choosy(sample):
    return sample if sample["text"] != "dog" else None

def odd(sample):
    return [sample]
"""


def run(rows, steps, split="train", **custom):
    prepared = prepare(generate_dataset_config(rows, list(steps), custom), split)
    return list(prepared.dataset()), prepared.preparation


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    return f"{tmp_path}/mine.py"


def test_filtering_counts_each_reason():
    samples, preparation = run(
        TEXTS, ["filtering"], filter_min_length=4, filter_max_length=10, filter_include={"text": "c.t|bird"},
        filter_exclude={"text": "(?i)BIRD"},
    )  # fmt: skip
    assert samples == [{"text": "a cat"}] and preparation.rows == 4
    reasons = ("shorter than 4", "longer than 10", "text matches '(?i)BIRD'")
    assert preparation.dropped == {f"filtering: {reason}": 1 for reason in reasons}


def test_filtering_of_tokens_counts_tokens_and_drops_what_teaches_nothing():
    labels = [[-100, 2], [-100, -100], [1, 2, 3]]
    rows = [{"input_ids": list(range(len(row))), "labels": row} for row in labels]
    samples, preparation = run(rows, ["filtering"], filter_max_length=2)
    assert [sample["labels"] for sample in samples] == [[-100, 2]]
    assert set(preparation.dropped) == {"filtering: nothing in it is learned", "filtering: longer than 2"}


def test_filtering_by_chat_and_function(functions):
    chats = [{"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]} for text in "ny"]
    assert len(run(chats, ["filtering"], filter_exclude={"messages": "^n"})[0]) == 1
    assert len(run(TEXTS, ["filtering"], filter_function=f"{functions}:long")[0]) == 2
    with pytest.raises(DataError, match="AttributeError") as caught:
        run(TEXTS, ["filtering"], filter_function=f"{functions}:broken")
    assert "mine.py:9" in str(caught.value)
    with pytest.raises(DataError, match="no column 'txt'"):
        run(TEXTS, ["filtering"], filter_include={"txt": "a"})


def test_sampling_draws_a_count_or_a_share_in_the_order_of_the_source():
    def rows(**custom):
        return [sample["text"] for sample in run(LABELED, ["sampling"], **custom)[0]]

    texts = [row["text"] for row in LABELED]
    ten = rows(sampling_count=10)
    assert ten == [text for text in texts if text in ten] and len(ten) == 10 == len(set(ten))
    assert ten == rows(sampling_count=10) != rows(sampling_count=10, seed=1)
    assert len(rows(sampling_share=0.25)) == 25
    samples, preparation = run(LABELED, ["sampling"], sampling_count=1000)
    assert len(samples) == 100 and "there are 100" in preparation.notes[0]


def test_sampling_by_class_and_by_weight():
    def classes(**custom):
        return Counter(sample["label"] for sample in run(LABELED, ["sampling"], **custom)[0])

    assert classes(sampling_count=20, sampling_by="label") == {0: 18, 1: 2}
    balanced = classes(sampling_count=1000, sampling_by="label", sampling_weights="balanced")
    assert abs(balanced[1] - 500) < 80 and balanced.total() == 1000
    assert classes(sampling_by="label", sampling_weights={"0": 0.0, "1": 2.5}) == {1: 100}
    heavy, _ = run(LABELED, ["sampling"], sampling_count=5, sampling_weights="heavy")
    assert [sample["text"] for sample in heavy] == ["row 7"] * 5
    for weights, message in (({"0": 1.0}, "no weight for 1"), ({"0": 0.0, "1": 0.0}, "does not give weights")):
        with pytest.raises(DataError, match=message):
            classes(sampling_by="label", sampling_weights=weights)


def test_sampling_leaves_other_splits_alone_unless_they_are_named():
    custom = {"sampling_count": 5, "validation_ratio": 0.2}
    assert len(run(LABELED, ["sampling"], "validation", **custom)[0]) == 20
    assert len(run(LABELED, ["sampling"], "validation", sampling_splits=["train", "validation"], **custom)[0]) == 5


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0.1, 10)), min_size=1, max_size=4),
    st.sampled_from(["first", "all"]), st.integers(0, 5),
)  # fmt: skip
def test_mixed_datasets_give_their_samples_in_order_until_the_stop(datasets, stop, seed):
    lengths, weights = (np.array(values) for values in zip(*datasets))
    dataset, position = interleave(lengths, weights, stop, seed)
    for number, length in enumerate(lengths):
        of_dataset = position[dataset == number]
        assert of_dataset.tolist() == [index % length for index in range(len(of_dataset))]
    exhausted = np.bincount(dataset, minlength=len(lengths)) >= lengths
    assert exhausted.any() if stop == "first" else exhausted.all()
    assert (dataset[:-1] == dataset[-1]).sum() < lengths[dataset[-1]]  # the last sample is the one that ended it


def test_mixing_weights_are_how_often_a_dataset_is_drawn():
    dataset, _ = interleave(np.array([30_000] * 3), np.array([6.0, 3.0, 1.0]), "first", 0)
    assert np.allclose(np.bincount(dataset) / len(dataset), [0.6, 0.3, 0.1], atol=0.01)


def test_mixing_opens_other_data_through_the_same_steps(write):
    rows = {name: [{"text": name * n} for n in range(1, count)] for name, count in (("a", 50), ("b", 3), ("c", 6))}
    samples, preparation = run(
        rows["a"], ["tokenization", "mixing"], tokenizer="bytes", mixing_with=[write(rows["b"]), rows["c"]],
        mixing_weights=[2.0, 1.0, 1.0], mixing_stop="all",
    )  # fmt: skip
    texts = [bytes(sample["input_ids"][:-1].tolist()).decode() for sample in samples]
    assert set(texts) == {row["text"] for part in rows.values() for row in part}
    counts = Counter(text[0] for text in texts)
    assert preparation.notes == [f"mixing: {counts['a']} + {counts['b']} + {counts['c']} samples"]
    config = generate_dataset_config(rows["a"], ["mixing"], {"mixing_with": [rows["c"]], "validation_ratio": 0.2})
    held_out = [sample["text"][0] for sample in config.open("validation")]
    assert held_out == ["a"] * 10 + ["c"]  # validation is everything once


def test_lengths_of_mixed_datasets_are_those_of_their_samples():
    custom = {"tokenizer": "bytes", "mixing_with": [[{"text": "b" * n} for n in (20, 30, 40)]]}
    rows = [{"text": "a" * n} for n in range(1, 9)]
    view = prepare(generate_dataset_config(rows, ["tokenization", "mixing"], custom)).view
    assert view.lengths.tolist() == [len(view.get(index)["input_ids"]) for index in range(len(view))]


def test_functions_of_the_user_are_steps(functions):
    samples, preparation = run(TEXTS, [f"{functions}:choosy", f"{functions}:shout"])
    assert [sample["text"] for sample in samples] == ["A CAT", "TWO CATS AND A DOG", "BIRD"]
    assert preparation.dropped.total() == 1 and "choosy returned None" in preparation.lines()[0]
    with pytest.raises(DataError, match="AttributeError") as caught:
        run(TEXTS, [f"{functions}:broken"])
    assert "mine.py:9" in str(caught.value)
    with pytest.raises(DataError, match="odd returned list"):
        run(TEXTS, [f"{functions}:odd"])
    with pytest.raises(UsageError, match="defines no 'shot'"):
        run(TEXTS, [f"{functions}:shot"])


def test_prepared_samples_go_to_another_process(functions, write):
    path = write([{"text": f"row {n}", "label": n % 2} for n in range(9)])
    for steps in (
        [f"{functions}:shout"],
        ["tokenization", "masking", "truncation"],
        [f"{functions}:shout", "tokenization", "sampling"],
        ["augmentation", "tokenization"],
        ["tokenization", "packing"],
    ):
        custom = {"sampling_count": 5} if "sampling" in steps else {}
        view = prepare(generate_dataset_config(path, steps, {"tokenizer": "bytes", "max_length": 20, **custom})).view
        copy = pickle.loads(pickle.dumps(view))
        last = len(view) - 1
        assert len(copy) == len(view) and str(copy.get(last, 2)) == str(view.get(last, 2))


class CountingTokenizer(ByteTokenizer):
    calls = 0

    def __call__(self, text, *args, **options):
        type(self).calls += not isinstance(text, str)
        return super().__call__(text, *args, **options)


def test_tokens_are_cached_by_what_they_depend_on(write):
    path = write([{"prompt": f"{n}?", "completion": str(n)} for n in range(30)])

    def tokenized(**custom):
        """The first sample, and whether anything was tokenized for it."""
        before = CountingTokenizer.calls
        samples, _ = run(path, ["tokenization", "masking"], tokenizer=CountingTokenizer(), **custom)
        return str(samples[0]), CountingTokenizer.calls > before

    first, _ = tokenized()
    assert tokenized() == (first, False)
    assert not tokenized(mask_prompt=False)[1] and not tokenized(batch_size=3)[1]  # used after tokenization
    swapped = {"prompt": "completion", "completion": "prompt"}
    for change in ({"add_eos": False}, {"validation_ratio": 0.2}, {"columns": swapped}, {"cache_tokens": False}):
        assert tokenized(**change)[1], change
    write([{"prompt": "new?", "completion": "yes"}] * 3)
    assert tokenized()[0] != first


def test_tokens_of_an_archive_are_cached_too(write, tmp_path):
    write([{"text": "one"}, {"text": "two"}])
    with tarfile.open(tmp_path / "rows.tar", "w") as archive:
        archive.add(tmp_path / "rows.jsonl", "rows.jsonl")
    calls = []
    for _ in range(2):
        run(str(tmp_path / "rows.tar"), ["tokenization"], tokenizer=CountingTokenizer())
        calls.append(CountingTokenizer.calls)
    assert calls[0] == calls[1]


def test_a_sample_belongs_to_its_reader(write):
    view = prepare(generate_dataset_config(write([{"text": "abc"}] * 3), ["tokenization"], {"tokenizer": "bytes"})).view
    for name in ("input_ids", "labels"):
        view.get(0)[name][:] = 7
    assert view.get(0)["input_ids"].tolist() == [*b"abc", 256] == view.get(0)["labels"].tolist()


@pytest.mark.parametrize("steps", [[], ["tokenization"]])
@pytest.mark.parametrize(("good", "on_error"), [(0, None), (1, "raise")])
def test_no_usable_row_or_the_first_unusable_one_is_an_error(steps, good, on_error):
    rows = [{"prompt": "q", "completion": "a"}] * good + [{"prompt": "q", "completion": ""}]
    with pytest.raises(DataError, match="'completion' is empty"):
        run(rows, steps, tokenizer="bytes", on_error=on_error)


def test_samples_of_different_kinds_are_an_error():
    with pytest.raises(DataError, match="different kinds"):
        run([{"input_ids": [1, 2], "labels": 1}, {"input_ids": [3]}], ["tokenization"], tokenizer="bytes")


def test_truncation_counts_samples_and_answers_that_lost_their_end():
    rows = [("012345678 ", "abc"), ("a ", "0123456789"), ("a ", "b")]
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in rows]
    samples, preparation = run(rows, ["tokenization", "masking", "truncation"], tokenizer="bytes", max_length=8)
    assert samples[0]["input_ids"].tolist() == [*b"678 abc", 256]
    assert samples[0]["labels"].tolist() == [*[-100] * 4, *b"abc", 256]
    assert samples[1]["input_ids"].tolist() == [*b"01234567"]
    assert preparation.notes == ["truncation: 2 samples of 3 cut to 8 tokens; 1 answer lost the end"]


def test_truncation_keeps_the_answer_in_its_context_and_drops_questions_that_fill_it():
    context = "x " * 20 + "here " + "y " * 20
    rows = [
        {"question": q, "context": context, "answers": {"text": ["here"], "answer_start": [40]}}
        for q in ("q", "w" * 30)
    ]
    samples, preparation = run(rows, ["tokenization", "truncation"], tokenizer="bytes", max_length=20)
    (sample,) = samples
    answer = sample["input_ids"][sample["start_positions"] : sample["end_positions"] + 1]
    assert len(sample["input_ids"]) == 20 and bytes(answer.tolist()) == b"here"
    assert "leave no room" in preparation.lines()[0]


def rows_of_lengths(*lengths):
    return [{"input_ids": list(range(1, n + 1)), "labels": list(range(1, n + 1))} for n in lengths]


def test_packing_puts_every_sample_into_one_row():
    rows, preparation = run(rows_of_lengths(3, 9, 1, 12, 5, 2, 7, 4), ["packing"], max_length=16)
    assert sorted(np.concatenate([row["seq_lens"] for row in rows]).tolist()) == [1, 2, 3, 4, 5, 7, 9, 12]
    for row in rows:
        starts = np.cumsum(row["seq_lens"]) - row["seq_lens"]
        assert (row["labels"][starts] == -100).all() and (row["position_ids"][starts] == 0).all()
        assert set(row) == {"input_ids", "labels", "position_ids", "seq_lens"}
    assert preparation.notes[0].startswith("packing: 8 samples in 3 rows")


def test_packing_of_samples_longer_than_a_row():
    rows = rows_of_lengths(3, 20, 2)
    with pytest.raises(DataError, match="1 sample of 3 longer than a row") as caught:
        run(rows, ["packing"], max_length=8)
    assert "packing_long" in caught.value.hint
    split, _ = run(rows, ["packing"], max_length=8, packing_long="split")
    assert sum(len(row["input_ids"]) for row in split) == 25
    dropped, preparation = run(rows, ["packing"], max_length=8, packing_long="drop")
    assert sum(len(row["input_ids"]) for row in dropped) == 5
    assert preparation.dropped == {"packing: longer than a row": 1}


def test_packing_needs_tokens_without_padding_that_stay_the_same():
    with pytest.raises(DataError, match="no tokens"):
        run([{"text": "hello"}], ["packing"], max_length=8)
    with pytest.raises(DataError, match="found padding"):
        run([{"input_ids": [1, 0], "attention_mask": [1, 0]}], ["packing"], max_length=8)
    steps = ["augmentation", "tokenization", "packing"]
    with pytest.raises(UsageError, match="same in every epoch"):
        run([{"text": "hello", "label": 1}], steps, tokenizer="bytes", max_length=64)
