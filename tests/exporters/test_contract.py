# SPDX-License-Identifier: Apache-2.0
"""Every exporter the registry lists keeps the contract of `exporters/_base.py`."""

import inspect
import json

import pytest
import torch

from fewbit import registry
from fewbit.engine.delivering import export, load
from fewbit.engine.verbs import compress_weights
from fewbit.errors import DataError, UsageError
from fewbit.exporters._base import Exporter, Loadable, Streamable
from fewbit.modules import manifest
from quantized_models import mlp, numbers, quantize_linears
from tiny_models import transformer

NAMES = registry.names("exporters")
READING = [name for name in NAMES if hasattr(registry.get("exporters", name), "read")]


def parameters(function):
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("name", NAMES)
def test_a_member_has_the_functions_and_a_summary(name):
    member = registry.get("exporters", name)
    assert registry.summary("exporters", name)
    assert parameters(member.write)[:2] == ["model", "folder"]
    options = list(inspect.signature(member.write).parameters.values())[2:]
    assert all(each.kind is each.KEYWORD_ONLY and each.default is not each.empty for each in options)
    streams = hasattr(member, "lay_out")
    assert parameters(member.check) == parameters((Streamable if streams else Exporter).check)[1:]
    if streams:
        assert parameters(member.lay_out)[:3] == parameters(Streamable.lay_out)[1:4]


@pytest.mark.parametrize("name", READING)
def test_a_reader_takes_what_load_gives(name):
    assert set(parameters(registry.get("exporters", name).read)) == set(parameters(Loadable.read)[1:])


def example(name):
    """A quantized model that a format takes: those of other runtimes are for Hugging Face models."""
    if name in READING:
        return quantize_linears(mlp())
    model = transformer("llama", hidden_size=64, intermediate_size=64, head_dim=16).eval()
    return compress_weights(model, mode="int4_sym", group_size=32)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_passes_its_check_and_nothing_else_does(name, tmp_path):
    member, model = registry.get("exporters", name), example(name)
    export(model, tmp_path / "out", format=name, **({"tokenizer": False} if name == "gguf" else {}))
    content = manifest.read(tmp_path / "out")
    assert content["format"] == name and json.dumps(content)
    member.check(model, tmp_path / "out", content)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(DataError):
        member.check(model, tmp_path / "out", content)


@pytest.mark.parametrize("name", READING)
def test_what_is_written_is_loaded(name, tmp_path):
    model = quantize_linears(mlp())
    export(model, tmp_path / "out", format=name)
    for options in ({"model": mlp()}, {"factory": mlp}, {"model": mlp(), "verify": False, "device": "cpu"}):
        made = load(tmp_path / "out", **options)
        assert not made.training and torch.equal(made(numbers(5, 40)), model(numbers(5, 40)))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_model_is_refused(name, tmp_path):
    with pytest.raises(UsageError):
        export(object(), tmp_path / "out", format=name)
    assert not any(tmp_path.iterdir())
