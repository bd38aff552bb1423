# SPDX-License-Identifier: Apache-2.0
"""`export` keeps every value, or says why it cannot; `load` gives a model that computes with them."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import fewbit
from fewbit.checkpoints import safetensors
from fewbit.checkpoints._base import LayerFormat
from fewbit.checkpoints._convert import express
from fewbit.checkpoints._open import open_weights
from fewbit.errors import FewbitError, ModelError, UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType
from tiny_checkpoints import read_tensors, write_quantized
from tiny_language_models import save, tiny

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
GROUP = QSchemeType.per_group
GRIDS = {
    "int4": QuantizationGrid(Dtype.int4, GROUP, group_size=32, full_range=True, scale_type=ScaleType.bfloat16),
    "uint4": QuantizationGrid(Dtype.uint4, GROUP, group_size=32, symmetric=False, scale_type=ScaleType.bfloat16),
    "int8": QuantizationGrid(Dtype.int8, GROUP, group_size=64, scale_type=ScaleType.bfloat16),
    "nf4": QuantizationGrid(Dtype.nf4, GROUP, group_size=64, scale_type=ScaleType.bfloat16),
    "fp8": QuantizationGrid(Dtype.fp8_e4m3, QSchemeType.per_channel),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A float model, and the same quantized in fewbit's own folder by grid, with the values of every tensor."""
    base = tmp_path_factory.mktemp("sources")
    model = save(tiny("llama").bfloat16(), base / "model")
    values = {}
    for name, grid in GRIDS.items():
        values[name] = write_quantized(model, base / name, safetensors.CHECKPOINT, LayerFormat(grid))
    return base, values


def opened(path):
    return open_weights(next(path.glob("*.gguf"), path))


@pytest.mark.parametrize(
    "grid,formats",
    [
        ("int4", ["gptq", "awq", "compressed-tensors", "safetensors", "gguf", "gptq"]),
        ("uint4", ["awq", "compressed_tensors", "awq", "gguf"]),
        ("int8", ["gptq", "compressed-tensors", "gguf", "gptq"]),
        ("fp8", ["compressed-tensors", "safetensors"]),
    ],
)
def test_conversions_are_exact(sources, tmp_path, grid, formats):
    base, values = sources
    path = base / grid
    for index, name in enumerate(formats):
        path = next(path.glob("*.gguf"), path)
        path, record = fewbit.export(path, tmp_path / f"{index}-{name}", format=name, return_record=True)
        weights = opened(path)
        assert set(weights) == set(values[grid])
        for key, value in values[grid].items():
            assert torch.equal(weights.read(key).float(), value.float()), (name, key)
        assert record.summary.startswith("exact: 14 quantized weights") and record.verdict is None
        assert record.verification["tensors"] == len(values[grid])
        assert (path / "record.json").is_file() and record.size["result"] > 0


def test_the_tokenizer_travels_along(sources, tmp_path):
    from transformers import AutoTokenizer

    base, _ = sources
    path = fewbit.export(base / "int4", tmp_path / "out", format="gguf")
    folder = fewbit.export(next(path.glob("*.gguf")), tmp_path / "back", format="gptq")
    text = "The quick brown fox"
    assert (
        AutoTokenizer.from_pretrained(folder)(text)["input_ids"]
        == AutoTokenizer.from_pretrained(base / "model")(text)["input_ids"]
    )
    config = json.loads((folder / "config.json").read_text())
    assert config["hidden_size"] == 64 and config["quantization_config"]["quant_method"] == "gptq"


@pytest.mark.parametrize(
    "grid,name,reason",
    [("nf4", "gptq", "nf4"), ("uint4", "gptq", "zero points"), ("int8", "awq", "4 bits"), ("fp8", "gguf", "fp8")],
)
def test_what_would_lose_precision_is_refused_and_measured_on_request(sources, tmp_path, grid, name, reason):
    base, values = sources
    with pytest.raises(UsageError, match=reason) as error:
        fewbit.export(base / grid, tmp_path / "out", format=name)
    assert error.value.code == "export-lossy" and not (tmp_path / "out").exists()
    path, record = fewbit.export(base / grid, tmp_path / "out", format=name, requantize=True, return_record=True)
    weights = opened(path)
    assert record.verdict == "not-measured" and "rounded anew, weight error" in record.summary
    for key, value in values[grid].items():
        read, wanted = weights.read(key).float(), value.float()
        if not key.endswith("proj.weight"):
            assert torch.equal(read, wanted), key
            continue
        error = float((read - wanted).square().sum() / wanted.square().sum())
        row = next(row for row in record.layers if row["name"] == key.removesuffix(".weight"))
        assert row["weight_error"] == pytest.approx(error, rel=1e-3, abs=1e-9) and 0 < error < 0.02
        assert not row["exact"] and reason in row["reason"]


