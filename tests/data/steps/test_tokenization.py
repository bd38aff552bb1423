# SPDX-License-Identifier: Apache-2.0
"""Texts as tokens: whose each token is, chats, what is kept on disk, and when it is not."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.data.config import generate_dataset_config
from fewbit.data.steps._base import ANSWERED, ASKED, FRAME
from fewbit.data.text.byte_tokenizer import ByteTokenizer
from fewbit.data.text.named_tokenizer import NamedTokenizer, pad_id_of
from fewbit.data.text.sample_encoder import SampleEncoder
from fewbit.errors import DataError, UsageError
from letters_tokenizer import CHATML, make_tokenizer
from word_tokenizer import TEMPLATE
from word_tokenizer import make_tokenizer as make_words

CHAT = [
    {"role": "user", "content": "are you coming?"},
    {"role": "assistant", "content": "yes, in an hour"},
    {"role": "user", "content": "and then?"},
    {"role": "assistant", "content": "home"},
]


def encode(tokenizer, sample, **how):
    return SampleEncoder(lambda: tokenizer, **how)(sample)


def answered(tokenizer, made):
    return tokenizer.decode(made["input_ids"][made["parts"] != ASKED])


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@settings(max_examples=60)
@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_tokens_of_the_answer_by_its_bytes(prompt, answer):
    """Bytes are their own reference: as many tokens as the answer has bytes, then the end."""
    if not (prompt + answer).strip():
        return
    made = encode(ByteTokenizer(), {"prompt": prompt, "answer": answer})
    count = len(answer.encode())
    assert made["input_ids"].tolist() == [*prompt.encode(), *answer.encode(), 256]
    assert (made["parts"][-count - 1 :] == ANSWERED).all() or "<<" in answer
    assert (made["parts"][: -count - 1] == ASKED).all()


@settings(max_examples=60)
@given(st.text(min_size=1, max_size=30), st.text(alphabet="abcé 日<>=\n0", min_size=1, max_size=30))
def test_every_character_of_the_answer_is_in_a_token_that_is_learned(prompt, answer):
    tokenizer = make_tokenizer()
    if not (prompt + answer).strip():
        return
    made = encode(tokenizer, {"prompt": prompt, "answer": answer})
    learned = tokenizer.decode(made["input_ids"][np.isin(made["parts"], (1, 2))][:-1])
    whole = tokenizer.decode(made["input_ids"][1:-1])
    assert whole == prompt + answer
    # A token that holds the prompt's last and the answer's first characters is the answer's.
    assert learned.endswith(answer) or "�" in learned
    assert made["parts"][0] == FRAME


def test_a_token_over_the_border_is_learned():
    tokenizer = make_words()
    made = encode(tokenizer, {"prompt": "w1", "answer": "0 w11"})
    assert made["input_ids"].tolist() == [10, 11, 2] and made["parts"].tolist() == [1, 1, 1]


def test_a_text_is_learned_whole_with_one_end():
    tokenizer = make_words(start=True, ends=True)
    made = encode(tokenizer, {"text": "w10 w11"})
    assert made["input_ids"].tolist() == [3, 10, 11, 2] and made["parts"].tolist() == [FRAME, 1, 1, 1]
    assert encode(tokenizer, {"text": "w10"}, ends=False)["input_ids"].tolist() == [3, 10]


def test_a_chat_by_its_template_and_only_the_assistants_turns():
    tokenizer = make_tokenizer(template=CHATML, eos_token="<|im_end|>")
    made = encode(tokenizer, {"messages": CHAT})
    assert tokenizer.decode(made["input_ids"]) == tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert answered(tokenizer, made) == "yes, in an hour<|im_end|>home<|im_end|>"


def test_a_template_that_prompts_nothing():
    tokenizer = make_words(template=TEMPLATE)
    chat = [{"role": "user", "content": "w10"}, {"role": "assistant", "content": "w11 w12"}]
    made = encode(tokenizer, {"messages": chat})
    assert made["input_ids"].tolist() == [5, 10, 2, 6, 11, 12, 2]
    assert made["parts"].tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_a_template_that_changes_what_was_before():
    """Some leave out earlier turns or thoughts: the answer is then looked for where it stands."""
    kept = "{% if loop.last or m['role'] == 'user' %}{{ m['content'] }}</s>{% else %}-{% endif %}"
    last = f"{{% for m in messages %}}{kept}{{% endfor %}}"
    tokenizer = make_tokenizer(template=last)
    with pytest.raises(DataError, match="is not in what the chat template makes"):
        encode(tokenizer, {"messages": CHAT})
    numbered = "{{ messages|length }}:{% for m in messages %}{{ m['content'] }}</s>{% endfor %}"
    made = encode(make_tokenizer(template=numbered), {"messages": CHAT})
    assert answered(tokenizer, made) == "yes, in an hour</s>home</s>"


def test_a_chat_without_a_template():
    tokenizer = ByteTokenizer()
    made = encode(tokenizer, {"messages": CHAT})
    assert tokenizer.decode(made["input_ids"]).startswith("User: are you coming?\nAssistant: yes")
    assert answered(tokenizer, made) == "yes, in an hourhome" and made["input_ids"][-1] == 256


def test_a_refused_chat_is_left_out_with_the_reason(tmp_path):
    rows = [
        {"messages": CHAT[:2]},
        {"messages": [{"role": "system", "content": "w1"}, *CHAT[:2]]},
        {"messages": CHAT[:1]},
    ]
    path = write(tmp_path / "rows.jsonl", rows)
    made = generate_dataset_config(path, ["tokenization"], {"tokenizer": make_words(template=TEMPLATE)})
    found = made.open(None)
    assert len(found) == 1
    (line,) = [line for line in found.record.lines if line["what"] == "left-out"]
    assert (
        line["count"] == 2 and "no system here" in line["first"][0] and "nothing in it is an answer" in line["first"][1]
    )


def test_a_tokenizer_that_does_not_know_characters():
    class Slow(ByteTokenizer):
        is_fast = False

        def __call__(self, text, **how):
            assert not how.get("return_offsets_mapping")
            return super().__call__(text, **how)

    made = encode(Slow(), {"prompt": "é?", "answer": "ab"})
    assert made["parts"].tolist() == [0, 0, 0, 1, 1, 1] and made["input_ids"].tolist() == [*"é?ab".encode(), 256]


def test_words_have_their_tags_at_their_first_token():
    made = encode(ByteTokenizer(), {"words": ["ab", "c"], "tags": [3, 4]})
    assert made["input_ids"].tolist() == list(b"ab c")
    assert made["labels"].tolist() in ([3, -100, -100, 4], [3, -100, 4, -100])
    tokenizer = make_words(start=True, ends=True)
    made = encode(tokenizer, {"words": ["w10", "w11"], "tags": [3, 4]})
    assert made["labels"].tolist() == [-100, 3, 4, -100]


def test_an_answer_in_a_context():
    tokenizer = make_words(start=True, ends=True)
    context = "w20 w21 w22"
    made = encode(tokenizer, {"question": "w10", "context": context, "start": 4, "end": 11})
    assert made["input_ids"].tolist() == tokenizer("w10", context)["input_ids"]
    assert made["input_ids"][made["start_positions"] : made["end_positions"] + 1].tolist() == [21, 22]
    made = encode(ByteTokenizer(), {"question": "q", "context": "ab c", "start": 3, "end": 4})
    assert made["input_ids"].tolist() == list(b"q\nab c") and made["start_positions"] == made["end_positions"] == 5


def test_padding_number_0_is_a_padding():
    """Defect 11: the id 0 was taken for a missing one."""
    assert make_tokenizer().pad_token_id == 0 == pad_id_of(make_tokenizer())
    assert pad_id_of(make_tokenizer(pad_token=None)) == 2


ROWS = [{"prompt": f"{n} and {n}?", "answer": f"{n * 2}"} for n in range(30)]


class Counting(ByteTokenizer):
    calls = 0

    def __call__(self, text, **how):
        type(self).calls += not isinstance(text, str)
        return super().__call__(text, **how)


@pytest.fixture
def counting():
    Counting.calls = 0
    return Counting()


def test_tokens_are_kept_by_their_content(tmp_path, counting):
    path = write(tmp_path / "rows.jsonl", ROWS)

    def first(path=path, split="train", **custom):
        steps = ["tokenization", "masking", "truncation"]
        return generate_dataset_config(path, steps, {"tokenizer": counting, **custom}).open(split)[0]

    one = first()
    made = Counting.calls
    assert made > 0
    assert str(first()) == str(one) and Counting.calls == made
    assert first(mask_prompt=False)["labels"][0] != -100 and Counting.calls == made, (
        "nothing that is done after it counts"
    )
    moved = write(tmp_path / "moved.jsonl", ROWS)
    assert str(first(moved)) == str(one) and Counting.calls == made, "the same content elsewhere"
    for change in ({"seed": 1}, {"add_eos": False}, {"validation_ratio": 0.2}, {"split": "validation"}):
        first(**change)
        assert Counting.calls > made, change
        made = Counting.calls
    write(tmp_path / "rows.jsonl", ROWS[::-1])
    assert str(first()) != str(one) and Counting.calls > made


def test_another_tokenizer_is_another_fingerprint(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    one, other = (
        generate_dataset_config(path, ["tokenization"], {"tokenizer": tokenizer}).open()[0]["input_ids"].tolist()
        for tokenizer in ("bytes", make_tokenizer())
    )
    assert one != other


def test_a_tokenizer_by_its_folder(tmp_path):
    make_tokenizer().save_pretrained(tmp_path / "model")
    path = write(tmp_path / "rows.jsonl", ROWS)
    made = generate_dataset_config(path, ["tokenization"], {"tokenizer": tmp_path / "model"})
    assert made.open()[0]["input_ids"][0] == 1
    assert type(made).from_yaml(made.to_yaml()).open()[0]["input_ids"][0] == 1
    with pytest.raises(UsageError, match=r"no tokenizer.json"):
        generate_dataset_config(path, ["tokenization"], {"tokenizer": str(tmp_path)})


def test_without_a_cache_the_tokens_are_the_same(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    kept, fresh = (
        [
            str(sample)
            for sample in generate_dataset_config(
                path, ["tokenization", "masking"], {"tokenizer": "bytes", "cache_tokens": keep}
            ).open()
        ]
        for keep in (True, False)
    )
    assert kept == fresh


def test_rows_that_differ_in_kind_are_told():
    rows = [{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [3]}]
    with pytest.raises(DataError, match="samples differ"):
        len(generate_dataset_config(rows, ["tokenization"], {"tokenizer": "bytes"}).open(None))


def test_a_stream_is_tokenized_as_it_comes():
    def endless():
        number = 0
        while True:
            number += 1
            yield {"text": f"row {number}"}

    found = generate_dataset_config(endless, ["tokenization"], {"tokenizer": "bytes"}).open()
    assert next(iter(found))["input_ids"][-1] == 256


def test_a_second_process_reads_what_the_first_wrote(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    generate_dataset_config(path, ["tokenization"], {"tokenizer": "bytes"}).open()[0]
    code = (
        "from fewbit.data.config import generate_dataset_config as g\n"
        "from fewbit.data.text.byte_tokenizer import ByteTokenizer as B\n"
        "B.__call__ = None\n"
        f"print(g({path!r}, ['tokenization'], {{'tokenizer': 'bytes'}}).open()[0]['input_ids'].tolist()[-1])"
    )
    import os

    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=os.environ).strip() == "256"


def test_samples_are_the_readers_own(tmp_path):
    path = write(tmp_path / "rows.jsonl", ROWS)
    found = generate_dataset_config(path, ["tokenization"], {"tokenizer": "bytes"}).open()
    sample = found[0]
    sample["input_ids"][:] = 7
    sample["labels"][:] = 7
    assert found[0]["input_ids"][0] != 7


def test_the_byte_tokenizer_comes_back():
    tokenizer = pickle.loads(pickle.dumps(ByteTokenizer()))
    assert tokenizer == ByteTokenizer() and len(tokenizer) == 259
    assert tokenizer.decode([*"aé日".encode(), 256, 257]) == "aé日"
    assert tokenizer.decode([97, 256], skip_special_tokens=False) == "a<|end|>"
    assert tokenizer.convert_ids_to_tokens(256) == "<|end|>" and tokenizer.convert_tokens_to_ids("<|pad|>") == 257
    assert tokenizer("aé", truncation=True, max_length=2)["input_ids"] == [97, 195]
    assert NamedTokenizer()() == tokenizer
