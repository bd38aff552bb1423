# SPDX-License-Identifier: Apache-2.0
"""`get_custom_data_collator`: what holds, what is warned of, what is refused, and that it goes anywhere."""

import multiprocessing
import pickle
from types import SimpleNamespace

import pytest

from fewbit.data.collate import Collator, get_custom_data_collator
from fewbit.data.collating.padding import Padding
from fewbit.errors import UsageError
from word_tokenizer import make_tokenizer


def config(steps=("tokenization",), tokenizer=None, **options):
    return SimpleNamespace(options=options, steps=steps, tokenizer=lambda: tokenizer or make_tokenizer())


def test_the_call_holds_against_the_configuration_and_says_so():
    with pytest.warns(UserWarning, match="batch_size=2 of the call holds, not 4"):
        assert get_custom_data_collator(config(batch_size=4), batch_size=2).batch_size == 2
    with pytest.warns(UserWarning, match="padding=False of the call holds, not 'longest'"):
        assert get_custom_data_collator(config(padding="longest"), padding=False).padding.to == "none"


def test_where_both_say_the_same_nothing_is_said():  # a warning is an error in these tests
    assert get_custom_data_collator(config(batch_size=1, padding="longest"), batch_size=1, padding=True).batch_size == 1
    assert get_custom_data_collator(config(batch_size=4)).batch_size == 4
    assert get_custom_data_collator(config(padding={"multiple_of": 8})).padding.multiple == 8


def test_padding_is_what_the_tokenizer_says():
    found = get_custom_data_collator(config(tokenizer=make_tokenizer(padding_side="left", pad_token="<unk>"))).padding
    assert (found.side, found.id) == ("left", 0)  # an id of 0 is an id
    assert (
        get_custom_data_collator(
            config(padding_side="right", tokenizer=make_tokenizer(padding_side="left"))
        ).padding.side
        == "right"
    )


def test_a_tokenizer_without_padding_fills_with_the_end_and_notes_it():
    found = get_custom_data_collator(config(tokenizer=make_tokenizer(pad_token=None)))
    assert found.padding.id == 2 and "no token for padding" in found.notes[0]


def test_the_length_to_pad_to():
    assert get_custom_data_collator(config(max_length=6), padding="max_length").padding == Padding(
        "max_length", 6, id=1
    )
    limited = make_tokenizer(model_max_length=12)
    assert get_custom_data_collator(config(tokenizer=limited), padding="max_length").padding.length == 12
    with pytest.raises(UsageError, match="without a length"):
        get_custom_data_collator(config(), padding="max_length")


def test_data_without_tokens_opens_no_tokenizer():
    def none():
        raise AssertionError

    pictures = SimpleNamespace(options={}, steps=("augmentation",), tokenizer=none)
    assert get_custom_data_collator(pictures).batch_size == 8


WRONG = {
    "batch_size": {"batch_size": 0},
    "padding": {"padding": "longets"},
    "multiple_of": {"padding": {"multiple_off": 8}},
    "multiple": {"padding": {"multiple_of": 0}},
    "attention": {"attention": "flash"},
    "targets": {"targets": "list"},
}


@pytest.mark.parametrize("fault", WRONG)
def test_arguments_that_make_no_sense(fault):
    with pytest.raises(UsageError):
        get_custom_data_collator(config(), **WRONG[fault])


def test_it_goes_into_another_process():
    collator = Collator(padding=Padding(side="left"))
    assert pickle.loads(pickle.dumps(collator)) == collator
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        batch = pool.apply(collator, ([{"input_ids": [1, 2]}, {"input_ids": [3]}],))
    assert batch["input_ids"].tolist() == [[1, 2], [0, 3]]
