# SPDX-License-Identifier: Apache-2.0
"""A checkpoint compressed file to file is, byte for byte, what compressing and exporting its model gives."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from fewbit import IgnoredScope, compress_weights
from fewbit.data.findings import Progress
from fewbit.engine import checkpoint_pieces
from fewbit.engine.checkpoint import compress_checkpoint
from fewbit.engine.checkpoint_ahead import Ahead
from fewbit.engine.checkpoint_names import NeedsModel
from fewbit.engine.delivering import export
from fewbit.errors import DataError, UsageError
from fewbit.exporters import _compressed_codes
from fewbit.modules import manifest
from tiny_models import shaken

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96,
}  # fmt: skip
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "qwen": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=False)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=96)),
}
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(checkpoint_pieces, "_ELEMENTS", 1000)


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Folders of tiny models, in several files each, with a tokenizer's file."""
    made = {}

    def folder(name, dtype=torch.bfloat16):
        if (name, dtype) not in made:
            torch.manual_seed(0)
            place = tmp_path_factory.mktemp(name)
            shaken(MODELS[name]()).to(dtype).save_pretrained(place, max_shard_size="60KB")
            assert len(list(place.glob("*.safetensors"))) > 1
            (place / "tokenizer.json").write_text("{}")
            made[name, dtype] = place
        return made[name, dtype]

    return folder


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("model*.safetensors")):
        found |= load_file(path)
    return found


def rewritten(folder, target, change):
    """A copy of a checkpoint in one file, its tensors changed."""
    target.mkdir()
    for name in ("config.json", "generation_config.json"):
        (target / name).write_bytes((folder / name).read_bytes())
    held = tensors(folder)
    change(held)
    save_file(held, target / "model.safetensors", metadata={"format": "pt"})
    return target


def both(source, tmp_path, *, format="compressed_tensors", **options):
    """What the model gives, and what its files give."""
    made = compress_weights(str(source), **options)
    return export(made, tmp_path / "model", format=format), compress_checkpoint(
        source, tmp_path / "files", format=format, **options
    )


def assert_same(one, other):
    """The same files, byte by byte, but for times and what is measured on a part only."""
    names = manifest.files(one)
    assert names == manifest.files(other) and "tokenizer.json" in names
    apart = [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]
    assert set(apart) <= {"fewbit.json", "record.json"}
    first, second = (manifest.read(folder) for folder in (one, other))
    for each in (first, second):
        assert each.pop("files")
    assert first == second


CASES = {
    "int4": ("llama", "compressed_tensors", {"mode": "int4_sym", "group_size": 32, "algorithm": "rtn"}),
    "searched": ("llama", "compressed_tensors", {"mode": "int4_asym", "group_size": 32}),
    "tied": ("tied", "compressed_tensors", {"mode": "int4_sym", "group_size": 32, "algorithm": "rtn"}),
    "all layers": ("qwen", "compressed_tensors", {"mode": "int4_sym", "group_size": 32, "all_layers": True}),
    "rows": ("qwen", "compressed_tensors", {"mode": "int8_asym", "algorithm": "rtn"}),
    "fp8": ("llama", "compressed_tensors", {"mode": "fp8_e4m3"}),
    "mxfp4": ("qwen", "compressed_tensors", {"mode": "mxfp4"}),
    "nvfp4": ("qwen", "compressed_tensors", {"mode": "nvfp4"}),
    "experts": ("mixtral", "compressed_tensors", {"mode": "int4_sym", "group_size": 32, "algorithm": "rtn"}),
    "gptq": ("qwen", "gptq", {"mode": "int4_sym", "group_size": 32, "algorithm": "rtn"}),
    "awq": ("tied", "awq", {"mode": "int4_asym", "group_size": 32, "algorithm": "rtn"}),
}


@pytest.mark.parametrize("case", CASES)
def test_files_become_what_the_model_becomes(case, saved, tmp_path):
    name, format, options = CASES[case]
    assert_same(*both(saved(name), tmp_path, format=format, **options))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_in_every_dtype(dtype, saved, tmp_path):
    assert_same(*both(saved("llama", dtype), tmp_path, mode="int4_sym", group_size=32, algorithm="rtn"))


def test_layers_are_left_out_by_name(saved, tmp_path):
    scope = IgnoredScope(patterns=[r".*layers\.0\..*"])
    one, other = both(saved("llama"), tmp_path, mode="int4_sym", group_size=32, algorithm="rtn", ignored_scope=scope)
    assert_same(one, other)
    assert DOWN in tensors(other)


