# SPDX-License-Identifier: Apache-2.0
"""Masking: what is learned and what is not."""

import numpy as np

from fewbit.data.config import generate_dataset_config


def labels(row, **custom):
    made = generate_dataset_config([row], ["tokenization", "masking"], {"tokenizer": "bytes", **custom})
    return made.open(None)[0]["labels"]


def learned(row, **custom):
    found = labels(row, **custom)
    return bytes(int(each) for each in found[(found >= 0) & (found < 256)])


def test_only_the_answer_is_learned():
    assert learned({"prompt": "asked ", "answer": "told"}) == b"told"
    assert labels({"prompt": "asked ", "answer": "told"})[-1] == 256, "its end too"
    assert learned({"prompt": "asked ", "answer": "told"}, mask_prompt=False) == b"asked told"


def test_what_a_calculator_wrote():
    row = {"prompt": "48/2? ", "answer": "It is <<48/2=24>>24, and <<24*2=48>>48."}
    assert learned(row) == row["answer"].encode()
    assert learned(row, mask_calculator=True) == b"It is <<48/2=24, and <<24*2=48."


def test_a_prompt_with_a_calculation_is_no_answer():
    row = {"prompt": "<<1+1=2>> ", "answer": "two"}
    assert learned(row, mask_calculator=True) == b"two"


def test_a_text_without_a_prompt_is_learned_whole():
    assert learned({"text": "all of it"}) == b"all of it"


def test_a_class_stays_a_class():
    assert labels({"text": "fine", "label": 3}) == 3


def test_labels_that_came_with_the_tokens_stay():
    assert labels({"input_ids": [1, 2, 3], "labels": [-100, 2, -100]}).tolist() == [-100, 2, -100]


def test_the_end_is_learned_where_padding_looks_the_same():
    from letters_tokenizer import make_tokenizer

    found = labels({"prompt": "a ", "answer": "b"}, tokenizer=make_tokenizer(pad_token="</s>"))
    assert found[-1] == 2 and np.sum(found == 2) == 1
