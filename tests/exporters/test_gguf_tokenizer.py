# SPDX-License-Identifier: Apache-2.0
"""Tokenizers in GGUF files: tokens, types, scores and merges, and the name of what cuts the text before."""

import json
from types import SimpleNamespace

import pytest

from fewbit.errors import DataError, UsageError
from fewbit.exporters import _gguf_tokenizer
from fewbit.exporters._gguf_pretokenizer import pre_tokenizer_name
from fewbit.exporters._gguf_sentencepiece import read_model
from gguf_models import LLAMA3_PATTERN, QWEN2_PATTERN, TEXTS, byte_level

gguf = pytest.importorskip("gguf")


def written(folder, out, vocab_size=320, **options):
    """The fields of a file with nothing but a tokenizer, and the notes."""
    config = SimpleNamespace(vocab_size=vocab_size, bos_token_id=None, eos_token_id=options.pop("eos", None))
    writer = gguf.GGUFWriter(out / "t.gguf", "llama")
    notes = _gguf_tokenizer.describe(writer, folder, config, options.get("pre_tokenizer"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    fields = gguf.GGUFReader(out / "t.gguf").fields
    return {name.removeprefix("tokenizer.ggml."): field.contents() for name, field in fields.items()}, notes


def test_byte_level_tokens_merges_and_special_ones(tmp_path):
    tokenizer = byte_level(tmp_path, size=300)
    fields, notes = written(tmp_path, tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert (fields["model"], fields["pre"], notes) == ("gpt2", "gpt-2", [])
    assert len(fields["tokens"]) == len(fields["token_type"]) == 320
    assert all(fields["tokens"][number] == token for token, number in tokenizer.get_vocab().items())
    assert fields["merges"] == [" ".join(pair) for pair in content["model"]["merges"]]
    assert fields["token_type"][0] == 3 and set(fields["token_type"][1:300]) == {1}
    assert fields["token_type"][300:] == [5] * 20 and len(set(fields["tokens"])) == 320
    assert fields["bos_token_id"] == fields["eos_token_id"] == 0
    assert fields["add_bos_token"] is fields["add_eos_token"] is fields["add_space_prefix"] is False


def test_a_tokenizer_made_of_the_fields_gives_the_same_tokens(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = byte_level(tmp_path)
    fields, _ = written(tmp_path, tmp_path)
    vocabulary = {token: number for number, token in enumerate(fields["tokens"])}
    again = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(each.split(" ")) for each in fields["merges"]]))
    again.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in TEXTS:
        assert again.encode(text).ids == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("steps", "ignore", "name"),
    [
        ([{"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}], False, "gpt-2"),
        ([{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel"}], False, "smollm"),
        ([(LLAMA3_PATTERN), {"type": "ByteLevel", "use_regex": False}], True, "llama-bpe"),
        ([(LLAMA3_PATTERN), {"type": "ByteLevel", "use_regex": False}], False, "dbrx"),
        ([(QWEN2_PATTERN), {"type": "ByteLevel", "use_regex": False}], False, "qwen2"),
    ],
)
def test_pre_tokenizers_are_recognised(steps, ignore, name):
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    steps = [{**split, "pattern": {"Regex": each}} if isinstance(each, str) else each for each in steps]
    for part in [{"type": "Sequence", "pretokenizers": steps}, *(steps if len(steps) == 1 else [])]:
        content = {"pre_tokenizer": part, "model": {"ignore_merges": ignore}}
        assert pre_tokenizer_name(content, "here") == name


@pytest.mark.parametrize(
    "step",
    [{"type": "ByteLevel", "add_prefix_space": True}, {"type": "Whitespace"}, {"type": "Digits"}],
    ids=["prefix", "whitespace", "digits"],
)
def test_other_pre_tokenizers_are_not_guessed(step):
    with pytest.raises(UsageError, match="not one of those"):
        pre_tokenizer_name({"pre_tokenizer": step, "model": {}}, "here")


def test_a_name_can_be_given(tmp_path):
    from tokenizers import pre_tokenizers

    pre = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel()])
    byte_level(tmp_path, pre=pre)
    with pytest.raises(UsageError, match="Punctuation"):
        written(tmp_path, tmp_path)
    assert written(tmp_path, tmp_path, pre_tokenizer="falcon")[0]["pre"] == "falcon"


SENTENCEPIECE = {
    "added_tokens": [
        {"id": 0, "content": "<unk>", "special": True},
        {"id": 1, "content": "<s>", "special": True},
        {"id": 10, "content": "<tool>", "special": False},
    ],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
    "pre_tokenizer": None,
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    },
    "model": {
        "type": "BPE",
        "byte_fallback": True,
        "unk_token": "<unk>",
        "vocab": {
            "<unk>": 0, "<s>": 1, "<0x0A>": 2, "▁": 3, "a": 4, "b": 5, "ab": 6, "▁a": 7, "▁ab": 8, "ba": 9,
        },
        "merges": [["▁", "a"], ["a", "b"], ["▁", "ab"], ["▁a", "b"], ["b", "a"]],
    },
}  # fmt: skip


def test_sentencepiece_merges_become_scores(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(SENTENCEPIECE))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "<s>"}))
    fields, _ = written(tmp_path, tmp_path, 12)
    assert (fields["model"], fields["pre"]) == ("llama", "default")
    assert fields["token_type"] == [2, 3, 6, 1, 1, 1, 1, 1, 1, 1, 4, 5]
    scores = fields["scores"]
    assert scores[7] > scores[6] > scores[8] > scores[9] > max(scores[3:6])
    assert fields["add_space_prefix"] is fields["add_bos_token"] is True and fields["add_eos_token"] is False


