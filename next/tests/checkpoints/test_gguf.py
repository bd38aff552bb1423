# SPDX-License-Identifier: Apache-2.0
"""Models as GGUF files: names, types, order and values, read back by the gguf library and by transformers."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from fewbit.checkpoints._base import CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._gguf.architecture import ARCHITECTURES, find_architecture
from fewbit.checkpoints._gguf.tokenizer import read_vocabulary
from fewbit.checkpoints._gguf.types import fit_width, preset_type
from fewbit.checkpoints._open import open_weights
from fewbit.checkpoints._verification import write_verified
from fewbit.checkpoints.gguf import CHECKPOINT
from fewbit.errors import ModelError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.scales import ScaleType
from tiny_checkpoints import write_quantized
from tiny_language_models import CHAT_TEMPLATE, LLAMA3_PATTERN, MODELS, byte_level, save, sentencepiece, tiny

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def write(source, folder, preset="", **options):
    """Write a folder's model; returns the open file."""
    folder.mkdir()
    weights = open_weights(source)
    job = CheckpointJob(source, {}, preset=preset, **options)
    files, count = write_verified(CHECKPOINT, folder, (NamedTensor(name, weights.read(name)) for name in weights), job)
    assert count == len(list(weights))
    return gguf.GGUFReader(folder / files[0])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return {name: save(tiny(name), base / name) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_of_every_architecture(folders, tmp_path, name):
    reader = write(folders[name], tmp_path / "out")
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert set(types.values()) == {"F32"}
    kind = reader.get_field("general.architecture").contents()
    config = json.loads((folders[name] / "config.json").read_text())
    assert reader.get_field(f"{kind}.block_count").contents() == config.get("num_hidden_layers", config.get("n_layer"))
    names = gguf.get_tensor_name_map(next(arch for arch, text in gguf.MODEL_ARCH_NAMES.items() if text == kind), 8)
    for source in open_weights(folders[name]):  # our table of names against the library's
        assert names.get_name(source, try_suffixes=(".weight", ".bias")) in types, source
    assert reader.get_field("tokenizer.chat_template").contents() == CHAT_TEMPLATE


def test_rows_of_queries_and_keys_are_pairs(folders, tmp_path):
    """Row 2i and 2i + 1 of a head are rows i and i + half of the model."""
    reader = write(folders["llama-biases"], tmp_path / "out")
    values = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    weights = open_weights(folders["llama-biases"])
    for own, heads in (("q", 4), ("k", 2)):
        weight = weights.read(f"model.layers.1.self_attn.{own}_proj.weight").numpy()
        stored, size = values[f"blk.1.attn_{own}.weight"].reshape(weight.shape), len(weight) // heads
        for row in range(len(weight)):
            head, place = divmod(row, size)
            assert np.array_equal(stored[row], weight[head * size + place // 2 + size // 2 * (place % 2)])


def test_norms_of_gemma_have_one_added(folders, tmp_path):
    reader = write(folders["gemma"], tmp_path / "out")
    norm = next(tensor for tensor in reader.tensors if tensor.name == "output_norm.weight")
    assert np.array_equal(norm.data, open_weights(folders["gemma"]).read("model.norm.weight").numpy() + 1)


def test_frequencies_of_llama_3(folders, tmp_path):
    """Against transformers' own frequencies."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    reader = write(folders["llama-3"], tmp_path / "out")
    factors = next(tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight")
    config = tiny("llama-3").config
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1 / config.rope_parameters["rope_theta"] ** (torch.arange(0, 32, 2).float() / 32)
    assert np.allclose(plain.numpy() / factors, frequencies.numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen2", "qwen3", "gemma2", "phi3", "gpt2"])
def test_transformers_loads_the_same_model(folders, tmp_path, name):
    reader = write(folders[name], tmp_path / "out", "q8_0")
    assert reader is not None
    file = next((tmp_path / "out").glob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float32).eval()
    read = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    values = dict(CHECKPOINT.read(tmp_path / "out"))
    assert values.keys() - read.keys() <= {"lm_head.weight"} and read.keys() <= values.keys() | {"lm_head.weight"}
    for key, value in values.items():
        assert torch.allclose(read[key], value.float(), atol=1e-6, rtol=0), key  # norms of Gemma are rounded twice
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    assert (
        tokenizer("The quick fox")["input_ids"]
        == AutoTokenizer.from_pretrained(folders[name])("The quick fox")["input_ids"]
    )


@pytest.mark.parametrize(
    "preset", ["q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_k_s", "q4_0", "q4_1", "q3_k_m", "q2_k", "fp16", "bf16"]
)
def test_every_preset(tmp_path, preset):
    source = save(tiny("llama", hidden_size=256, intermediate_size=512), tmp_path / "model")
    reader = write(source, tmp_path / "out", preset)
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    base = {"fp16": "F16", "bf16": "BF16"}.get(preset) or "_".join(preset.upper().split("_")[:2])
    assert types["blk.0.ffn_up.weight"] == base and types["blk.0.attn_norm.weight"] == "F32"
    head = {"fp16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}.get(preset, "Q6_K")  # the embedding is the output layer too
    assert types["token_embd.weight"] == head
    number = {"fp16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}.get(preset) or f"MOSTLY_{preset.upper()}"
    assert reader.get_field("general.file_type").contents() == gguf.LlamaFileType[number]
    weights, loaded = open_weights(source), CHECKPOINT.open(tmp_path / "out")
    for name in weights:
        error = (loaded.read(name).float() - weights.read(name)).square().sum() / weights.read(name).square().sum()
        assert float(error) < 0.09, name


def test_types_by_layer_follow_llama_cpp():
    config = tiny("llama", num_hidden_layers=1).config
    config.num_hidden_layers = 32
    types = [preset_type("q4_k_m", f"blk.{layer}.attn_v.weight", config, tied=False) for layer in range(32)]
    assert [n for n, kind in enumerate(types) if kind == "Q6_K"] == [
        0,
        1,
        2,
        3,
        6,
        9,
        12,
        15,
        18,
        21,
        24,
        27,
        28,
        29,
        30,
        31,
    ]
    small = [preset_type("q4_k_s", f"blk.{layer}.ffn_down.weight", config, tied=False) for layer in range(32)]
    assert small == ["Q5_K"] * 4 + ["Q4_K"] * 28
    assert preset_type("q3_k_m", "blk.9.attn_output.weight", config, tied=False) == "Q4_K"
    assert preset_type("q2_k", "blk.9.ffn_down.weight", config, tied=False) == "Q3_K"
    assert preset_type("q4_k_m", "output.weight", config, tied=False) == "Q6_K"
    assert preset_type("q4_k_m", "token_embd.weight", config, tied=False) == "Q4_K"


def test_rows_that_are_no_multiple_of_256():
    assert [fit_width(kind, 576) for kind in ("Q2_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0")] == [
        "Q4_0",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q8_0",
    ]
    assert fit_width("Q4_K", 40) == "F16" and fit_width("BF16", 40) == "BF16"


@pytest.mark.parametrize("asymmetric", [False, True])
def test_integers_of_a_model_are_kept(folders, tmp_path, asymmetric):
    dtype = Dtype.uint4 if asymmetric else Dtype.int4
    grid = QuantizationGrid(
        dtype, QSchemeType.per_group, group_size=32, symmetric=not asymmetric, scale_type=ScaleType.bfloat16
    )
    assert CHECKPOINT.refusal(LayerFormat(grid), (64, 64)) is None
    values = write_quantized(folders["llama"], tmp_path / "out", CHECKPOINT, LayerFormat(grid))
    weights = CHECKPOINT.open(tmp_path / "out")
    assert all(torch.equal(weights.read(name).float(), value) for name, value in values.items())
    name = "model.layers.0.self_attn.q_proj.weight"
    assert weights.headers[name]["type"] == ("Q4_1" if asymmetric else "Q4_0") and weights.quantized(name)
    if not asymmetric:
        assert torch.equal(weights.qtensor(name).dequantize(), values[name])
    assert list((tmp_path / "out").glob("*-q4_?.gguf"))


def test_integers_of_gpt2_are_transposed(folders, tmp_path):
    grid = QuantizationGrid(Dtype.int4, QSchemeType.per_group, axis=1, group_size=32, scale_type=ScaleType.bfloat16)
    source, out = folders["gpt2"], tmp_path / "out"
    out.mkdir()
    from fewbit.algorithms._base import LayerProblem
    from fewbit.algorithms.rtn import ALGORITHM

    weights, tensors, layers = open_weights(source), [], {}
    for name in weights:
        value = weights.read(name)
        if "c_attn.weight" in name:
            layer = name.removesuffix(".weight")
            value, layers[layer] = ALGORITHM.quantize(LayerProblem(layer, value, grid)), LayerFormat(grid)
        tensors.append(NamedTensor(name, value, name.removesuffix(".weight")))
    write_verified(CHECKPOINT, out, tensors, CheckpointJob(source, layers))
    stored = CHECKPOINT.open(out)
    name = "transformer.h.0.attn.c_attn.weight"
    assert stored.shape(name) == (64, 192) and stored.headers[name]["type"] == "Q4_0"
    assert torch.equal(stored.qtensor(name).dequantize(), stored.read(name))


def test_what_it_cannot_hold():
    group = QuantizationGrid(Dtype.int4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float16)
    says = CHECKPOINT.refusal
    assert says(LayerFormat(group), (64, 64)) is None
    assert "nf4" in says(LayerFormat(group.replace(dtype=Dtype.nf4)))
    assert "groups of 16" in says(LayerFormat(group.replace(group_size=16)))
    assert "does not fit" in says(LayerFormat(group), (64, 40))
    assert "activations" in says(LayerFormat(group, group))
    assert "8 bits with zero points" in says(LayerFormat(group.replace(dtype=Dtype.uint8, symmetric=False)))
    wide = LayerFormat(group.replace(scale_type=ScaleType.float32))
    assert "float32" in says(wide) and says(CHECKPOINT.adapt(wide)) is None


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"hidden_act": "relu"}, "'relu'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "'dynamic'"),
    ],
)
def test_what_llama_cpp_computes_differently_is_refused(changes, reason):
    with pytest.raises(ModelError, match=reason):
        find_architecture(tiny("llama", **changes).config)


def test_other_scales_windows_and_architectures_are_refused():
    layers = ["full_attention", "sliding_attention"]
    with pytest.raises(ModelError, match=r"scaled by 64.*one of 2"):
        find_architecture(tiny("gemma2", query_pre_attn_scalar=64, layer_types=layers).config)
    from transformers import OPTConfig

    with pytest.raises(ModelError, match="'opt'"):
        find_architecture(OPTConfig())
    assert set(ARCHITECTURES) >= {
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "phi3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
    }


def test_tensors_without_a_place_are_named_before_anything_is_written(folders, tmp_path):
    from safetensors.torch import save_file

    from tiny_checkpoints import read_tensors

    source = save(tiny("llama"), tmp_path / "model")
    tensors = read_tensors(source) | {"mtp.proj.weight": torch.ones(4, 4)}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="no place for 1") as error:
        CHECKPOINT.check(CheckpointJob(source, {}))
    assert error.value.where == "mtp.proj.weight"
    old = tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    del old["mtp.proj.weight"]
    save_file(old, source / "model.safetensors", metadata={"format": "pt"})
    CHECKPOINT.check(CheckpointJob(source, {}))  # llama.cpp computes that buffer


def test_tokenizers(tmp_path):
    byte_level(tmp_path / "plain")
    byte_level(tmp_path / "digits", digits=True)
    byte_level(tmp_path / "llama3", pattern=LLAMA3_PATTERN)
    byte_level(tmp_path / "qwen2", pattern=LLAMA3_PATTERN.replace("{1,3}", ""))
    names = {folder: read_vocabulary(tmp_path / folder).pre for folder in ("plain", "digits", "llama3", "qwen2")}
    assert names == {"plain": "gpt-2", "digits": "smollm", "llama3": "dbrx", "qwen2": "qwen2"}
    content = json.loads((tmp_path / "llama3/tokenizer.json").read_text())
    content["model"]["ignore_merges"] = True
    (tmp_path / "llama3/tokenizer.json").write_text(json.dumps(content))
    assert read_vocabulary(tmp_path / "llama3").pre == "llama-bpe"
    byte_level(tmp_path / "other", pattern=r"\w+")
    with pytest.raises(ModelError, match="divides text by"):
        read_vocabulary(tmp_path / "other")
    sentencepiece(tmp_path / "pieces")
    vocabulary = read_vocabulary(tmp_path / "pieces")
    assert vocabulary.model == "llama" and vocabulary.space_prefix and vocabulary.types[0] == 2
    assert vocabulary.types[3] == 6 and max(vocabulary.scores.values()) == 0
    assert read_vocabulary(tmp_path) is None


def test_tokens_without_an_embedding_are_refused(tmp_path):
    source = save(tiny("llama", vocab_size=300), tmp_path / "model")
    with pytest.raises(ModelError, match="no embedding"):
        write(source, tmp_path / "out")


def test_a_vocabulary_with_spare_rows_is_filled(tmp_path):
    source = save(tiny("llama", vocab_size=352), tmp_path / "phi3-like")
    reader = write(source, tmp_path / "out")
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    assert (
        len(tokens) == 352
        and tokens[-1] == "[PAD351]"
        and reader.get_field("tokenizer.ggml.token_type").contents()[-1] == 5
    )
    assert reader.get_field("general.name").contents() == "model"  # llama.cpp takes phi3 in a name for a promise


def test_another_file_as_source(folders, tmp_path):
    """The same tokenizer and values, whatever the types."""
    write(folders["llama"], tmp_path / "one", "q8_0")
    file = next((tmp_path / "one").glob("*.gguf"))
    first = CHECKPOINT.open(file)
    again = write(file, tmp_path / "two", "q4_0")
    second = CHECKPOINT.open(tmp_path / "two")
    assert list(second) == list(first)
    assert (
        again.get_field("tokenizer.ggml.merges").contents()
        == gguf.GGUFReader(file).get_field("tokenizer.ggml.merges").contents()
    )


def test_a_damaged_file(folders, tmp_path):
    write(folders["llama"], tmp_path / "out")
    file = next((tmp_path / "out").glob("*.gguf"))
    (tmp_path / "cut.gguf").write_bytes(file.read_bytes()[:20000])
    with pytest.raises(ModelError):
        CHECKPOINT.open(tmp_path / "cut.gguf").read("model.norm.weight")
    (tmp_path / "no.gguf").write_bytes(b"nothing at all" * 10)
    with pytest.raises(ModelError, match="not a GGUF file"):
        CHECKPOINT.open(tmp_path / "no.gguf")


@pytest.mark.parametrize("factor", [1e-7, 1e8])
def test_weights_that_float16_scales_cannot_hold_are_refused(tmp_path, factor):
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight *= factor
    source = save(model, tmp_path / "model")
    with pytest.raises(ModelError, match="float16") as error:
        write(source, tmp_path / "out", "q4_0")
    assert error.value.where == "model.layers.1.mlp.up_proj.weight"
