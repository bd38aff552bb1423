# SPDX-License-Identifier: Apache-2.0
"""What a model says about its texts: its tokenizer, its length, whether it reads running text."""

import json

import numpy as np
import pytest

from fewbit.data.signature import InputSpec, Signature
from fewbit.data.text import as_inputs
from fewbit.errors import DataError
from small_models import opt
from word_tokenizer import ids, lines, make_tokenizer, takes

ROWS = [{"text": "w10 w11 w12"}, {"text": "w13"}]


def test_a_folder_and_a_model_that_came_from_it(tmp_path):
    from transformers import OPTForCausalLM

    opt().save_pretrained(tmp_path)
    with pytest.raises(DataError, match="no tokenizer that opens: none of its files"):
        as_inputs(ROWS, tmp_path, opt())
    make_tokenizer().save_pretrained(tmp_path)
    model = OPTForCausalLM.from_pretrained(tmp_path)
    wanted = ids(as_inputs(ROWS, tmp_path, model))
    assert wanted == [[10, 11, 12, 2, 13, 2]] == ids(as_inputs(ROWS, model, model))
    assert wanted == ids(as_inputs(ROWS, make_tokenizer(), model))
    with pytest.raises(DataError, match="does not say which folder"):
        as_inputs(ROWS, opt(), opt())
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="no tokenizer that opens"):
        as_inputs(ROWS, tmp_path, model)


@pytest.mark.parametrize(
    ("config", "pack"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "concatenate"),
        ({"architectures": ["GPT2LMHeadModel"]}, "concatenate"),
        ({"architectures": ["LlavaForConditionalGeneration"], "text_config": {}}, "concatenate"),
        ({"architectures": ["BertForSequenceClassification"]}, "pad"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "pad"),
        ({}, "concatenate"),
    ],
)
def test_decoders_read_running_text_and_others_rows(tmp_path, config, pack):
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    made = as_inputs(ROWS, tmp_path, takes())
    assert len(ids(made)) == (1 if pack == "concatenate" else 2) and lines(made)["tokenized"]["pack"] == pack


def test_of_a_model_that_says_nothing_the_tokenizer_tells():
    assert len(ids(as_inputs(ROWS, make_tokenizer(mask_token="[MASK]"), takes()))) == 2
    kinds = Signature("onnx", (InputSpec("input_ids"), InputSpec("token_type_ids")))
    assert len(ids(as_inputs(ROWS, make_tokenizer(), kinds))) == 2


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4}, 4),
        ({"n_positions": 3}, 3),
        ({"text_config": {"max_position_embeddings": 2}}, 2),
    ],
)
def test_no_sample_is_longer_than_the_model_has_places(tmp_path, config, length):
    make_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert {len(each) for each in ids(as_inputs(ROWS, tmp_path, takes()))} == {length}


def test_a_decoder_behind_an_encoder_starts_with_its_token(tmp_path):
    make_tokenizer(ends=True).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"is_encoder_decoder": True, "decoder_start_token_id": 1}))
    first = next(iter(as_inputs(ROWS, tmp_path, takes("input_ids", "decoder_input_ids"))))
    assert first["input_ids"].tolist() == [10, 11, 12, 2] and first["decoder_input_ids"].tolist() == [1, 10, 11, 12]


def test_an_exported_decoder_gets_positions_and_no_past():
    past = InputSpec("past_key_values.0.key", ("n", 2, "p", 8), "float32")
    inputs = (InputSpec("input_ids", ("n", "t"), "int64"), InputSpec("position_ids", ("n", "t"), "int64"), past)
    signature = Signature("onnx", inputs)
    made = as_inputs(ROWS, make_tokenizer(), signature, seqlen=3)
    fed = list(made.inputs(signature, batch_size=2))
    assert len(fed) == 1 and fed[0]["past_key_values.0.key"].shape == (2, 2, 0, 8)
    assert fed[0]["position_ids"].tolist() == [[0, 1, 2]] * 2 and fed[0]["input_ids"].dtype == np.int64


def test_the_same_rows_give_the_same_tokens_in_order(tmp_path):
    rows = [{"text": f"w{10 + i % 80} w{10 + (i * 7) % 80}"} for i in range(200)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    one, other = (as_inputs(data, make_tokenizer(), takes(), seqlen=7) for data in (rows, tmp_path / "rows.jsonl"))
    assert ids(one) == ids(other) == ids(one) and ids(one.subset(5)) == ids(one)[:5]
