# SPDX-License-Identifier: Apache-2.0
"""Which tokens are the answer's, in every layout; what is cut; what cannot be used."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.text.byte_tokenizer import ByteTokenizer
from fewbit.data.text.encoder import TextEncoder
from fewbit.data.text.roles import ANSWER, PROMPT, SPECIAL, mask_labels, supervised, truncate
from fewbit.data.text.tokenizer import check_room
from fewbit.data.types import Issue, Location, SampleError
from fewbit.errors import UsageError
from tiny_tokenizers import CHATML, TEMPLATE, piece_tokenizer, word_tokenizer

BYTES = ByteTokenizer()
FRAMED = {"start": True, "ends": True}
TURNS = [
    {"role": role, "content": text}
    for role, text in zip(["user", "assistant"] * 2, ["are you coming?", "yes, in an hour", "and then?", "home"])
]


def encode(tokenizer, sample, max_length=None, **options):
    (result,) = TextEncoder(tokenizer, **options).encode([sample], [Location("a.jsonl", line=3)])
    if isinstance(result, Issue):
        raise SampleError(result)
    return result if max_length is None else truncate(result, max_length)


def ids(*arguments, **options):
    return encode(*arguments, **options)["input_ids"].tolist()


def learned(tokenizer, sample):
    return tokenizer.decode(sample["input_ids"][supervised(sample)])


def prompted(prompt, completion):
    return {"prompt": prompt, "completion": completion}


words = st.text(min_size=1, max_size=30).filter(str.strip)


@settings(max_examples=40, deadline=None)
@given(words, words)
def test_the_answer_and_its_end_are_learned_byte_for_byte(prompt, answer):
    sample = mask_labels(encode(BYTES, prompted(prompt, answer), separator=""))
    before, after = (text.encode(errors="replace") for text in (prompt, answer))
    assert sample["input_ids"].tolist() == [*before, *after, 256]
    assert sample["labels"].tolist() == [*[-100] * len(before), *after, 256]


@settings(max_examples=40, deadline=None)
@given(st.text("abc é日?\n", min_size=1).filter(str.strip), st.text("abcé 日0", min_size=1).filter(str.strip))
def test_pieces_of_words_learn_the_answer_and_nothing_before_it(prompt, answer):
    tokenizer = piece_tokenizer()
    sample = encode(tokenizer, prompted(prompt + "\n", answer))
    text = learned(tokenizer, sample).removesuffix("</s>")
    # A byte-level token may begin with the white space before the answer, and may hold half a character.
    assert "�" in text or ((prompt + "\n" + answer).endswith(text) and text.strip() == answer.strip())
    assert sample["roles"][0] == SPECIAL


def test_a_token_has_the_role_of_its_first_character():
    tokenizer = piece_tokenizer()
    assert "yes" in learned(tokenizer, encode(tokenizer, prompted("Answer: ", "yes")))  # " yes" is one token
    sample = encode(word_tokenizer(), prompted("w1", "0 w11"), separator="")
    assert sample["input_ids"].tolist() == [10, 11, 2] and sample["roles"].tolist() == [PROMPT, ANSWER, ANSWER]


def test_white_space_with_an_empty_offset_belongs_to_the_character_before_it():
    class EmptyOffsets(ByteTokenizer):
        def __call__(self, text, *args, **options):
            encoding = super().__call__(text, *args, **options)
            for line, pairs in zip(text, encoding.get("offset_mapping", ())):
                pairs[:] = [(end, end) if line[start].isspace() else (start, end) for start, end in pairs]
            return encoding

    assert supervised(encode(EmptyOffsets(), prompted("q", " a b"))).tolist() == [False, *[True] * 5]


def test_a_tokenizer_without_offsets_gets_the_text_in_pieces():
    class Slow(ByteTokenizer):
        is_fast = False

        def __call__(self, text, *args, **options):
            assert not options.get("return_offsets_mapping")
            return super().__call__(text, *args, **options)

    sample = encode(Slow(), prompted("é?", "ab"), separator="")
    assert sample["roles"].tolist() == [0, 0, 0, 1, 1, 1] and sample["input_ids"].tolist() == [*"é?ab".encode(), 256]
    answer = encode(Slow(), {"question": "q", "context": "ab cd", "answers": {"text": ["cd"], "answer_start": [3]}})
    assert answer["input_ids"][answer["start_positions"] : answer["end_positions"] + 1].tolist() == [*b"cd"]


def test_the_end_is_learned_once_even_if_padding_is_the_same_token():
    tokenizer = piece_tokenizer(pad_token="</s>")
    assert encode(tokenizer, prompted("a", "b"))["labels"][-1] == tokenizer.eos_token_id == tokenizer.pad_token_id
    sample = encode(word_tokenizer(**FRAMED), {"text": "w10 w11"})
    assert sample["input_ids"].tolist() == [3, 10, 11, 2]
    assert sample["roles"].tolist() == [SPECIAL, ANSWER, ANSWER, ANSWER]
    assert ids(word_tokenizer(**FRAMED), {"text": "w10"}, add_eos=False) == [3, 10]


def test_a_chat_by_its_template_and_without_one():
    tokenizer = piece_tokenizer(template=CHATML, eos_token="<|im_end|>")
    sample = encode(tokenizer, {"messages": TURNS})
    assert tokenizer.decode(sample["input_ids"]) == tokenizer.apply_chat_template(TURNS, tokenize=False)
    assert learned(tokenizer, sample) == "yes, in an hour<|im_end|>home<|im_end|>"
    plain = encode(BYTES, {"messages": TURNS})
    assert BYTES.decode(plain["input_ids"]).startswith("User: are you coming?\nAssistant: yes")
    assert learned(BYTES, plain) == "yes, in an hourhome" and plain["input_ids"][-1] == 256


def test_a_template_that_brings_the_start_does_not_get_a_second():
    chat = [{"role": "user", "content": "w10"}, {"role": "assistant", "content": "w11"}]
    sample = encode(word_tokenizer(start=True, template="<s> " + TEMPLATE), {"messages": chat})
    assert sample["input_ids"].tolist() == [3, 5, 10, 2, 6, 11, 2]
    assert sample["roles"].tolist() == [SPECIAL, *[PROMPT] * 4, ANSWER, ANSWER]


def test_a_refused_chat_is_an_issue_for_training_and_plain_text_for_calibration():
    tokenizer = word_tokenizer(template=TEMPLATE)
    chat = {"messages": [{"role": "system", "content": "w30"}, {"role": "assistant", "content": "w11"}]}
    with pytest.raises(SampleError, match="no system here") as caught:
        encode(tokenizer, chat)
    assert caught.value.code == "chat-template" and caught.value.where == "a.jsonl:3"
    sample = encode(tokenizer, chat, training=False)
    assert sample["input_ids"].tolist() == [30, 11, 2] and "no system here" in sample["fallback"]


def test_prompts_go_through_the_template_for_calibration_only():
    tokenizer = word_tokenizer(template=TEMPLATE)
    assert ids(tokenizer, prompted("w10", "w11"), training=False) == [5, 10, 2, 6, 11, 2]
    assert ids(tokenizer, prompted("w10", "w11")) == [10, 11, 2]


def test_results_of_a_calculator_can_be_masked():
    sample = encode(BYTES, prompted("<<1+1=2>>48/2? ", "It is <<48/2=24>>24."))
    labels = mask_labels(sample, mask_calculator=True)["labels"]
    assert BYTES.decode(labels[labels >= 0]) == "It is <<48/2=24."
    assert learned(BYTES, sample) == "It is <<48/2=24>>24."


def test_classes_and_tags_are_labels_that_masking_leaves_alone():
    tokenizer = word_tokenizer(**FRAMED)
    classified = mask_labels(encode(tokenizer, {"text": "w10", "label": 3}))
    assert classified["input_ids"].tolist() == [3, 10, 2] and classified["labels"] == 3
    tagged = mask_labels(encode(tokenizer, {"tokens": ["w10", "w11"], "tags": [3, 4]}))
    assert tagged["labels"].tolist() == [-100, 3, 4, -100]
    tags = encode(BYTES, {"words": ["ab", "c"], "tags": [3, 4]})["labels"].tolist()
    assert tags in ([3, -100, -100, 4], [3, -100, 4, -100])  # the space belongs to either word
    given = {"input_ids": [5, 6], "labels": [-100, 6]}
    assert mask_labels(encode(BYTES, given))["labels"].tolist() == [-100, 6]


def test_an_answer_in_a_context_and_the_window_around_it():
    tokenizer = word_tokenizer(**FRAMED)
    row = {"question": "w10", "context": "w20 w21 w22 w23", "answers": {"text": ["w21 w22"], "answer_start": [4]}}
    assert ids(tokenizer, row) == tokenizer("w10", row["context"])["input_ids"]
    for max_length in (None, 6):
        sample = encode(tokenizer, row, max_length)
        answer = sample["input_ids"][sample["start_positions"] : sample["end_positions"] + 1]
        assert answer.tolist() == [21, 22] and "labels" not in sample
    with pytest.raises(SampleError, match="leave no room"):
        encode(tokenizer, row, max_length=4)


@pytest.mark.parametrize(
    "answers",
    [{"text": ["ab"], "answer_start": [3]}, [{"text": "ab", "answer_start": 3}], "ab", ["ab"]],
)
def test_layouts_of_answers(answers):
    sample = encode(BYTES, {"question": "q", "context": "xx ab", "answers": answers})
    assert sample["start_positions"] == len("q\nxx ") and sample["input_ids"][sample["start_positions"] :].tolist() == [
        *b"ab"
    ]


def test_a_pair_of_texts_with_and_without_types():
    pair = encode(word_tokenizer(**FRAMED), {"text": "w10 w11", "text_pair": "w20", "label": 1}, causal=False)
    assert pair["input_ids"].tolist() == [3, 10, 11, 2, 20, 2] and pair["labels"] == 1
    assert pair["token_type_ids"].tolist() == [0, 0, 0, 0, 1, 1]
    plain = encode(BYTES, {"text": "a", "text_pair": "b"}, causal=False)
    assert plain["input_ids"].tolist() == [*b"a\nb"] and plain["token_type_ids"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": " "}, "empty"),
        (prompted("a", ""), "the answer is empty"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "says nothing"),
        ({"id": 3}, "no field is text"),
        ({"question": "q", "context": "c", "answers": {"text": [], "answer_start": []}}, "no answer"),
        ({"question": "q", "context": "c", "answers": {"text": ["d"], "answer_start": [0]}}, "is not in the context"),
        ({"tokens": ["a", "b"], "tags": [1]}, "1 tags for 2 words"),
        ({"input_ids": [[1, 2]]}, "shape"),
        ({"input_ids": [[1], [1, 2]]}, "different lengths"),
        ({"input_ids": [1, 2], "labels": [1]}, "1 entries for 2 tokens"),
    ],
)
def test_rows_that_cannot_be_used(row, reason):
    with pytest.raises(SampleError, match=reason) as caught:
        encode(BYTES, row)
    assert caught.value.code == "no-text"


def test_what_is_cut_first():
    row = prompted("012345678 ", "abc")
    assert ids(BYTES, row, max_length=8) == [*b"678 abc", 256]  # the start of the prompt
    assert ids(BYTES, prompted("ab ", "0123456789"), max_length=4) == [*b"0123"]  # then the end of the answer
    thanks = {"messages": [*TURNS[:2], {"role": "user", "content": "thanks " * 20}]}
    assert BYTES.decode(ids(BYTES, thanks, max_length=50)).endswith("yes, in an hour")  # turns after it before both
    tokenizer = word_tokenizer(**FRAMED)
    assert ids(tokenizer, {"text": "w10 w11 w12", "label": 0}, max_length=4) == [3, 10, 11, 2]  # special tokens never
    with pytest.raises(UsageError, match="no room"):
        check_room(2, tokenizer)


@given(st.lists(st.sampled_from([PROMPT, ANSWER]), min_size=1, max_size=30), st.integers(1, 30))
def test_truncation_keeps_as_many_tokens_as_fit_in_order(roles, max_length):
    count = len(roles)
    sample = {"input_ids": np.arange(count), "roles": np.array(roles, np.uint8)}
    remaining = truncate(sample, max_length)["input_ids"]
    useful = count if count <= max_length or ANSWER not in roles else count - roles[::-1].index(ANSWER)
    assert (np.diff(remaining) > 0).all() and len(remaining) == min(max_length, useful)
