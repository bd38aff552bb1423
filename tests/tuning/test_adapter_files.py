# SPDX-License-Identifier: Apache-2.0
"""`merge=False` writes adapters that peft and transformers load, and that give the trained model's outputs."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fewbit
from fewbit.record import Record
from fewbit.tuning.loop import Loop
from sparse_examples import decoder, encoder, pairs, rated, with_zeros

peft = pytest.importorskip("peft")
pytest.importorskip("accelerate")

RUN = {"lr": 2e-2, "max_steps": 4, "batch_size": 4, "device": "cpu", "tensorboard": False, "seed": 3, "rank": 4}
IDS = torch.arange(10, 26).reshape(2, 8)


def _logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


def _close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["lora", "dora"])
def test_peft_and_transformers_load_what_was_trained(tmp_path, method):
    import transformers

    base, data = decoder(tmp_path / "base"), pairs(tmp_path / "pairs.jsonl")
    trained = fewbit.finetune(base, data, method=method, merge=False, output=tmp_path / "out", **RUN)
    merged = fewbit.finetune(base, data, method=method, merge=True, **RUN)
    dense = transformers.AutoModelForCausalLM.from_pretrained(base)
    assert (_logits(dense) - _logits(merged)).abs().max() > 1e-2  # something was learned
    folder = tmp_path / "out"
    names = {path.name for path in folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert not {"config.json", "model.safetensors"} & names
    config = json.loads((folder / "adapter_config.json").read_bytes())
    assert config["base_model_name_or_path"] == str(base.resolve()) and config["task_type"] == "CAUSAL_LM"
    assert config["target_modules"] == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip
    loaded = peft.PeftModel.from_pretrained(dense, folder)
    _close(_logits(loaded), _logits(trained))
    _close(_logits(loaded), _logits(merged))
    if method == "lora":  # transformers 5 does not read the names that peft gives DoRA's magnitudes
        _close(_logits(transformers.AutoModelForCausalLM.from_pretrained(folder)), _logits(merged))
    _close(_logits(peft.AutoPeftModelForCausalLM.from_pretrained(folder)), _logits(merged))
    assert transformers.AutoTokenizer.from_pretrained(folder)("w12 w13")["input_ids"]
    record = Record.from_json((folder / "record.json").read_bytes())
    assert record.facts["written_as"] == "peft"
    assert any("PeftModel.from_pretrained" in line["reason"] for line in record.lines)


def test_a_folder_of_adapters_is_refused_with_what_reads_it(tmp_path):
    base = decoder(tmp_path / "base")
    folder = tmp_path / "out"
    fewbit.finetune(base, pairs(tmp_path / "pairs.jsonl"), method="lora", merge=False, output=folder, **RUN)
    for call in (lambda: fewbit.load(folder), lambda: fewbit.compress_weights(folder)):
        with pytest.raises(fewbit.UsageError, match="LoRA adapters in peft's layout") as error:
            call()
        assert "peft.PeftModel.from_pretrained" in error.value.try_ and str(base) in error.value.expected


def test_the_head_that_was_trained_is_saved_with_the_adapters(tmp_path):
    import transformers

    base, data = encoder(tmp_path / "base", num_labels=3), rated(tmp_path / "rated.jsonl")
    run = RUN | {"merge": False, "validation": False}
    trained = fewbit.finetune(base, data, method="lora", output=tmp_path / "out", **run)
    dense = transformers.AutoModelForSequenceClassification.from_pretrained(base)
    assert not torch.equal(trained.classifier.weight, dense.classifier.weight)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_bytes())
    assert config["modules_to_save"] == ["classifier"]
    loaded = peft.PeftModel.from_pretrained(dense, tmp_path / "out")
    _close(_logits(loaded), _logits(trained))


def _network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )


def test_a_plain_module_has_the_same_layout_statistics_of_batch_norm_included(tmp_path):
    torch.manual_seed(1)
    x = torch.randn(64, 8) * 3 + 1
    loader = DataLoader(TensorDataset(x, torch.arange(64) % 3), batch_size=16)
    run = RUN | {"task": "sequence_classification", "method": "lora", "merge": False, "validation": False}
    run.pop("batch_size")
    trained = fewbit.finetune(_network(), loader, output=tmp_path / "out", **run)
    loaded = peft.PeftModel.from_pretrained(_network(), tmp_path / "out").eval()
    assert not torch.equal(trained[1].running_mean, _network()[1].running_mean)
    with torch.no_grad():
        _close(loaded(x), trained(x))
        assert not torch.allclose(loaded(x), _network().eval()(x), atol=1e-3)


def test_adapters_over_quantized_layers_are_loaded_onto_the_quantized_model(tmp_path):
    base, data = decoder(tmp_path / "base"), pairs(tmp_path / "pairs.jsonl")
    small = fewbit.compress_weights(base, mode="int4_sym", group_size=16, output=tmp_path / "small")
    trained = fewbit.finetune(small, data, method="lora", merge=False, output=tmp_path / "out", **RUN)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_bytes())
    assert config["base_model_name_or_path"] == str((tmp_path / "small").resolve())
    quantized = fewbit.load(small)
    before = _logits(quantized)
    loaded = peft.PeftModel.from_pretrained(quantized, tmp_path / "out")
    assert (_logits(loaded) - before).abs().max() > 1e-2
    _close(_logits(loaded), _logits(trained))


def test_adapters_that_peft_cannot_hold_are_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(Loop, "run", lambda loop: pytest.fail("training began"))
    import transformers

    model = with_zeros(transformers.AutoModelForCausalLM.from_pretrained(decoder(tmp_path / "base")))
    data = pairs(tmp_path / "pairs.jsonl")
    with pytest.raises(fewbit.UsageError, match="a peft adapter cannot hold a mask"):
        fewbit.finetune(model, data, method="lora", merge=False, output=tmp_path / "out", **RUN)
    assert not (tmp_path / "out").exists()