def test_a_float_model_stays_float(sources, tmp_path):
    base, _ = sources
    tensors = read_tensors(base / "model")
    for name in ("gguf", "safetensors"):
        weights = opened(fewbit.export(base / "model", tmp_path / name, format=name))
        assert all(torch.equal(weights.read(key).float(), value.float()) for key, value in tensors.items())
    with pytest.raises(UsageError, match="these are float"):
        fewbit.export(base / "model", tmp_path / "gptq", format="gptq")


def test_one_file_several_formats_and_targets(sources, tmp_path):
    base, _ = sources
    file = fewbit.export(base / "int4", tmp_path / "small.gguf")
    assert file.is_file() and (tmp_path / "small.record.json").is_file()
    folder = fewbit.export(base / "int4", tmp_path / "both", format=["awq", "gguf"])
    assert (
        (folder / "awq/config.json").is_file()
        and list((folder / "gguf").glob("*.gguf"))
        and (folder / "record.json").is_file()
    )
    vllm = fewbit.export(base / "int4", tmp_path / "vllm", target="vllm")
    assert open_weights(vllm).settings["quant_method"] == "compressed-tensors"
    with pytest.raises(UsageError, match="does not load"):
        fewbit.export(base / "int4", tmp_path / "no", target="vllm", format="gguf")
    with pytest.raises(UsageError, match="exists"):
        fewbit.export(base / "int4", vllm)
    with pytest.raises(FewbitError, match="no checkpoint"):
        fewbit.export(base / "int4", tmp_path / "no", format="gqtp")
    with pytest.raises(UsageError, match="there is no"):
        fewbit.export(tmp_path / "missing", tmp_path / "no")
    with pytest.raises(UsageError, match="has no data= yet"):
        fewbit.export(base / "int4", tmp_path / "no", data=[1])


def test_other_grids_for_the_same_values():
    grid = QuantizationGrid(Dtype.int4, GROUP, group_size=4, scale_type=ScaleType.float32)
    tensor = QTensor.encode(torch.tensor([[1.0, -3.0, 0.0, 2.0]]), QParams(grid, (1, 4), torch.tensor([[0.5]])))
    unsigned = express(tensor, grid.replace(dtype=Dtype.uint4, symmetric=False, scale_type=ScaleType.bfloat16))
    assert unsigned.codes().tolist() == [[10, 2, 8, 12]] and unsigned.zero_point.tolist() == [[8]]
    assert torch.equal(express(unsigned, grid).dequantize(), tensor.dequantize())
    third = QTensor.encode(tensor.dequantize(), QParams(grid, (1, 4), torch.tensor([[1 / 3]])))
    assert express(third, grid.replace(scale_type=ScaleType.float16)) is None


@pytest.mark.parametrize("name", ["safetensors", "compressed-tensors", "gptq", "awq", "gguf"])
@pytest.mark.parametrize("freeze", [False, True])
def test_loaded_models_compute_with_these_weights(sources, tmp_path, name, freeze):
    base, values = sources
    path = fewbit.export(base / "int4", tmp_path / "out", format=name)
    loaded = fewbit.load(next(path.glob("*.gguf"), path), freeze=freeze)
    expected = AutoModelForCausalLM.from_pretrained(base / "model", dtype=torch.float32)
    expected.load_state_dict({key: value.float() for key, value in values["int4"].items()}, strict=False)
    ids = torch.arange(1, 25).reshape(2, 12)
    with torch.no_grad():
        logits, wanted = loaded(ids).logits.float(), expected(ids).logits
    assert float((logits - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
    assert "Quantized" in type(loaded.model.layers[0].mlp.up_proj).__name__
    packed = sum(buffer.nbytes for buffer in loaded.model.layers[0].mlp.buffers())
    assert freeze or packed < 0.6 * 64 * 128 * 3


def test_a_checkpoint_that_does_not_fit_its_configuration(sources, tmp_path):
    base, _ = sources
    path = fewbit.export(base / "int4", tmp_path / "out", format="safetensors")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"missing: model\.layers\.2"):
        fewbit.load(path)
    (path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(ModelError, match=r"no place for model\.layers\.1"):
        fewbit.load(path)


def test_types_without_integers_become_floats_in_our_own_folder(sources, tmp_path):
    """Q4_1 and K types have no form of fewbit; their values do."""
    base, _ = sources
    file = fewbit.quantize(base / "model", preset="q4_1", output=tmp_path / "q4_1")
    file = next(file.glob("*.gguf"))
    with pytest.raises(UsageError, match="no such form"):
        fewbit.export(file, tmp_path / "no", format="gptq")
    path, record = fewbit.export(file, tmp_path / "own", format="safetensors", return_record=True)
    before, after = open_weights(file), open_weights(path)
    assert all(torch.equal(before.read(key).float(), after.read(key).float()) for key in before)
    assert "as float" in record.summary
