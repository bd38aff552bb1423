# SPDX-License-Identifier: Apache-2.0
"""Texts as inputs of a language model: what it asks for, how long, joined or one each; and which tokenizer."""

import json
import pickle
import weakref

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
CHAT = [{"role": "user", "content": "w10 w11"}, {"role": "assistant", "content": "w20"}]


class Rows(list):
    """A source in memory."""

    facts = {}  # noqa: RUF012

    def location(self, index):
        return Location("rows.jsonl", line=index + 1, index=index)

    def strata(self):
        return None


def model(*tensors, **facts):
    tensors = tuple(TensorInfo(name) if isinstance(name, str) else name for name in tensors or ("input_ids",))
    return ModelInfo("model", "torch", "torch", takes_tensors=True, takes_objects=True, inputs=tensors, **facts)


def inputs(rows, info=None, tokenizer=None, **options):
    options = {"tokenizer": tokenizer or word_tokenizer(), **options}
    return text_inputs(Dataset.of(Rows(rows), DataReport()), info or model(), options)


def ids(*arguments, **options):
    return [sample["input_ids"].tolist() for sample in inputs(*arguments, **options)]


@pytest.fixture
def configured(tmp_path):
    """The inputs of a model with some config.json next to its tokenizer."""

    def build(config, *tensors, rows=ROWS, **tokenizer):
        word_tokenizer(**tokenizer).save_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))
        return text_inputs(Dataset.of(Rows(rows), DataReport()), model(*tensors, tokenizer=str(tmp_path)))

    return build


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
def test_decoders_read_running_text_and_encoders_one_text_each(configured, config, joined):
    dataset = configured(config)
    assert len(dataset) == (1 if joined else 2)
    assert dataset.report.facts["text"]["pack"] == ("concatenate" if joined else "pad")


def test_without_a_configuration_mask_token_types_and_options_decide():
    one_each = [[10, 11, 12], [13]]
    assert sorted(ids(ROWS, max_length=6)[0]) == [2, 2, 10, 11, 12, 13]
    assert sorted(ids(ROWS, tokenizer=word_tokenizer(mask_token="[MASK]"))) == one_each
    assert sorted(ids(ROWS, model("input_ids", TensorInfo("token_type_ids", required=True)))) == one_each
    assert sorted(ids(ROWS, pack="pad")) == one_each


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 4}, 4),
        ({"n_positions": 3}, 3),
        ({"text_config": {"max_position_embeddings": 2}}, 2),
    ],
)
def test_no_sequence_is_longer_than_the_model_has_positions(configured, config, length):
    assert {len(sample["input_ids"]) for sample in configured(config)} == {length}


def test_texts_are_drawn_over_the_entire_source_by_the_seed():
    rows = [{"text": f"w{10 + n % 80}"} for n in range(80)]
    first, again, other = (ids(rows, max_length=4, samples=3, seed=seed) for seed in (0, 0, 1))
    assert first == again != other and len(first) == 3 and first == ids(rows, max_length=4, seed=0)[:3]
    tokens = {token for sequence in first for token in sequence if token != 2}
    assert max(tokens) - min(tokens) > 30


def test_an_exported_decoder_gets_positions_and_an_empty_cache():
    names = ("input_ids", "attention_mask", "position_ids")
    cache = TensorInfo("past_key_values.0.key", "float32", ("n", 2, "p", 8))
    exported = model(*(TensorInfo(name, "int64", ("n", "t")) for name in names), cache)
    sample = inputs(ROWS, exported, max_length=3)[0]
    assert sample["past_key_values.0.key"].shape == (2, 0, 8) and sample["position_ids"].tolist() == [0, 1, 2]
    assert sample["attention_mask"].tolist() == [1, 1, 1] and sample["input_ids"].dtype == np.int64


def test_a_decoder_behind_an_encoder_starts_with_its_token(configured):
    config = {"is_encoder_decoder": True, "decoder_start_token_id": 1}
    sample = configured(config, "input_ids", "decoder_input_ids", rows=ROWS[:1], ends=True)[0]
    assert sample["input_ids"].tolist() == [10, 11, 12, 2] and sample["decoder_input_ids"].tolist() == [1, 10, 11, 12]


def test_a_fixed_length_is_padded_on_the_tokenizers_side():
    names = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
    fixed = model(*(TensorInfo(name, "int32", ("n", 6)) for name in names))
    sample = inputs([{"text": "w10 w11"}], fixed, word_tokenizer(padding_side="left"), pack="pad")[0]
    assert sample["input_ids"].tolist() == [1, 1, 1, 1, 10, 11] and sample["input_ids"].dtype == np.int32
    assert sample["attention_mask"].tolist() == [0, 0, 0, 0, 1, 1]
    assert sample["position_ids"].tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("pack", ["concatenate", "pad"])
