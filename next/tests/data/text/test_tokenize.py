# SPDX-License-Identifier: Apache-2.0
"""Which tokens are the answer's, in every layout; what is cut; what cannot be used."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.text.byte_tokenizer import ByteTokenizer
from fewbit.data.text.roles import ANSWER, PROMPT, SPECIAL
from fewbit.data.text.tokenize import TextEncoder, encode_sample
from fewbit.data.types import Issue, Location, SampleError
from fewbit.errors import UsageError
from tiny_tokenizers import CHATML, TEMPLATE, piece_tokenizer, word_tokenizer

TURNS = [
    {"role": "user", "content": "are you coming?"},
    {"role": "assistant", "content": "yes, in an hour"},
    {"role": "user", "content": "and then?"},
    {"role": "assistant", "content": "home"},
]


def learned(tokenizer, encoded):
    return tokenizer.decode(encoded.ids[encoded.supervised])


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_tokens_of_the_answer_are_its_bytes_and_the_end(prompt, answer):
    if not answer.strip() or not prompt.strip():
        return
    encoded = encode_sample(ByteTokenizer(), {"prompt": prompt, "completion": answer}, separator="")
    count = len(answer.encode(errors="replace"))
    assert encoded.ids.tolist() == [*prompt.encode(errors="replace"), *answer.encode(errors="replace"), 256]
    assert encoded.labels()[-count - 1 :].tolist() == encoded.ids[-count - 1 :].tolist()
    assert (encoded.labels()[: -count - 1] == -100).all()


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="abc é日?\n", min_size=1, max_size=20), st.text(alphabet="abcé 日0", min_size=1, max_size=20))
def test_pieces_of_words_learn_the_answer_and_nothing_before_it(prompt, answer):
    tokenizer = piece_tokenizer()
    if not answer.strip() or not prompt.strip():
        return
    encoded = encode_sample(tokenizer, {"prompt": prompt + "\n", "completion": answer})
    text = learned(tokenizer, encoded).removesuffix("</s>")
    # A byte-level token may begin with the white space before the answer, and may hold half a character.
    assert (prompt + "\n" + answer).endswith(text) or "�" in text
    assert text.strip() == answer.strip() or "�" in text
    assert encoded.roles[0] == SPECIAL


def test_a_leading_space_of_the_first_token_does_not_hide_it():
    tokenizer = piece_tokenizer()
    encoded = encode_sample(tokenizer, {"prompt": "Answer: ", "completion": "yes"})
    assert "yes" in learned(tokenizer, encoded)


def test_a_token_that_starts_in_the_prompt_is_the_prompts():
    encoded = encode_sample(word_tokenizer(), {"prompt": "w1", "completion": "0 w11"}, separator="")
    assert encoded.ids.tolist() == [10, 11, 2] and encoded.roles.tolist() == [PROMPT, ANSWER, ANSWER]


def test_the_end_is_learned_although_padding_is_the_same_token():
    tokenizer = piece_tokenizer(pad_token="</s>")
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert encode_sample(tokenizer, {"prompt": "a", "completion": "b"}).labels()[-1] == tokenizer.eos_token_id


def test_a_text_without_prompt_is_learned_whole_with_one_end():
    tokenizer = word_tokenizer(start=True, ends=True)
    encoded = encode_sample(tokenizer, {"text": "w10 w11"})
    assert encoded.ids.tolist() == [3, 10, 11, 2] and encoded.roles.tolist() == [SPECIAL, ANSWER, ANSWER, ANSWER]
    assert encode_sample(tokenizer, {"text": "w10"}, add_eos=False).ids.tolist() == [3, 10]


def test_a_chat_by_its_template():
    tokenizer = piece_tokenizer(template=CHATML, eos_token="<|im_end|>")
    encoded = encode_sample(tokenizer, {"messages": TURNS})
    assert tokenizer.decode(encoded.ids) == tokenizer.apply_chat_template(TURNS, tokenize=False)
    assert learned(tokenizer, encoded) == "yes, in an hour<|im_end|>home<|im_end|>"


def test_a_template_that_brings_the_start_does_not_get_a_second():
    tokenizer = word_tokenizer(start=True, template="<s> " + TEMPLATE)
    chat = [{"role": "user", "content": "w10"}, {"role": "assistant", "content": "w11"}]
    encoded = encode_sample(tokenizer, {"messages": chat})
    assert encoded.ids.tolist() == [3, 5, 10, 2, 6, 11, 2]
    assert encoded.roles.tolist() == [SPECIAL, *[PROMPT] * 4, ANSWER, ANSWER]


def test_a_chat_without_a_template():
    tokenizer = ByteTokenizer()
    encoded = encode_sample(tokenizer, {"messages": TURNS})
    assert tokenizer.decode(encoded.ids).startswith("User: are you coming?\nAssistant: yes")
    assert learned(tokenizer, encoded) == "yes, in an hourhome" and encoded.ids[-1] == 256


def test_a_refused_chat_is_an_issue_for_training_and_plain_text_for_calibration():
    tokenizer = word_tokenizer(template=TEMPLATE)
    chat = {"messages": [{"role": "system", "content": "w30"}, {"role": "assistant", "content": "w11"}]}
    issue = TextEncoder(tokenizer).encode_batch([chat], [Location("a.jsonl", line=3)])[0]
    assert isinstance(issue, Issue) and issue.code == "chat-template" and "no system here" in str(issue)
    assert str(issue).startswith("a.jsonl:3")
    encoded = encode_sample(tokenizer, chat, purpose="calibration")
    assert encoded.ids.tolist() == [30, 11, 2] and "no system here" in encoded.fallback


def test_prompts_go_through_the_template_for_calibration_only():
    tokenizer = word_tokenizer(template=TEMPLATE)
    row = {"prompt": "w10", "completion": "w11"}
    assert encode_sample(tokenizer, row, purpose="calibration").ids.tolist() == [5, 10, 2, 6, 11, 2]
    assert encode_sample(tokenizer, row).ids.tolist() == [10, 11, 2]


def test_a_tokenizer_without_offsets_gets_the_text_in_pieces():
    class Slow(ByteTokenizer):
        is_fast = False

        def __call__(self, text, *args, **options):
            assert not options.get("return_offsets_mapping")
            return super().__call__(text, *args, **options)

    encoded = encode_sample(Slow(), {"prompt": "é?", "completion": "ab"}, separator="")
    assert encoded.roles.tolist() == [0, 0, 0, 1, 1, 1] and encoded.ids.tolist() == [*"é?ab".encode(), 256]


def test_white_space_with_an_empty_offset_belongs_to_the_character_before_it():
    class Odd(ByteTokenizer):
        def __call__(self, text, *args, **options):
            encoding = super().__call__(text, *args, **options)
            if options.get("return_offsets_mapping"):
                encoding["offset_mapping"] = [
                    [(end, end) if text[start].isspace() else (start, end) for start, end in pairs]
                    for text, pairs in zip(text, encoding["offset_mapping"])
                ]
            return encoding

    encoded = encode_sample(Odd(), {"prompt": "q", "completion": " a b"})
    assert encoded.supervised.tolist() == [False, True, True, True, True, True]


def test_what_a_calculator_writes():
    row = {"prompt": "<<1+1=2>>48/2? ", "completion": "It is <<48/2=24>>24."}
    tokenizer = ByteTokenizer()
    encoded = encode_sample(tokenizer, row)
    labels = encoded.labels(mask_calculator=True)
    assert tokenizer.decode(labels[labels >= 0]) == "It is <<48/2=24."
    assert learned(tokenizer, encoded) == row["completion"]


def test_a_class_is_the_label_between_special_tokens():
    encoded = encode_sample(word_tokenizer(start=True, ends=True), {"text": "w10", "label": 3})
    assert encoded.ids.tolist() == [3, 10, 2] and encoded.labels() == 3


def test_words_have_their_tags_at_their_first_token():
    encoded = encode_sample(word_tokenizer(start=True, ends=True), {"tokens": ["w10", "w11"], "tags": [3, 4]})
    assert encoded.labels().tolist() == [-100, 3, 4, -100]
    assert encode_sample(ByteTokenizer(), {"tokens": ["ab", "c"], "tags": [3, 4]}).labels().tolist() in (
        [3, -100, -100, 4],
        [3, -100, 4, -100],
    )


def test_an_answer_in_a_context_and_its_window():
    tokenizer = word_tokenizer(start=True, ends=True)
    row = {"question": "w10", "context": "w20 w21 w22 w23", "answers": {"text": ["w21 w22"], "answer_start": [4]}}
    encoded = encode_sample(tokenizer, row)
    assert encoded.ids.tolist() == tokenizer("w10", row["context"])["input_ids"]
    first, last = encoded.answer
    assert encoded.ids[first : last + 1].tolist() == [21, 22] and encoded.labels() is None
    cut = encode_sample(tokenizer, row, max_length=6)
    first, last = cut.answer
    assert len(cut.ids) == 6 and cut.ids[first : last + 1].tolist() == [21, 22]


def test_the_second_occurrence_of_an_answer():
    row = {"question": "q", "context": "ab ab", "answers": {"text": ["ab"], "answer_start": [3]}}
    encoded = encode_sample(ByteTokenizer(), row)
    assert encoded.ids[encoded.answer[0] :].tolist() == list(b"ab") and encoded.answer[0] == 5


def test_a_pair_of_texts_and_a_tokenizer_that_does_not_tell_them_apart():
    encoded = encode_sample(
        word_tokenizer(start=True, ends=True), {"text": "w10 w11", "text_pair": "w20", "label": 1}, causal=False
    )
    assert encoded.ids.tolist() == [3, 10, 11, 2, 20, 2] and encoded.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1]
    plain = encode_sample(ByteTokenizer(), {"text": "a", "text_pair": "b"}, causal=False)
    assert plain.ids.tolist() == list(b"a\nb") and plain.token_type_ids.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": " "}, "empty"),
        ({"prompt": "a", "completion": ""}, "the answer is empty"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "says nothing"),
        ({"id": 3}, "no field is text"),
        ({"question": "q", "context": "c", "answers": {"text": [], "answer_start": []}}, "no answer"),
        ({"question": "q", "context": "c", "answers": {"text": ["d"], "answer_start": [0]}}, "is not in the context"),
        ({"input_ids": [[1, 2]]}, "shape"),
        ({"input_ids": [1, 2], "labels": [1]}, "1 entries for 2 tokens"),
    ],
)
def test_rows_that_cannot_be_used(row, reason):
    with pytest.raises(SampleError, match=reason) as caught:
        encode_sample(ByteTokenizer(), row)
    assert caught.value.code == "no-text"


def test_the_prompt_is_cut_before_the_answer_and_from_its_start():
    encoded = encode_sample(ByteTokenizer(), {"prompt": "012345678 ", "completion": "abc"}, max_length=8)
    assert bytes(encoded.ids[:-1].tolist()) == b"678 abc" and encoded.ids[-1] == 256
    assert encoded.truncated == "prompt"


def test_an_answer_that_is_too_long_loses_its_end_and_its_end_token():
    encoded = encode_sample(ByteTokenizer(), {"prompt": "ab ", "completion": "0123456789"}, max_length=4)
    assert encoded.ids.tolist() == list(b"0123") and encoded.truncated == "answer"


def test_turns_after_the_last_answer_go_first():
    turns = [*TURNS[:2], {"role": "user", "content": "thanks " * 20}]
    encoded = encode_sample(ByteTokenizer(), {"messages": turns}, max_length=50)
    assert encoded.truncated == "prompt" and ByteTokenizer().decode(encoded.ids).endswith("yes, in an hour")


def test_special_tokens_stay_and_need_room():
    tokenizer = word_tokenizer(start=True, ends=True)
    assert encode_sample(tokenizer, {"text": "w10 w11 w12", "label": 0}, max_length=4).ids.tolist() == [3, 10, 11, 2]
    with pytest.raises(UsageError, match="no room"):
        encode_sample(tokenizer, {"text": "w10 w11 w12", "label": 0}, max_length=2)


@given(st.lists(st.sampled_from([PROMPT, ANSWER]), min_size=1, max_size=30), st.integers(1, 30))
def test_truncation_keeps_as_many_tokens_as_fit_in_order(roles, limit):
    from fewbit.data.text.roles import kept_tokens

    roles = np.array(roles, np.uint8)
    kept = kept_tokens(roles, limit)
    assert (np.diff(kept) > 0).all()
    useful = np.flatnonzero(roles == ANSWER)[-1] + 1 if (roles == ANSWER).any() else len(roles)
    assert len(kept) == min(limit, useful)
