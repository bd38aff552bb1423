# SPDX-License-Identifier: Apache-2.0
"""A run that quantizes nothing is an error."""

import pytest
import torch
from torch import nn

import fewbit
from fewbit.errors import UsageError
from quantized_models import mlp, numbers

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, when a traced module is copied


def exported():
    return torch.export.export(mlp(), (numbers(2, 40),)).module()


def data(count=6):
    return [numbers(2, 40) + i for i in range(count)]


@pytest.mark.parametrize(
    "run",
    [
        lambda model: fewbit.quantize(model, data()),
        lambda model: fewbit.quantize(model, preset="w8a8_dynamic"),
        lambda model: fewbit.compress_weights(model),
        lambda model: fewbit.compress_weights(model, mode="int4_sym", dataset=data()),
        lambda model: fewbit.compress_weights(model, bits=4.5, dataset=data()),
        lambda model: fewbit.ModelQuantizer("w4a16").quantize_model(model),
        lambda model: fewbit.ModelQuantizer("w8a8").quantize_model(model, data()),
    ],
)
def test_an_exported_module_is_refused(run):
    with pytest.raises(UsageError, match=r"nothing to quantize: the model is a torch\.fx\.GraphModule") as caught:
        run(exported())
    assert "function calls" in caught.value.what and "0.weight" in caught.value.where
    assert "nn.Module" in caught.value.expected and ".pt2" in caught.value.try_


def test_what_the_error_advises_works(tmp_path):
    torch.export.save(torch.export.export(mlp(), (numbers(2, 40),)), tmp_path / "m.pt2")
    for model in (str(tmp_path / "m.pt2"), mlp(), torch.fx.symbolic_trace(mlp())):
        record = fewbit.quantize(model, data()).fewbit_record
        assert len([line for line in record.lines if line["what"] == "quantized"]) == 2


def test_every_layer_ignored():
    with pytest.raises(UsageError, match="applies to no layer") as caught:
        fewbit.compress_weights(mlp(), ignored_scope=fewbit.IgnoredScope(names=["0", "2"]))
    assert "0.weight" in caught.value.where and "2.weight" in caught.value.where


def test_a_model_without_layers():
    with pytest.raises(UsageError, match="nothing to quantize") as caught:
        fewbit.compress_weights(nn.Sequential(nn.ReLU()))
    assert caught.value.where == "the model has no layers with weights"


def test_the_work_does_not_start(monkeypatch):
    monkeypatch.setattr("fewbit.engine.run.execute_by_layer", lambda *_, **__: pytest.fail("the work started"))
    with pytest.raises(UsageError, match="nothing to quantize"):
        fewbit.quantize(mlp(), data(), ignored_scope=fewbit.IgnoredScope(names=["0", "2"]))


def test_one_quantized_layer_is_enough():
    made = fewbit.compress_weights(mlp(), ignored_scope=fewbit.IgnoredScope(names=["0"]))
    assert [line["where"] for line in made.fewbit_record.lines if line["what"] == "quantized"] == ["2.weight"]
