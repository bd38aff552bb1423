# SPDX-License-Identifier: Apache-2.0
"""Joined and cut, or one by one: against a second way to say it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.dataset import Dataset
from fewbit.data.text import as_inputs
from fewbit.errors import DataError, UsageError
from word_tokenizer import ids, lines, make_tokenizer, takes

rows_of_words = st.lists(st.lists(st.integers(10, 95), max_size=12), min_size=1, max_size=10)
anything = settings(max_examples=60, deadline=None)


def texts(rows):
    return [{"text": " ".join(f"w{word}" for word in row)} for row in rows]


@anything
@given(rows=rows_of_words, seqlen=st.integers(2, 9), start=st.booleans())
def test_joined_rows_lose_nothing_but_the_end(rows, seqlen, start):
    """By hand: one long list of all words, every row ended by 2; each sample takes the next of them."""
    if not any(rows):
        return
    tokenizer = make_tokenizer(start=start)
    made = as_inputs(texts(rows), tokenizer, takes(), seqlen=seqlen, pack="concatenate")
    flat = [token for row in rows if row for token in (*row, 2)]
    wide = seqlen - start
    expected = [flat[at : at + wide] for at in range(0, len(flat), wide)]
    left = expected.pop() if len(expected) > 1 and len(expected[-1]) < wide else []
    assert ids(made) == [[3] * start + body for body in expected]
    told = lines(made)["tokenized"]
    assert told["left_over"] == len(left) and told["samples"] == len(expected) and told["rows"] == len(rows)
    assert told["tokens"] == sum(map(len, ids(made))) and told["padding"] == 0


@anything
@given(rows=rows_of_words, seqlen=st.integers(3, 9))
def test_one_row_a_sample(rows, seqlen):
    if not any(rows):
        return
    made = as_inputs(texts(rows), make_tokenizer(start=True, ends=True), takes(), seqlen=seqlen, pack="pad")
    full = [row for row in rows if row]
    assert ids(made) == [[3, *row[: seqlen - 2], 2] for row in full]  # a text that is cut is still ended
    told = lines(made)
    assert told.get("truncated", {"rows": 0})["rows"] == sum(len(row) > seqlen - 2 for row in full)
    assert told.get("empty-text", {"rows": 0})["rows"] == len(rows) - len(full)
    again = len(full) - len({tuple(row[: seqlen - 2]) for row in full})
    assert told.get("repeated-text", {"rows": 0})["rows"] == again


def test_rows_are_read_once_and_only_as_far_as_needed():
    read = []

    def rows():
        for number in range(100):
            read.append(number)
            yield {"text": "w10 w11 w12"}

    made = as_inputs(Dataset(rows), make_tokenizer(), takes(), seqlen=8, pack="concatenate")
    read.clear()
    first = ids(made.subset(3))
    assert read == list(range(6)) and ids(made.subset(3)) == first and read == list(range(6))
    assert lines(made)["tokenized"]["samples"] == 3
    assert ids(made.shard(1, 2))[0] == first[1]


def test_a_fault_in_the_middle_does_not_make_the_data_short():
    fails = [True]

    def rows():
        yield from [{"text": "w10 w11 w12"}] * 10
        if fails[0]:
            raise DataError("the disk is gone")
        yield {"text": "w20 w21 w22"}

    made = as_inputs(Dataset(rows), make_tokenizer(), takes(), seqlen=4)
    for _ in range(2):
        with pytest.raises(DataError, match="disk"):
            list(made)
    fails[0] = False
    assert len(ids(made)) == 11 and ids(made)[-1] == [20, 21, 22, 2]
    assert [line["what"] for line in made.record.lines].count("tokenized") == 1
    assert len(made) == 11


def test_a_fixed_length_is_filled_up_and_masked():
    from fewbit.data.signature import InputSpec, Signature

    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    signature = Signature("onnx", tuple(InputSpec(name, ("n", 6), "int64") for name in names))
    rows = texts([[10, 11], [12, 13, 14, 15, 16, 17, 18]])
    made = as_inputs(rows, make_tokenizer(padding_side="left"), signature, pack="pad")
    short, long = made
    assert short["input_ids"].tolist() == [1, 1, 1, 1, 10, 11] and short["attention_mask"].tolist() == [0] * 4 + [1] * 2
    assert short["position_ids"].tolist() == [0, 0, 0, 0, 0, 1] and long["input_ids"].tolist() == list(range(12, 18))
    assert lines(made)["tokenized"]["padding"] == 4 / 12 and lines(made)["truncated"]["rows"] == 1
    assert all(array.dtype == np.int64 for array in short.values())


def test_pairs_of_texts_keep_apart_for_encoders():
    rows = [{"premise": "w10 w11", "hypothesis": "w20", "label": 1}]
    tokenizer = make_tokenizer(start=True, ends=True, mask_token="[MASK]")
    (sample,) = as_inputs(rows, tokenizer, takes("input_ids", "token_type_ids"))
    assert sample["input_ids"].tolist() == [3, 10, 11, 2, 20, 2]
    assert sample["token_type_ids"].tolist() == [0, 0, 0, 0, 1, 1]


def test_no_text_in_any_row():
    made = as_inputs(texts([[], []]), make_tokenizer(), takes())
    with pytest.raises(DataError, match="none of 2 rows has any text"):
        list(made)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"seqlen": 0}, "seqlen=0"),
        ({"seqlen": 1}, "samples of 1 tokens"),
        ({"pack": "pat"}, "did you mean 'pad'"),
        ({"column": "txt"}, "did you mean 'text'"),
    ],
)
def test_wrong_options(options, what):
    with pytest.raises(UsageError) as caught:
        as_inputs(texts([[10, 11]]), make_tokenizer(start=True), takes(), **options)
    assert what in str(caught.value)