def test_the_record_is_the_one_of_a_run(saved, tmp_path):
    one, other = both(saved("llama"), tmp_path, mode="int4_asym", group_size=32)
    first, second = (json.loads((folder / "record.json").read_bytes()) for folder in (one, other))
    assert first["facts"] == second["facts"]
    lines = [[line for line in each["lines"] if line["what"] != "kernel"] for each in (first, second)]
    for ours, theirs in zip(*lines, strict=True):
        assert ours.pop("error", 0) == pytest.approx(theirs.pop("error", 0), rel=1e-3)
        assert ours.pop("error_rtn", 0) == pytest.approx(theirs.pop("error_rtn", 0), rel=1e-3)
        assert ours.pop("won", {}) == pytest.approx(theirs.pop("won", {}))
        assert ours == theirs


def test_what_plain_rounding_loses_is_measured_on_some_rows(saved, tmp_path):
    out = compress_checkpoint(saved("llama"), tmp_path / "out", mode="int4_sym", group_size=32, algorithm="rtn")
    line = next(each for each in json.loads((out / "record.json").read_bytes())["lines"] if each["where"] == DOWN)
    assert line["what"] == "quantized" and 0 < line["error"] < 0.1 and line["rows"] < 64


def test_transformers_reads_it(saved, tmp_path):
    pytest.importorskip("compressed_tensors")
    source = saved("llama")
    out = compress_checkpoint(source, tmp_path / "out", mode="int4_sym", group_size=32)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        found = LlamaForCausalLM.from_pretrained(out, dtype=torch.bfloat16)(ids).logits.float()
        ours = compress_weights(str(source), mode="int4_sym", group_size=32)
        wanted = ours(ids).logits.float()
        plain = LlamaForCausalLM.from_pretrained(source, dtype=torch.bfloat16)(ids).logits.float()
    assert (found - wanted).norm() < 0.1 * (plain - wanted).norm()


def test_scales_whose_values_decide_their_dtype(saved, tmp_path):
    """Zeros have the scale one, which bfloat16 holds; others of eight bits are float32: that shows while writing."""

    def change(held):
        held[DOWN].zero_()

    source = rewritten(saved("llama"), tmp_path / "in", change)
    (source / "tokenizer.json").write_text("{}")
    one, other = both(source, tmp_path, mode="int8_asym", algorithm="rtn")
    assert_same(one, other)
    kinds = {tensor.dtype for name, tensor in tensors(other).items() if name.endswith("weight_scale")}
    assert kinds == {torch.bfloat16, torch.float32}


def test_weights_that_would_be_lost_stay_in_float(saved, tmp_path):
    """One large element in each row, and small ones that two bits make zeros of."""

    def change(held):
        held[DOWN].fill_(0.25)[:, 0] = 1.9
        held[DOWN.replace("0", "1")].sign_()

    source = rewritten(saved("llama"), tmp_path / "in", change)
    (source / "tokenizer.json").write_text("{}")
    options = {"mode": "int2_sym", "group_size": -1, "algorithm": "rtn"}
    scope = IgnoredScope(patterns=[r".*(self_attn|gate|up).*"])
    one, other = both(source, tmp_path, ignored_scope=scope, **options)
    assert_same(one, other)
    lines = json.loads((other / "record.json").read_bytes())["lines"]
    assert [line["where"] for line in lines if "would lose" in line["reason"]] == [DOWN]
    assert torch.equal(tensors(other)[DOWN], tensors(source)[DOWN])


def test_interrupted_it_leaves_nothing(saved, tmp_path):
    class Stop(Progress):
        def advance(self, label, done, total):
            if done == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compress_checkpoint(saved("llama"), tmp_path / "out", mode="int4_sym", group_size=32, progress=Stop())
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_packing_is_found(saved, tmp_path, monkeypatch):
    real = _compressed_codes._packed_codes

    def wrong(weight):
        return real(weight).flip(0)

    monkeypatch.setattr(_compressed_codes, "_packed_codes", wrong)
    with pytest.raises(DataError, match="not what the model holds"):
        compress_checkpoint(saved("llama"), tmp_path / "out", mode="int4_sym", group_size=32)
    assert list(tmp_path.iterdir()) == []


def drop(held):
    del held[DOWN]


def cast(held):
    held["model.norm.weight"] = held["model.norm.weight"].float()


def not_finite(held):
    held[DOWN][3, 5] = float("nan")


def tied_twice(held):
    held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()


def old_names(held):
    for name in list(held):
        held[name.removeprefix("model.")] = held.pop(name)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (drop, UsageError, "1 tensors are not in the files.*down_proj"),
        (cast, UsageError, r"model.norm.weight \(float32 \[64\]\)"),
        (old_names, UsageError, "tensors are not in the files.*and 11 more"),
        (not_finite, DataError, "1 of 960 values of the weight are not finite, the first at .3, 5.(.|\n)*from row 0"),
    ],
)
def test_files_that_are_not_the_models_are_refused(change, error, said, saved, tmp_path):
    source = rewritten(saved("llama"), tmp_path / "in", change)
    with pytest.raises(error, match=said):
        compress_checkpoint(source, tmp_path / "out", mode="int4_sym", group_size=32, algorithm="rtn")
    assert not (tmp_path / "out").exists()


