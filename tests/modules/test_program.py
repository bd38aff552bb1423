# SPDX-License-Identifier: Apache-2.0
"""A program opens only if opening it runs nothing; as modules it computes what it computed."""

import json
import pickle
import shutil
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fewbit.errors import DataError
from fewbit.modules.lifting import lift
from fewbit.modules.program import _is_size, open_program
from small_models import images, mixed

Dim = torch.export.Dim


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    program = torch.export.export(mixed(), (images()[0],), dynamic_shapes={"x": {0: Dim("batch", max=64)}})
    torch.export.save(program, path)
    return path


def edited(source, target, edit):
    """A copy of an archive with one of its files changed; `edit` maps a name to new bytes, or gives none."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            content = edit(name.partition("/")[2], old.read(name))
            if content is not None:
                new.writestr(name, content)
    return target


def only(wanted, change):
    return lambda name, content: change(content) if name == wanted else content


def json_change(change):
    def edit(content):
        value = json.loads(content)
        change(value)
        return json.dumps(value)

    return edit


class Boom:
    def __reduce__(self):
        return (print, ("BOOM",))


def pickled():
    import io

    buffer = io.BytesIO()
    torch.save(Boom(), buffer)
    return buffer.getvalue()


def use_pickle(value):
    value["config"]["conv.weight"]["use_pickle"] = True


def custom_object(value):
    value["config"]["secret"] = {
        "path_name": "custom_obj_0",
        "is_param": False,
        "use_pickle": False,
        "tensor_meta": None,
    }


def evil_size(value):
    value["range_constraints"] = {}
    value["graph_module"]["graph"]["sym_int_values"] = {"x": {"as_expr": {"expr_str": "__import__('os').getcwd()"}}}


def evil_operator(value):
    value["graph_module"]["graph"]["nodes"][0]["target"] = "torch.load"


def evil_library(value):
    value["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.load_library"


MODEL, WEIGHTS, CONSTANTS = (
    "models/model.json",
    "data/weights/model_weights_config.json",
    "data/constants/model_constants_config.json",
)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (only("data/sample_inputs/model.pt", lambda _: pickled()), "more than tensors"),
        (only(WEIGHTS, json_change(use_pickle)), "is pickled"),
        (only(CONSTANTS, json_change(custom_object)), "is pickled"),
        (only(MODEL, json_change(evil_size)), "no arithmetic"),
        (only(MODEL, json_change(evil_operator)), "'torch.load' is no operator"),
        (only(MODEL, json_change(evil_library)), "is no operator"),
    ],
)
def test_what_would_run_code_is_refused_before_torch_sees_it(saved, tmp_path, monkeypatch, capsys, edit, why):
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("torch saw it"))
    with pytest.raises(DataError, match=why) as error:
        open_program(edited(saved, tmp_path / "evil.pt2", edit))
    assert error.value.code == "model-unsafe" and "BOOM" not in capsys.readouterr().out


def test_the_pickle_would_have_run(capsys):
    pickle.loads(pickle.dumps(Boom()))
    assert "BOOM" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["data/aotinductor/model/x.so", "data/weights/model.pt"])
def test_compiled_and_pickled_files_are_refused(saved, tmp_path, name):
    path = shutil.copy(saved, tmp_path / "more.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/{name}", b"")
    with pytest.raises(DataError, match="could run code"):
        open_program(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a zip"])
def test_what_is_no_program(tmp_path, content):
    (tmp_path / "x.pt2").write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        open_program(tmp_path / "x.pt2")


def test_a_zip_of_something_else(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.pt2", "w") as archive:
        archive.writestr("a/b", b"")
    with pytest.raises(DataError, match="no archive"):
        open_program(tmp_path / "x.pt2")


def test_a_damaged_program(saved, tmp_path):
    edit = only(MODEL, json_change(lambda value: value.pop("graph_module")))
    with pytest.raises(DataError, match="cannot be read"):
        open_program(edited(saved, tmp_path / "x.pt2", edit))


@pytest.mark.parametrize(
    "expression",
    [
        "s77", "2*s0 + 1", "Add(Symbol('s77', positive=True, integer=True), Integer(-1))", "Mod(s0, 8)",
        "Max(1, FloorDiv(s0, 2))", "s0 >= 2",
    ],
)  # fmt: skip
def test_sizes(expression):
    assert _is_size(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "exit()", "__import__('os')", "().__class__", "eval(chr(95))", "[x for x in y]", "lambda: 0", "open('s1')",
        "Symbol('a b')", "'s1'.x", "f'{s0}'", "s0[0]", "print(s0)", "", "1 if s0 else 2", "(s0 := 1)", "s0.a",
    ],
)  # fmt: skip
def test_what_is_no_size(expression):
    assert not _is_size(expression)


@given(st.text(max_size=40))
def test_any_text_is_judged(text):
    _is_size(text)


def test_a_program_becomes_layers_that_compute_the_same(saved):
    module = lift(open_program(saved)).eval()
    x = images()[1]
    assert type(module.conv) is nn.Conv2d and type(module.first) is nn.Linear and module.first.bias is None
    assert dict(module.named_parameters()).keys() == dict(mixed().named_parameters()).keys()
    assert torch.equal(module(x), mixed()(x)) and torch.equal(module(x[:1]), mixed()(x[:1]))


class Varied(nn.Module):
    """What else there is: strides, groups, padding by name, an embedding with a padding index, ties, a second call."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8, padding_idx=0)
        self.conv = nn.Conv1d(8, 8, 3, stride=2, padding=1, dilation=2, groups=4, bias=False)
        self.same = nn.Conv1d(8, 8, 3, padding="same")
        self.twice = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(8, 8))
        self.norm = nn.LayerNorm(8)

    def forward(self, ids):
        x = self.same(self.conv(self.embed(ids).transpose(1, 2))).transpose(1, 2)
        x = nn.functional.linear(self.twice(self.twice(self.norm(x))), self.scale)
        return self.head(x), nn.functional.linear(x, self.twice.weight * 2)


def test_every_form_of_a_layer(tmp_path):
    torch.manual_seed(0)
    model, ids = Varied().eval(), torch.tensor([[1, 2, 3, 0, 5, 6]])
    torch.export.save(torch.export.export(model, (ids,)), tmp_path / "v.pt2")
    module = lift(open_program(tmp_path / "v.pt2")).eval()
    for mine, theirs in zip(module(ids), model(ids), strict=True):
        assert torch.equal(mine, theirs)
    kinds = {
        name: type(layer) for name, layer in module.named_modules() if type(layer).__module__.startswith("torch.nn")
    }
    assert kinds["embed"] is nn.Embedding and kinds["conv"] is nn.Conv1d and kinds["same"] is nn.Conv1d
    assert kinds["twice"] is nn.Linear and kinds["scale_linear"] is nn.Linear
    calls = [node.target for node in module.graph.nodes if node.op == "call_module"]
    assert calls.count("twice") == 2
    tied = [layer for layer in module.modules() if isinstance(layer, nn.Linear) and layer.weight is module.embed.weight]
    assert len(tied) == 1
