# SPDX-License-Identifier: Apache-2.0
"""A model from whatever path a user has, or a clear word on why not."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fewbit.engine.delivering import export
from fewbit.errors import DataError, UsageError
from fewbit.modules.opening import open_model
from fewbit.modules.quantized import is_quantized
from quantized_models import mlp, numbers, quantize_linears
from small_models import images, mixed, opt, token_ids


@pytest.fixture
def build(tmp_path):
    """A factory in a file of the user's."""
    (tmp_path / "build.py").write_text(
        "from torch import nn\n\n\ndef make():\n"
        "    return nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8))\n"
    )
    return f"{tmp_path}/build.py:make"


@pytest.fixture
def folder(tmp_path):
    opt().save_pretrained(tmp_path / "opt")
    return tmp_path / "opt"


def test_a_hugging_face_folder(folder, capfd):
    model = open_model(folder)
    assert type(model).__name__ == "OPTForCausalLM" and not model.training
    assert torch.equal(model(token_ids()).logits, opt()(token_ids()).logits)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def test_the_base_model_where_no_architecture_is_named(folder):
    edit(folder, architectures=None)
    assert type(open_model(folder)).__name__ == "OPTModel"


def test_pickled_weights_are_refused(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"pytorch_model\.bin is a pickle") as error:
        open_model(folder)
    assert "save_pretrained" in error.value.try_
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(UsageError, match="no weights here"):
        open_model(folder)


def test_a_model_that_is_quantized_already(folder):
    edit(folder, quantization_config={"quant_method": "gptq"})
    with pytest.raises(UsageError, match=r"quantized already \(gptq\)"):
        open_model(folder)


def test_missing_weights_are_not_made_up(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.decoder.layers.1.fc1.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"1 weights are not in the files: model\.decoder\.layers\.1\.fc1\.weight"):
        open_model(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]"])
def test_a_configuration_that_is_none(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(DataError, match=r"config\.json"):
        open_model(folder)


def test_a_class_transformers_does_not_have(folder):
    edit(folder, architectures=["OPTForCausalML"])
    with pytest.raises(UsageError, match="OPTForCausalML") as error:
        open_model(folder)
    assert "OPTForCausalLM" in error.value.expected


def test_damaged_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot open"):
        open_model(folder)


def test_a_state_dict_with_a_factory(tmp_path, build):
    model, x = mlp(), numbers(5, 40)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    torch.save(model.state_dict(), tmp_path / "w.pt")
    torch.save({"epoch": 3, "state_dict": model.state_dict()}, tmp_path / "checkpoint.pth")
    torch.save({f"module.{name}": t for name, t in model.state_dict().items()}, tmp_path / "parallel.bin")
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "w.pt2")
    for name in ("w.safetensors", "w.pt", "checkpoint.pth", "parallel.bin", "w.pt2"):
        opened = open_model(tmp_path / name, build)
        assert torch.equal(opened(x), model(x)) and not opened.training
    assert torch.equal(open_model(tmp_path / "w.pt2")(x), model(x))


def tied():
    """Two names for one weight, and a buffer that is a part of it."""
    model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("first", model[0].weight.data[:3])
    return model


def test_tied_weights_are_in_a_file_once(tmp_path):
    from safetensors.torch import save_model

    model, ids = tied(), torch.arange(12)
    save_model(model, str(tmp_path / "a.safetensors"))
    (kept,) = load_file(tmp_path / "a.safetensors")
    other = {"0.weight": "1.weight", "1.weight": "0.weight"}[kept]
    save_file({other: model[0].weight.data}, tmp_path / "b.safetensors")
    for name in ("a", "b"):
        opened = open_model(tmp_path / f"{name}.safetensors", tied)
        assert torch.equal(opened(ids), model(ids)) and torch.equal(opened.first, model.first)
        assert opened[0].weight is opened[1].weight