def test_tensors_without_a_place_are_copied_and_tied_ones_refused(saved, tmp_path):
    source = rewritten(saved("tied"), tmp_path / "in", lambda held: held.update(extra=torch.arange(3.0)))
    out = compress_checkpoint(source, tmp_path / "out", mode="int4_sym", group_size=32, algorithm="rtn")
    lines = json.loads((out / "record.json").read_bytes())["lines"]
    assert [line["where"] for line in lines if line["what"] == "copied"] == ["extra"]
    assert torch.equal(tensors(out)["extra"], torch.arange(3.0))
    source = rewritten(saved("tied"), tmp_path / "twice", tied_twice)
    with pytest.raises(NeedsModel, match="shares with another"):
        compress_checkpoint(source, tmp_path / "none", mode="int4_sym", group_size=32, algorithm="rtn")


def test_experts_some_of_which_are_zeros(saved, tmp_path):
    """Their scales are kept in another dtype than those of the other experts, which one stack cannot say."""

    def change(held):
        name = next(name for name in held if name.endswith("experts.1.w2.weight"))
        held[name].zero_()

    source = rewritten(saved("mixtral"), tmp_path / "in", change)
    with pytest.raises(NeedsModel, match="scales of one stack in two dtypes"):
        compress_checkpoint(source, tmp_path / "out", mode="fp8_e4m3", algorithm="rtn")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "gguf"}, "not written file to file(.|\n)*awq, compressed_tensors, gptq"),
        ({"algorithm": "gptq"}, "algorithm='gptq' without data"),
        ({"shard_bytes": 0}, "shard_bytes"),
        ({"group_size": 16}, "groups of 16: vLLM"),
        ({"format": "awq", "mode": "int8_asym"}, "8-bit codes"),
    ],
)
def test_what_cannot_be_done_is_said_first(options, said, saved, tmp_path):
    with pytest.raises(UsageError, match=said):
        compress_checkpoint(saved("llama"), tmp_path / "out", **{"mode": "int4_sym", **options})
    assert list(tmp_path.iterdir()) == []


def test_layouts_that_a_checkpoint_has_otherwise_are_refused(saved, tmp_path):
    with pytest.raises(UsageError, match="not in the files as the model has them"):
        compress_checkpoint(saved("gpt2"), tmp_path / "out", mode="int4_sym", group_size=32, format="gptq")
    with pytest.raises(UsageError, match="weight of a Conv1D"):
        compress_checkpoint(saved("gpt2"), tmp_path / "out", mode="int4_sym", group_size=32)


def test_folders_that_are_none(tmp_path, saved):
    with pytest.raises(UsageError, match="no weights here"):
        compress_checkpoint(tmp_path, tmp_path / "out", mode="int4_sym")
    done = compress_checkpoint(saved("llama"), tmp_path / "done", mode="int4_sym", group_size=32)
    with pytest.raises(UsageError, match="quantized already"):
        compress_checkpoint(done, tmp_path / "out", mode="int4_sym")
    with pytest.raises(UsageError, match="is not empty"):
        compress_checkpoint(saved("llama"), done, mode="int4_sym", group_size=32)
    again = compress_checkpoint(saved("llama"), done, mode="int4_sym", group_size=32, overwrite=True, shard_bytes=20000)
    names = {path.name for path in again.glob("model*.safetensors")}
    index = json.loads((again / "model.safetensors.index.json").read_bytes())["weight_map"]
    assert len(names) > 1 and set(index.values()) == names
    for name, file in index.items():
        with safe_open(Path(again) / file, framework="pt") as opened:
            assert name in opened.keys()  # noqa: SIM118  a handle is no mapping


def test_results_come_in_order_and_errors_where_they_are():
    def fail():
        raise ValueError("third")

    with Ahead([lambda: 1, lambda: 2, fail, lambda: 4], threads=2) as results:
        assert [results.take(), results.take()] == [1, 2]
        with pytest.raises(ValueError, match="third"):
            results.take()
        assert results.take() == 4


def test_compress_weights_goes_this_way_by_itself(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("fewbit.engine.verbs.view_of", lambda model: pytest.fail("the model was opened"))
    made = compress_weights(saved("llama"), mode="int4_sym", group_size=32, output=tmp_path / "o", format="gptq")
    assert made == tmp_path / "o" and (made / "config.json").is_file()