@pytest.mark.parametrize(("scheme", "prefixed"), [("first", True), ("always", True), ("never", False)])
def test_a_metaspace_says_whether_a_space_goes_in_front(tmp_path, scheme, prefixed):
    content = {**SENTENCEPIECE, "normalizer": None, "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": scheme}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert written(tmp_path, tmp_path, 12)[0]["add_space_prefix"] is prefixed


def test_unigram(tmp_path):
    vocabulary = [["<unk>", 0.0], ["▁a", -1.5], ["b", -2.25]]
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "AQID"}]}
    content = {"model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary}, "normalizer": normalizer}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    fields, _ = written(tmp_path, tmp_path, 3)
    assert (fields["model"], fields["scores"], fields["token_type"]) == ("t5", [0.0, -1.5, -2.25], [2, 1, 1])
    assert list(fields["precompiled_charsmap"]) == [1, 2, 3]


def proto(unigram):
    pytest.importorskip("google.protobuf")
    from transformers.utils import sentencepiece_model_pb2_new as pb

    model = pb.ModelProto()
    for text, score, kind in [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("▁ä", -1.5, 1), ("<0x0A>", -3.0, 6)]:
        model.pieces.add(piece=text, score=score, type=kind)
    model.trainer_spec.model_type = 1 if unigram else 2
    model.trainer_spec.vocab_size = 4
    model.normalizer_spec.add_dummy_prefix = not unigram
    model.normalizer_spec.precompiled_charsmap = b"\1\2\3" if unigram else b""
    return model.SerializeToString()


@pytest.mark.parametrize("unigram", [True, False])
def test_a_sentencepiece_file(tmp_path, unigram):
    (tmp_path / "tokenizer.model").write_bytes(proto(unigram))
    fields, _ = written(tmp_path, tmp_path, 5, eos=1)
    assert fields["model"] == ("t5" if unigram else "llama")
    assert fields["tokens"] == ["<unk>", "<s>", "▁ä", "<0x0A>", "[PAD4]"]
    assert fields["token_type"] == [2, 3, 1, 6, 5] and fields["scores"][2:4] == [-1.5, -3.0]
    assert fields["add_space_prefix"] is not unigram and fields["eos_token_id"] == 1
    assert ("precompiled_charsmap" in fields) is unigram


def test_a_damaged_sentencepiece_file(tmp_path):
    whole, path = proto(True), tmp_path / "tokenizer.model"
    for content in (whole[:-1], b"\xff" * 20, b"plain text"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="no SentencePiece model"):
            read_model(path)


def test_a_tokenizer_for_another_model(tmp_path):
    byte_level(tmp_path)
    with pytest.raises(DataError, match="no embedding for"):
        written(tmp_path, tmp_path, 300)


def test_a_tokenizer_llama_cpp_has_not(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "WordPiece", "vocab": {}}}))
    with pytest.raises(UsageError, match="WordPiece"):
        written(tmp_path, tmp_path)


def test_a_normalizer_is_noted_and_the_template_kept(tmp_path):
    tokenizer = byte_level(tmp_path)
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "normalizer": {"type": "NFC"}}))
    fields, notes = written(tmp_path, tmp_path)
    assert fields["tokenizer.chat_template"] == "{{ messages }}" and "NFC" in notes[0]