@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT},
        {"conversations": [{"from": "human", "value": "w10 w11"}, {"from": "gpt", "value": "w20"}]},
        {"prompt": "w10 w11", "response": "w20"},
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
        {"instruction": "w10", "input": "w11", "output": "w20"},
        {"prompt": "w10 w11", "chosen": "w20", "rejected": "w30"},
        {"prompt": "w10 w11", "chosen": CHAT, "rejected": CHAT[:1]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "w10 w11"}]}, CHAT[1]]},
        CHAT,
    ],
)
def test_chats_of_every_layout_go_through_the_template_which_ends_them_itself(row, pack):
    assert ids([row], tokenizer=word_tokenizer(template=TEMPLATE), pack=pack) == [[5, 10, 11, 2, 6, 20, 2]]


@pytest.mark.parametrize("pack", ["concatenate", "pad"])
def test_a_template_that_starts_the_text_does_not_start_it_twice(pack):
    tokenizer = word_tokenizer(start=True, template="<s> " + TEMPLATE)
    rows = [{"messages": CHAT}] * 2
    assert ids(rows, tokenizer=tokenizer, pack=pack, max_length=8) == [[3, 5, 10, 11, 2, 6, 20, 2]] * 2


def test_what_the_template_refuses_is_read_without_it_and_counted():
    rows = [{"messages": [{"role": "system", "content": "w30"}, CHAT[0]]}, {"messages": CHAT}]
    dataset = inputs(rows, tokenizer=word_tokenizer(template=TEMPLATE), pack="pad")
    assert sorted(sample["input_ids"].tolist() for sample in dataset) == [[5, 10, 11, 2, 6, 20, 2], [30, 10, 11]]
    assert dataset.report.facts["text"]["template_refused"] == 1
    (issue,) = [issue for issue in dataset.report.issues if issue.code == "chat-template-fallback"]
    assert "no system here" in issue.message and issue.location.line == 1


def test_rows_without_text_are_left_out_and_counted():
    dataset = inputs([*ROWS, {"text": " "}], pack="pad")
    assert len(dataset) == 2 and dataset.report.counts["no-text"] == 1
    with pytest.raises(DataError, match="none of 2 rows has any text"):
        ids([{"text": ""}, {"text": " "}])


def test_other_forms_of_rows():
    assert ids([{"a": "w10", "b": "w11"}], text_column="b") == [[11, 2]] and ids(["w10"]) == [[10, 2]]
    assert ids([{"input_ids": [7, 8]}], pack="pad") == [[7, 8]]
    cut = ids([{"text": "w10 w11 w12 w13"}], tokenizer=word_tokenizer(start=True, ends=True), pack="pad", max_length=4)
    assert cut == [[3, 10, 11, 2]]  # a text that is cut is still ended
    classified = inputs([{"text": "w10", "label": 2}], pack="pad")
    assert classified[0]["label"] == 2 and classified.location(0) == Location("rows.jsonl", line=1, index=0)


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


@pytest.mark.parametrize("pack", ["concatenate", "pad"])
def test_memory_does_not_grow_with_the_rows(pack):
    read, arrays, most = [], [], 0

    class Counted(Rows):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    rows = Counted({"text": f"w{10 + number % 80} " * 4} for number in range(2000))
    dataset = text_inputs(Dataset.of(rows, DataReport()), model(), {"tokenizer": word_tokenizer(), "pack": pack})
    assert len(read) < 600, "the first sequence took more than two blocks of rows"
    for index in dataset.indices():
        arrays.append(weakref.ref(dataset[index]["input_ids"]))
        most = max(most, sum(array() is not None for array in arrays[-300:]))
    assert most <= 2 and sorted(read) == list(range(2000))
    sequences = dataset.report.facts["text"]["sequences"]
    assert sequences == len(dataset) == (2000 if pack == "pad" else 2000 * 5 // 512)


def test_a_stream_read_again_gives_and_reports_the_same():
    dataset = inputs([*ROWS, {"text": " "}, {"text": "w14 w15"}], pack="pad", max_length=2)
    first = [sample["input_ids"].tolist() for sample in dataset]
    facts = dict(dataset.report.facts["text"])
    assert facts == {
        "pack": "pad", "max_length": 2, "sequences": 3, "tokens": 5, "rows": 4, "truncated": 1, "empty": 1,
    }  # fmt: skip
    assert [dataset[index]["input_ids"].tolist() for index in (2, 1, 0)] == first[::-1]
    assert [sample["input_ids"].tolist() for sample in pickle.loads(pickle.dumps(dataset))] == first
    assert dataset.report.facts["text"] == facts and dataset.report.counts == {"no-text": 1} and len(dataset) == 3
    with pytest.raises(IndexError):
        dataset[3]
