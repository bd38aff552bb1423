# SPDX-License-Identifier: Apache-2.0
"""Where the assistant speaks, by every way there is to find out; never a mask of zeros."""

import pytest

from fewbit.data.text.assistant_mask import answer_spans
from fewbit.data.text.tokenize import encode_sample
from fewbit.data.types import SampleError
from tiny_tokenizers import CHATML, GENERATION, TEMPLATE, piece_tokenizer, word_tokenizer

TURNS = [
    {"role": "user", "content": "are you coming?"},
    {"role": "assistant", "content": "yes, in an hour"},
    {"role": "user", "content": "and then?"},
    {"role": "assistant", "content": "home"},
]


def answers(template, turns=TURNS, make=piece_tokenizer, **names):
    text, spans = answer_spans(make(template=template, **names), turns)
    return [text[start:end] for start, end in spans]


def test_by_prefixes_with_a_generation_prompt():
    assert answers(CHATML) == ["yes, in an hour<|im_end|>", "home<|im_end|>"]


def test_by_prefixes_without_one_the_role_is_not_the_answer():
    assert answers(TEMPLATE) == ["yes, in an hour </s>", "home </s>"]


def test_by_generation_tags():
    assert answers(GENERATION) == ["yes, in an hour<|im_end|>\n", "home<|im_end|>\n"]


@pytest.mark.parametrize("trim", ["{%- generation -%}", "{%generation%}", "{% generation %}\n"])
def test_generation_tags_keep_the_white_space_of_the_template(trim):
    template = GENERATION.replace("{% generation %}", trim)
    tokenizer = piece_tokenizer(template=template)
    text, spans = answer_spans(tokenizer, TURNS)
    assert text == tokenizer.apply_chat_template(TURNS, tokenize=False)
    assert [text[start:end].strip() for start, end in spans] == ["yes, in an hour<|im_end|>", "home<|im_end|>"]


def test_a_generation_block_that_ends_in_white_space_does_not_mark_the_user():
    """transformers' own mask marks everything after the first answer for such tokenizers."""
    turns = [
        {"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, ["w10", "w11", "w12", "w13"])
    ]
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }} </s> "
        "{% endgeneration %}{% else %}user: {{ m['content'] }} {% endif %}{% endfor %}"
    )
    tokenizer = word_tokenizer(template=template)
    encoded = encode_sample(tokenizer, {"messages": turns})
    assert encoded.ids.tolist() == [5, 10, 11, 2, 5, 12, 13, 2]
    assert encoded.supervised.astype(int).tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_a_template_that_is_not_prefix_stable_but_keeps_the_answers():
    numbered = "{{ messages|length }}:{% for m in messages %}{{ m['content'] }}</s>{% endfor %}"
    assert answers(numbered) == ["yes, in an hour</s>", "home</s>"]


def test_answers_that_the_template_drops_are_an_issue():
    last = (
        "{% for m in messages %}{% if loop.last or m['role'] == 'user' %}{{ m['content'] }}</s>"
        "{% else %}-{% endif %}{% endfor %}"
    )
    with pytest.raises(SampleError) as caught:
        answers(last)
    assert caught.value.code == "mask-unavailable"


def test_an_ambiguous_answer_is_an_issue_not_a_guess():
    numbered = "{{ messages|length }}:{% for m in messages %}{{ m['content'] }}</s>{% endfor %}"
    turns = [{"role": "user", "content": "say home"}, {"role": "assistant", "content": "home"}]
    with pytest.raises(SampleError) as caught:
        answers(numbered, turns)
    assert caught.value.code == "mask-unavailable"


def test_tools_reach_the_template():
    template = "{% for t in tools or [] %}{{ t['name'] }} {% endfor %}" + TEMPLATE
    text, spans = answer_spans(word_tokenizer(template=template), TURNS, tools=[{"name": "w40"}])
    assert text.startswith("w40 ") and len(spans) == 2


def test_another_template_than_the_tokenizers():
    text, _ = answer_spans(piece_tokenizer(template=CHATML), TURNS, chat_template=TEMPLATE)
    assert text.startswith("user: are you coming?")
