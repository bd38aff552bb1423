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

from fewbit.data.program import _is_size, open_program
from fewbit.errors import DataError
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
    assert _is_size(text) in (True, False)
