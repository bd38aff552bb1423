# SPDX-License-Identifier: Apache-2.0
"""Texts as inputs of a language model: what it asks for, how long, joined or one each."""

import json

import numpy as np
import pytest

from fewbit.data.dataset import Dataset
from fewbit.data.text.byte_tokenizer import ByteTokenizer
from fewbit.data.text.model_inputs import text_inputs
from fewbit.data.text.tokenizer import load_tokenizer, max_tokens, pad_id, tokenizer_fingerprint
from fewbit.data.types import DataReport, Location
from fewbit.errors import DataError, UsageError
from fewbit.model_info import ModelInfo, TensorInfo
from tiny_tokenizers import TEMPLATE, piece_tokenizer, word_tokenizer

ROWS = [{"text": "w10 w11 w12"}, {"text": "w13"}]


class Rows:
    """A source in memory."""

    def __init__(self, rows):
        self.rows, self.facts = rows, {}

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def location(self, index):
        return Location("rows.jsonl", line=index + 1, index=index)

    def strata(self):
        return None


def dataset(rows):
    return Dataset.of(Rows(rows), DataReport())


def info(*inputs, kind="torch", **more):
    tensors = tuple(TensorInfo(each) if isinstance(each, str) else each for each in inputs or ("input_ids",))
    return ModelInfo("model", kind, "torch", inputs=tensors, **more)


def ids(rows, model=None, tokenizer=None, **options):
    options = {"tokenizer": tokenizer or word_tokenizer(), **options}
    return [sample["input_ids"].tolist() for sample in text_inputs(dataset(rows), model or info(), options)]


def test_decoders_read_running_text_and_encoders_one_text_each():
    joined = ids(ROWS, max_length=6)
    assert sorted(joined[0]) == [2, 2, 10, 11, 12, 13]
    assert sorted(ids(ROWS, tokenizer=word_tokenizer(mask_token="[MASK]"))) == [[10, 11, 12], [13]]
    assert sorted(ids(ROWS, pack="pad")) == [[10, 11, 12], [13]]


@pytest.mark.parametrize(
    ("config", "joined"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, True),
        ({"architectures": ["GPT2LMHeadModel"]}, True),
        ({"architectures": ["LlavaForConditionalGeneration"], "text_config": {}}, True),
        ({"architectures": ["BertForSequenceClassification"]}, False),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, False),
        ({}, True),
    ],
)
def test_the_configuration_says_which(tmp_path, config, joined):
    word_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = text_inputs(dataset(ROWS), info(tokenizer=str(tmp_path)))
    assert len(made) == (1 if joined else 2)
    assert made.report.facts["text"]["pack"] == ("concatenate" if joined else "pad")


def test_a_required_token_type_is_an_encoders():
    assert len(ids(ROWS, info("input_ids", TensorInfo("token_type_ids", required=True)))) == 2


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4}, 4),
        ({"n_positions": 3}, 3),
        ({"text_config": {"max_position_embeddings": 2}}, 2),
    ],
)
def test_no_sequence_is_longer_than_the_model_has_positions(tmp_path, config, length):
    word_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = text_inputs(dataset(ROWS), info(tokenizer=str(tmp_path)))
    assert {len(sample["input_ids"]) for sample in made} == {length}


def test_texts_are_drawn_over_the_whole_source_in_an_order_of_the_seed():
    rows = [{"text": f"w{10 + n % 80}"} for n in range(80)]
    first, again, other = (ids(rows, max_length=4, samples=3, seed=seed) for seed in (0, 0, 1))
    assert first == again != other and len(first) == 3
    tokens = {token for sequence in first for token in sequence if token != 2}
    assert max(tokens) - min(tokens) > 30
    assert first == ids(rows, max_length=4, seed=0)[:3]


def test_an_exported_decoder_gets_positions_and_an_empty_cache():
    cache = TensorInfo("past_key_values.0.key", "float32", ("n", 2, "p", 8))
    model = info(
        TensorInfo("input_ids", "int64", ("n", "t")), TensorInfo("attention_mask", "int64", ("n", "t")),
        TensorInfo("position_ids", "int64", ("n", "t")), cache,
    )  # fmt: skip
    sample = text_inputs(dataset(ROWS), model, {"tokenizer": word_tokenizer(), "max_length": 3})[0]
    assert sample["past_key_values.0.key"].shape == (2, 0, 8) and sample["position_ids"].tolist() == [0, 1, 2]
    assert sample["attention_mask"].tolist() == [1, 1, 1] and sample["input_ids"].dtype == np.int64


def test_a_decoder_behind_an_encoder_starts_with_its_token(tmp_path):
    word_tokenizer(ends=True).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"is_encoder_decoder": True, "decoder_start_token_id": 1}))
    model = info("input_ids", "decoder_input_ids", tokenizer=str(tmp_path))
    sample = text_inputs(dataset(ROWS[:1]), model)[0]
    assert sample["input_ids"].tolist() == [10, 11, 12, 2] and sample["decoder_input_ids"].tolist() == [1, 10, 11, 12]


def test_a_fixed_length_is_padded_on_the_tokenizers_side():
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    model = info(*(TensorInfo(name, "int32", ("n", 6)) for name in names))
    rows = [{"text": "w10 w11"}]
    made = text_inputs(dataset(rows), model, {"tokenizer": word_tokenizer(padding_side="left"), "pack": "pad"})
    assert made[0]["input_ids"].tolist() == [1, 1, 1, 1, 10, 11] and made[0]["input_ids"].dtype == np.int32
    assert made[0]["attention_mask"].tolist() == [0, 0, 0, 0, 1, 1]
    assert made[0]["position_ids"].tolist() == [0, 0, 0, 0, 0, 1]


