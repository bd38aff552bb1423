# SPDX-License-Identifier: Apache-2.0
"""Truncation: the answer stays as long as it can."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.data.config import generate_dataset_config
from fewbit.data.steps._base import ANSWERED, ASKED, FRAME
from fewbit.data.steps.truncation import kept, window
from fewbit.errors import UsageError


def cut(rows, longest, steps=("tokenization", "masking", "truncation"), **custom):
    made = generate_dataset_config(rows, list(steps), {"tokenizer": "bytes", "max_length": longest, **custom})
    return made.open(None)


def test_the_prompt_is_cut_first_and_from_its_start():
    found = cut([{"prompt": "012345678 ", "answer": "abc"}], 8)
    sample = found[0]
    assert bytes(sample["input_ids"][:-1].tolist()) == b"678 abc" and sample["input_ids"][-1] == 256
    assert sample["labels"].tolist() == [-100] * 4 + [*b"abc", 256]
    (line,) = [line for line in found.record.lines if line["what"] == "truncated"]
    found[0]
    assert line["count"] == 1


def test_an_answer_that_is_too_long_loses_its_end_and_is_counted():
    found = cut([{"prompt": "01", "answer": "abcdefgh"}, {"prompt": "x", "answer": "y"}], 5)
    assert found[0]["labels"].tolist() == [*b"abcde"] and 256 not in found[0]["input_ids"]
    assert found[1]["input_ids"].tolist() == [*b"xy", 256] or found[1]["input_ids"].tolist() == [*b"x\ny", 256]
    assert [line["count"] for line in found.record.lines if line["what"] == "answer-cut"] == [1]


def test_masking_and_truncation_can_change_places():
    rows = [{"prompt": "0123456789", "answer": "abc"}]
    one, other = (
        cut(rows, 8, ("tokenization", *order))[0] for order in (("masking", "truncation"), ("truncation", "masking"))
    )
    assert str(one) == str(other) and "parts" not in one


@given(st.integers(0, 3), st.integers(0, 12), st.integers(1, 12), st.integers(4, 20))
def test_what_stays_by_counting(frame, asked, answered, longest):
    parts = np.array([FRAME] * frame + [ASKED] * asked + [ANSWERED] * answered, np.uint8)
    if len(parts) <= longest:
        return
    stays = kept(parts, longest)
    assert len(stays) == longest == len(set(stays.tolist())) and sorted(stays) == stays.tolist()
    assert stays[:frame].tolist() == list(range(frame))
    whole = min(answered, longest - frame)
    assert stays[-whole:].tolist() == list(range(frame + asked, frame + asked + whole))
    rest = longest - frame - whole
    assert stays[frame : frame + rest].tolist() == list(range(frame + asked - rest, frame + asked))


@given(st.integers(1, 3), st.integers(0, 12), st.integers(1, 4), st.integers(0, 12), st.integers(8, 20))
def test_the_text_around_an_answer(frame, before, answered, after, longest):
    parts = np.array([FRAME] * frame + [ASKED] * before + [ANSWERED] * answered + [ASKED] * after, np.uint8)
    if len(parts) <= longest:
        return
    stays = window(parts, longest)
    assert len(stays) == longest
    assert set(range(frame + before, frame + before + answered)) <= set(stays.tolist())
    assert np.ptp(stays[frame:]) == longest - frame - 1, "one piece of the text"


def test_an_answer_in_a_context_is_still_where_it_says():
    row = {"question": "q", "context": "x" * 40 + "yes" + "z" * 40, "answers": {"text": ["yes"], "answer_start": [40]}}
    sample = cut([row], 20, ("tokenization", "truncation"), task="question_answering")[0]
    assert len(sample["input_ids"]) == 20
    assert bytes(sample["input_ids"][sample["start_positions"] : sample["end_positions"] + 1].tolist()) == b"yes"


def test_a_chat_loses_its_oldest_turns():
    turns = [{"role": role, "content": f"{role[0]}{n}"} for n in range(5) for role in ("user", "assistant")]
    sample = cut([{"messages": turns}], 20)[0]
    assert bytes(sample["input_ids"][:-1].tolist()).endswith(b"User: u4\nAssistant: a4"[-19:])
    assert bytes(sample["labels"][sample["labels"] >= 0][:-1].tolist()).endswith(b"a4")


def test_lengths_are_known_without_reading():
    found = cut([{"text": "a" * n} for n in range(1, 30)], 10)
    assert found.source.lengths().tolist() == [len(sample["input_ids"]) for sample in found]


def test_no_limit_cuts_nothing():
    assert len(cut([{"text": "a" * 5000}], None)[0]["input_ids"]) == 5001


def test_a_length_with_no_room_is_an_error():
    from letters_tokenizer import make_tokenizer

    with pytest.raises(UsageError, match="tokenizer's own"):
        cut([{"text": "abc def"}], 1, tokenizer=make_tokenizer())[0]