def test_what_no_name_fills_is_missing_from_tied_weights_too(tmp_path):
    def untied():
        return nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12, bias=False))

    def apart():
        model = tied()
        model[1].bias = nn.Parameter(torch.zeros(12))
        return model

    weight = torch.randn(12, 8)
    save_file({"0.weight": weight}, tmp_path / "whole.safetensors")
    save_file({"first": weight[:3].clone()}, tmp_path / "part.safetensors")
    for name, factory, what in (
        ("whole", untied, "no 1.weight$"),
        ("whole", apart, "no 1.bias$"),
        ("part", tied, "no 0.weight; no 1.weight$"),
    ):
        with pytest.raises(DataError, match="no ") as error:
            open_model(tmp_path / f"{name}.safetensors", factory)
        assert re.search(what, error.value.what), error.value.what


def test_a_state_dict_without_a_factory(tmp_path):
    save_file(mlp().state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match="tensors and not the code") as error:
        open_model(tmp_path / "w.safetensors")
    assert "--factory" in error.value.try_


class Boom:
    def __reduce__(self):
        return (print, ("BOOM",))


def test_other_pickles_are_not_opened(tmp_path, build, capsys):
    torch.save(Boom(), tmp_path / "w.pt")
    torch.save(mlp(), tmp_path / "whole.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    for name, what in (("w.pt", "cannot be read"), ("whole.pt", "cannot be read"), ("list.pt", "holds a list")):
        with pytest.raises(DataError, match=what):
            open_model(tmp_path / name, build)
    assert "BOOM" not in capsys.readouterr().out


def test_tensors_that_are_not_the_factorys(tmp_path, build):
    for number, (model, what) in enumerate(
        [
            (nn.Sequential(nn.Linear(40, 24)), "no 2.weight"),
            (nn.Sequential(nn.Linear(40, 24), nn.PReLU(), nn.Linear(24, 8)), "no place for 1.weight"),
            (nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 9)), "size mismatch for 2.weight"),
        ]
    ):
        save_file(model.state_dict(), tmp_path / f"{number}.safetensors")
        with pytest.raises(DataError, match=what):
            open_model(tmp_path / f"{number}.safetensors", build)


def test_a_factory_alone(build):
    assert len(open_model(build)) == 3


def test_a_program(tmp_path):
    torch.export.save(torch.export.export(mixed(), (images()[0],)), tmp_path / "m.pt2")
    assert torch.equal(open_model(str(tmp_path / "m.pt2"))(images()[1]), mixed()(images()[1]))


def test_a_folder_fewbit_exported(tmp_path):
    model = quantize_linears(opt())
    export(model, tmp_path / "out")
    opened = open_model(tmp_path / "out")
    assert is_quantized(opened.model.decoder.layers[0].fc1)
    assert torch.equal(opened(token_ids()).logits, model(token_ids()).logits)


def test_paths_that_lead_nowhere(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(UsageError, match="no file or folder") as error:
        open_model(tmp_path / "model.safetensor")
    assert "model.safetensors" in error.value.try_
    with pytest.raises(UsageError, match=r"no config\.json") as error:
        open_model(tmp_path)
    assert "model.onnx" in error.value.try_ and "model.safetensors" in error.value.try_
    with pytest.raises(UsageError, match="is an ONNX model") as error:
        open_model(tmp_path / "model.onnx")
    assert error.value.expected == "a PyTorch model"
    with pytest.raises(UsageError, match="no file or folder"):
        open_model("no/such/folder")


def test_every_list_of_what_is_taken_names_onnx(tmp_path):
    (tmp_path / "model").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.onnx").write_bytes(b"")
    (tmp_path / "folder" / "weights.bin").write_bytes(b"")
    for place in ("model", "folder", "none"):
        with pytest.raises(UsageError) as error:
            open_model(tmp_path / place)
        assert ".onnx file" in error.value.expected
        if place != "none":
            assert ".onnx" in error.value.try_ and ".bin" not in error.value.try_
