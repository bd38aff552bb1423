# SPDX-License-Identifier: Apache-2.0
"""Where the assistant speaks, by every way there is to find out; never a mask of zeros."""

import pytest

from fewbit.data.text.assistant_mask import ChatTemplate
from fewbit.data.text.encoder import TextEncoder
from fewbit.data.text.roles import supervised
from fewbit.data.types import SampleError
from tiny_tokenizers import CHATML, GENERATION, TEMPLATE, piece_tokenizer, word_tokenizer

TURNS = [
    {"role": role, "content": text}
    for role, text in zip(["user", "assistant"] * 2, ["are you coming?", "yes, in an hour", "and then?", "home"])
]
NOT_A_PREFIX = "{{ messages|length }}:{% for m in messages %}{{ m['content'] }}</s>{% endfor %}"
DROPS_ANSWERS = (
    "{% for m in messages %}{% if loop.last or m['role'] == 'user' %}{{ m['content'] }}</s>"
    "{% else %}-{% endif %}{% endfor %}"
)


def answers(template, turns=TURNS):
    text, spans = ChatTemplate(piece_tokenizer(template=template)).answer_spans(turns)
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHATML, "<|im_end|>"),  # by prefixes, with a generation prompt
        (TEMPLATE, " </s>"),  # by prefixes, without one: the role is not part of the answer
        (GENERATION, "<|im_end|>\n"),  # by generation tags
        (NOT_A_PREFIX, "</s>"),  # by content
    ],
)
def test_answers_and_their_ends(template, end):
    assert answers(template) == [f"yes, in an hour{end}", f"home{end}"]


@pytest.mark.parametrize("tag", ["{%- generation -%}", "{%generation%}", "{% generation %}\n"])
def test_generation_tags_keep_the_white_space_of_the_template(tag):
    tokenizer = piece_tokenizer(template=GENERATION.replace("{% generation %}", tag))
    text, spans = ChatTemplate(tokenizer).answer_spans(TURNS)
    assert text == tokenizer.apply_chat_template(TURNS, tokenize=False)
    assert [text[start:end].strip() for start, end in spans] == ["yes, in an hour<|im_end|>", "home<|im_end|>"]


def test_a_generation_block_that_ends_in_white_space_does_not_mark_the_user():
    """The mask of transformers marks everything after the first answer for such tokenizers."""
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }} </s> "
        "{% endgeneration %}{% else %}user: {{ m['content'] }} {% endif %}{% endfor %}"
    )
    turns = [turn | {"content": f"w{10 + number}"} for number, turn in enumerate(TURNS)]
    sample = TextEncoder(word_tokenizer(template=template)).encode([{"messages": turns}])[0]
    assert sample["input_ids"].tolist() == [5, 10, 11, 2, 5, 12, 13, 2]
    assert supervised(sample).tolist() == [False, False, True, True] * 2


@pytest.mark.parametrize(
    ("template", "turns"),
    [
        (DROPS_ANSWERS, TURNS),
        (NOT_A_PREFIX, [{"role": "user", "content": "say home"}, {"role": "assistant", "content": "home"}]),
    ],
)
def test_answers_that_cannot_be_found_are_an_issue_not_a_guess(template, turns):
    with pytest.raises(SampleError) as caught:
        answers(template, turns)
    assert caught.value.code == "mask-unavailable"


def test_tools_and_another_template():
    template = "{% for t in tools or [] %}{{ t['name'] }} {% endfor %}" + TEMPLATE
    text, spans = ChatTemplate(piece_tokenizer(template=CHATML), template, [{"name": "w40"}]).answer_spans(TURNS)
    assert text.startswith("w40 user: are you coming?") and len(spans) == 2