def test_a_text_that_is_cut_is_still_ended():
    tokenizer = word_tokenizer(start=True, ends=True)
    assert ids([{"text": "w10 w11 w12 w13"}], tokenizer=tokenizer, pack="pad", max_length=4) == [[3, 10, 11, 2]]


CHAT = [{"role": "user", "content": "w10 w11"}, {"role": "assistant", "content": "w20"}]
LAYOUTS = {
    "messages": {"messages": CHAT},
    "conversations": {"conversations": [{"from": "human", "value": "w10 w11"}, {"from": "gpt", "value": "w20"}]},
    "prompt and response": {"prompt": "w10 w11", "response": "w20"},
    "messages as prompt and completion": {"prompt": CHAT[:1], "completion": CHAT[1:]},
    "instruction": {"instruction": "w10", "input": "w11", "output": "w20"},
    "preference": {"prompt": "w10 w11", "chosen": "w20", "rejected": "w30"},
    "preference with the whole chat": {"prompt": "w10 w11", "chosen": CHAT, "rejected": CHAT[:1]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "w10 w11"}]}, CHAT[1]]},
}


@pytest.mark.parametrize("row", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("pack", ["concatenate", "pad"])
def test_turns_go_through_the_template_which_ends_them_itself(row, pack):
    assert ids([row], tokenizer=word_tokenizer(template=TEMPLATE), pack=pack) == [[5, 10, 11, 2, 6, 20, 2]]


def test_a_template_that_starts_the_text_does_not_start_it_twice():
    tokenizer = word_tokenizer(start=True, template="<s> " + TEMPLATE)
    for pack in ("concatenate", "pad"):
        found = ids([{"messages": CHAT}] * 2, tokenizer=tokenizer, pack=pack, max_length=8)
        assert found == [[3, 5, 10, 11, 2, 6, 20, 2]] * 2


def test_what_the_template_refuses_is_read_without_it_and_counted():
    rows = [{"messages": [{"role": "system", "content": "w30"}, CHAT[0]]}, {"messages": CHAT}]
    made = text_inputs(dataset(rows), info(), {"tokenizer": word_tokenizer(template=TEMPLATE), "pack": "pad"})
    assert sorted(sample["input_ids"].tolist() for sample in made) == [[5, 10, 11, 2, 6, 20, 2], [30, 10, 11]]
    assert made.report.facts["text"]["template_refused"] == 1
    (issue,) = [issue for issue in made.report.issues if issue.code == "chat-template-fallback"]
    assert "no system here" in issue.message and issue.location.line == 1


def test_rows_without_text_are_left_out_and_counted():
    made = text_inputs(dataset([*ROWS, {"text": " "}]), info(), {"tokenizer": word_tokenizer(), "pack": "pad"})
    assert len(made) == 2 and made.report.counts["no-text"] == 1
    with pytest.raises(DataError, match="none of 2 rows has any text"):
        ids([{"text": ""}, {"text": " "}])


def test_the_text_column_and_bare_texts():
    assert ids([{"a": "w10", "b": "w11"}], text_column="b") == [[11, 2]]
    assert ids(["w10"]) == [[10, 2]] and ids([CHAT], tokenizer=word_tokenizer(template=TEMPLATE))[0][0] == 5


def test_labels_stay_for_classifiers():
    made = text_inputs(dataset([{"text": "w10", "label": 2}]), info(), {"tokenizer": word_tokenizer(), "pack": "pad"})
    assert made[0]["label"] == 2 and made.location(0) == Location("rows.jsonl", line=1, index=0)


def test_token_ids_are_taken_as_they_are():
    assert ids([{"input_ids": [7, 8]}], pack="pad") == [[7, 8]]


@pytest.mark.parametrize("options", [{"pack": "pat"}, {"max_length": 1}])
def test_wrong_options(options):
    with pytest.raises(UsageError):
        ids(ROWS, tokenizer=word_tokenizer(start=True), **options)


def test_a_folder_without_a_vocabulary_is_no_tokenizer(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(DataError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        load_tokenizer("nowhere/to/be/found")


def test_the_tokenizer_of_a_model_file_may_lie_one_folder_above(tmp_path):
    word_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"")
    assert load_tokenizer(tmp_path / "onnx" / "model.onnx")("w10")["input_ids"] == [10]


def test_ids_of_0_are_ids_and_huge_limits_are_none():
    tokenizer = piece_tokenizer()
    assert tokenizer.pad_token_id == 0 == pad_id(tokenizer)
    assert pad_id(piece_tokenizer(pad_token=None)) == 2
    assert max_tokens(tokenizer) is None and max_tokens(piece_tokenizer(model_max_length=12)) == 12


def test_fingerprints_tell_tokenizers_apart():
    tokenizers = (ByteTokenizer(), word_tokenizer(), word_tokenizer(template=TEMPLATE), piece_tokenizer())
    assert len({tokenizer_fingerprint(tokenizer) for tokenizer in tokenizers}) == 4
    assert tokenizer_fingerprint(word_tokenizer()) == tokenizer_fingerprint(word_tokenizer())
