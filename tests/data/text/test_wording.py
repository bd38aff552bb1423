# SPDX-License-Identifier: Apache-2.0
"""What rows of each layout say, with a chat template and without."""

import pytest
from torch.utils.data import DataLoader

from fewbit.data.dataset import Dataset
from fewbit.data.text import as_inputs
from fewbit.errors import UsageError
from word_tokenizer import TEMPLATE, ids, lines, make_tokenizer, takes

ASK, ANSWER = {"role": "user", "content": "w10 w11"}, {"role": "assistant", "content": "w20"}
TURNS = [5, 10, 11, 2, 6, 20, 2]  # user: w10 w11 </s> assistant: w20 </s>

CHATS = {
    "messages": {"messages": [ASK, ANSWER]},
    "conversations": {"conversations": [{"from": "human", "value": "w10 w11"}, {"from": "gpt", "value": "w20"}]},
    "prompt and response": {"prompt": "w10 w11", "response": "w20"},
    "prompt and completion as messages": {"prompt": [ASK], "completion": [ANSWER]},
    "instruction": {"instruction": "w10", "input": "w11", "output": "w20"},
    "preference": {"prompt": "w10 w11", "chosen": "w20", "rejected": "w30"},
    "preference with the whole chat": {"prompt": "w10 w11", "chosen": [ASK, ANSWER], "rejected": [ASK]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "w10 w11"}]}, ANSWER]},
}


@pytest.mark.parametrize("row", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("pack", ["concatenate", "pad"])
def test_turns_go_through_the_template(row, pack):
    made = as_inputs([row], make_tokenizer(template=TEMPLATE), takes(), pack=pack)
    assert ids(made) == [TURNS]  # which ends the text already: no second end


@pytest.mark.parametrize("row", CHATS.values(), ids=CHATS)
def test_without_a_template_contents_follow_one_another(row):
    assert ids(as_inputs([row], make_tokenizer(), takes())) == [[10, 11, 20, 2]]


def test_a_template_that_starts_the_text_itself_does_not_start_it_twice():
    tokenizer = make_tokenizer(start=True, template="<s> " + TEMPLATE)
    rows = [{"messages": [ASK, ANSWER]}] * 2
    for pack in ("concatenate", "pad"):
        assert ids(as_inputs(rows, tokenizer, takes(), pack=pack, seqlen=8)) == [[3, *TURNS]] * 2


def test_what_the_template_refuses_is_read_without_it():
    rows = [{"messages": [{"role": "system", "content": "w30"}, ASK]}, {"messages": [ASK, ANSWER]}]
    made = as_inputs(rows, make_tokenizer(template=TEMPLATE), takes(), pack="pad")
    assert ids(made) == [[30, 10, 11], TURNS]
    told = lines(made)["chat-template"]
    assert told["rows"] == 1 and "no system here" in told["reason"]


def test_tools_reach_the_template():
    template = "{% for t in tools or [] %}{{ t['name'] }} {% endfor %}" + TEMPLATE
    row = {"messages": [ASK, ANSWER], "tools": [{"name": "w40"}]}
    assert ids(as_inputs([row], make_tokenizer(template=template), takes())) == [[40, *TURNS]]


@pytest.mark.parametrize(
    "data",
    [
        ["w10 w11", "w12"],
        [{"text": "w10 w11", "id": 4}, {"text": "w12", "id": 5}],
        {"text": ["w10 w11", "w12"]},
        DataLoader(["w10 w11", "w12"], batch_size=2),
        DataLoader([{"text": "w10 w11", "label": 3}, {"text": "w12", "label": 1}], batch_size=2),
        lambda: iter([{"text": "w10 w11"}, {"text": "w12"}]),
    ],
)
def test_texts_in_every_python_form(data):
    made = as_inputs(data, make_tokenizer(), takes(), seqlen=3)
    assert ids(made) == [[10, 11, 2]] and lines(made)["tokenized"]["left_over"] == 2


def test_bare_chats():
    made = as_inputs(Dataset([[ASK, ANSWER], [ASK]]), make_tokenizer(template=TEMPLATE), takes(), pack="pad")
    assert ids(made) == [TURNS, TURNS[:4]]


def test_what_is_no_text_stays_as_it_is():
    rows = Dataset([{"input_ids": [1, 2], "note": "tokenized before"}])
    assert as_inputs(rows, "nowhere", takes()) is rows
    texts = Dataset([{"text": "w10"}])
    assert as_inputs(texts, "nowhere", takes("pixel_values")) is texts
    with pytest.raises(UsageError, match="nothing is tokenized"):
        as_inputs(texts, "nowhere", takes("pixel_values"), column="text")


def test_text_that_is_not_used_is_told():
    row = {"question": "w10", "answer": "w11", "passage": "w12 w13"}
    made = as_inputs([row], make_tokenizer(), takes())
    assert ids(made) == [[10, 11, 2]] and "in question, answer; not used: passage" in lines(made)["tokenized"]["reason"]
    assert ids(as_inputs([row], make_tokenizer(), takes(), column="passage")) == [[12, 13, 2]]
