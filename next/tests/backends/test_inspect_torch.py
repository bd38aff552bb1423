# SPDX-License-Identifier: Apache-2.0
"""Modules and `FILE.py:FN` factories."""

import subprocess
import sys

import orjson
import pytest

from fewbit.backends.torch import BACKEND
from fewbit.data.inputs.modules import ALL_POSITIONAL, call_arguments, module_info, unwrap
from fewbit.errors import FewbitError, ModelError, UsageError
from fewbit.model_info import TensorInfo

torch = pytest.importorskip("torch")


class Bert(torch.nn.Module):
    def forward(self, input_ids, attention_mask=None, *, labels=None):
        return input_ids


class Open(torch.nn.Module):
    def forward(self, x, **more):
        return x


class Listed(torch.nn.Module):
    def forward(self, *tensors):
        return tensors[0]


class Positional(torch.nn.Module):
    def forward(self, x, /, y):
        return x


class OwnChild(torch.nn.Module):
    """A user's module with a child called `module`."""

    def __init__(self):
        super().__init__()
        self.module = Bert()

    def forward(self, pixels):
        return pixels


def test_matching_imports_no_torch():
    code = (
        "import sys; from fewbit.backends.torch import BACKEND; "
        "assert not BACKEND.matches(3) and not BACKEND.matches('a.onnx') and BACKEND.matches('a.py:build'); "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert BACKEND.matches(Bert())


def test_names_and_required_come_from_forward():
    info = BACKEND.inspect(Bert())
    optional = [TensorInfo(name, required=False) for name in ("attention_mask", "labels")]
    assert info.inputs == (TensorInfo("input_ids"), *optional)
    assert info.kind == "Bert" and info.backend == "torch" and info.facts["open_ended"] is False
    assert [tensor.name for tensor in BACKEND.inspect(torch.nn.Linear(2, 3)).inputs] == ["input"]
    assert BACKEND.inspect(torch.nn.Linear(2, 3)).size == 36


def test_open_and_positional_parameters():
    assert module_info(Open()).facts["open_ended"]
    listed = module_info(Listed())
    assert listed.inputs == () and listed.facts["positional"] == ALL_POSITIONAL
    assert len(call_arguments({"a": torch.ones(1), "b": torch.ones(1)}, listed)[0]) == 2
    info = module_info(Positional())
    args, kwargs = call_arguments({"y": torch.zeros(1), "x": torch.ones(1)}, info)
    assert info.facts["positional"] == 1 and args[0].item() == 1 and list(kwargs) == ["y"]


def test_wrappers_are_looked_through_and_own_children_are_not():
    assert module_info(torch.nn.DataParallel(Bert())).kind == "Bert"
    assert module_info(torch.compile(Bert(), backend="eager")).inputs[0].name == "input_ids"
    assert unwrap(torch.nn.DataParallel(OwnChild())).__class__ is OwnChild
    assert module_info(OwnChild()).inputs == (TensorInfo("pixels"),)


def test_scripted_modules_keep_their_schema():
    assert module_info(torch.jit.script(torch.nn.Linear(2, 2))).inputs == (TensorInfo("input"),)


@pytest.mark.parametrize(
    ("dtypes", "floating"),
    [
        ((), None),
        ((torch.int8,), None),
        ((torch.float32, torch.bfloat16), "float32"),
        ((torch.int8, torch.bfloat16), "bfloat16"),
        ((torch.float8_e4m3fn, torch.float16), "float16"),
    ],
)
def test_the_dtype_floats_are_taken_in(dtypes, floating):
    module = Open()
    weights = [torch.nn.Parameter(torch.zeros(2).to(dtype), requires_grad=False) for dtype in dtypes]
    module.weights = torch.nn.ParameterList(weights)
    assert module_info(module).facts["floating"] == floating


def test_hugging_face_modules():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(image_size=32, patch_size=8, id2label={0: "cat", 1: "dog"}, **sizes)
    info = module_info(transformers.ViTForImageClassification(config))
    assert info.facts["main_input"] == "pixel_values" and info.labels == ("cat", "dog")
    assert module_info(transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes))).vocabulary == 20


def test_inspecting_never_runs_a_module():
    class Bomb(torch.nn.Module):
        def forward(self, x):
            raise AssertionError("was run")

    assert module_info(Bomb()).inputs == (TensorInfo("x"),)


SOURCE = """
import torch
def build():
    return torch.nn.Linear(3, 2)
def number():
    return 3
def broken():
    return torch.nn.Linear(3, 'x')
"""


def test_factories(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(SOURCE)
    (tmp_path / "preprocessing.json").write_bytes(orjson.dumps({"image_size": [4, 4], "labels": ["a", "b"]}))
    info = BACKEND.inspect(f"{file}:build")
    assert info.source == f"{file}:build" and info.inputs[0].name == "input"
    assert info.labels == ("a", "b") and info.preprocessing == {"image_size": [4, 4]}
    with pytest.raises(ModelError, match="gives a int"):
        BACKEND.inspect(f"{file}:number")
    with pytest.raises(FewbitError) as caught:
        BACKEND.inspect(f"{file}:broken")
    assert "model.py:8" in caught.value.where
    with pytest.raises(UsageError) as caught:
        BACKEND.inspect(f"{file}:buld")
    assert "build" in caught.value.expected
