# SPDX-License-Identifier: Apache-2.0
"""A program opens only if opening it runs nothing; as modules it computes what it computed."""

import io
import json
import pickle
import shutil
import zipfile
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.export.pt2_archive import _package

from fewbit.data.program import open_program
from fewbit.errors import DataError
from fewbit.modules.lifting import lift
from small_models import images, mixed

Dim = torch.export.Dim


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    program = torch.export.export(mixed(), (images()[0],), dynamic_shapes={"x": {0: Dim("batch", max=64)}})
    torch.export.save(program, path)
    return path


@pytest.fixture
def unseen(monkeypatch):
    """Nothing that is opened comes to torch."""
    monkeypatch.setattr(_package, "load_pt2", lambda *_: pytest.fail("torch saw it"))
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("torch saw it"))


def edited(source, target, edit, compression=zipfile.ZIP_STORED):
    """A copy of an archive with one of its files changed; `edit` maps a name to new bytes, or gives none."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
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
@pytest.mark.usefixtures("unseen")
def test_what_would_run_code_is_refused_before_torch_sees_it(saved, tmp_path, capsys, edit, why):
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


INPUTS = "data/sample_inputs/model.pt"
OTHER_SPELLINGS = [
    "DATA/sample_inputs/model.pt", "data/Sample_Inputs/model.pt", "data/sample_inputs/model.PT",
    "data/sample_inputs/MODEL.pt", "data\\sample_inputs\\model.pt", "./data/sample_inputs/model.pt",
    "data/../data/sample_inputs/model.pt", "data//sample_inputs/model.pt", "/data/sample_inputs/model.pt",
    "data/sample_inputs/model.pt ", "data/sample_inputs/model.pt\n", "data/sample_inputs/model.pt/",
    "data/sample_inputs/model.pt|x", "data/weights/MODEL.pt", "models/../evil.json", "models/model.JSON", "evil",
    "data/weights/model_WEIGHTS_config.json", "data/constants/custom_obj_0", "data/weights/weight_0.pt",
]  # fmt: skip


@pytest.mark.parametrize("beside", [False, True], ids=["instead", "beside"])
@pytest.mark.parametrize("name", OTHER_SPELLINGS)
@pytest.mark.usefixtures("unseen")
def test_names_that_no_program_has_are_refused(saved, tmp_path, capsys, name, beside):
    """torch looks its files up without regard to case, so `DATA/sample_inputs/model.pt` would be unpickled."""
    path = tmp_path / "evil.pt2"
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        for full in old.namelist():
            if beside or full != f"{root}/{INPUTS}":
                new.writestr(full, old.read(full))
        new.writestr(f"{root}/{name}", pickled())
    path.write_bytes(path.read_bytes().replace(b"model.pt|x", b"model.pt\0x"))  # zipfile writes no such names
    with pytest.raises(DataError):
        open_program(path)
    assert "BOOM" not in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.usefixtures("unseen")
def test_two_files_of_one_name(saved, tmp_path):
    path = shutil.copy(saved, tmp_path / "evil.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(next(name for name in archive.namelist() if name.endswith(INPUTS)), pickled())
    with pytest.raises(DataError, match="ambiguous"):
        open_program(path)


@pytest.mark.usefixtures("unseen")
def test_two_lists_of_files(saved, tmp_path):
    """Where the end of an archive says its list begins, torch finds one; right before that end, Python another."""

    def as_it_was(name, content):
        return content + b" " * 500 if name == MODEL else content

    def evil(name, content):
        changed = content.replace(b'"torch.ops.aten.relu.default"', b'"torch.ops.evil"')
        return changed.ljust(len(content) + 500) if name == MODEL else content

    good, bad = (edited(saved, tmp_path / f"{edit.__name__}.zip", edit).read_bytes() for edit in (as_it_was, evil))
    assert len(good) == len(bad)
    path = tmp_path / "both.pt2"
    path.write_bytes(bad[:-22] + good)
    with zipfile.ZipFile(path) as archive:
        assert not any(b"torch.ops.evil" in archive.read(name) for name in archive.namelist())
    reader = torch._C.PyTorchFileReader(str(path))
    assert b"torch.ops.evil" in reader.get_record(MODEL)
    with pytest.raises(DataError):
        open_program(path)


@pytest.mark.usefixtures("unseen")
def test_archives_that_unfold_to_more_than_they_are(saved, tmp_path):
    padded = only("data/constants/model_constants_config.json", lambda content: content + b" " * 1_000_000)
    with pytest.raises(DataError, match="its files have 1,0"):
        open_program(edited(saved, tmp_path / "x.pt2", padded, zipfile.ZIP_DEFLATED))


def test_the_older_format_is_not_tried(saved, tmp_path, monkeypatch):
    """`torch.export.load` takes what it cannot read for one of pickles."""
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("it was tried"))
    assert open_program(saved).graph_signature is not None
    with pytest.raises(DataError, match="cannot be read"):
        open_program(edited(saved, tmp_path / "x.pt2", only("archive_version", lambda _: b"7")))


class Odd(nn.Module):
    """Names, trees and graphs of every kind."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"as int-4": nn.Linear(4, 4)})
        self.plain = torch.ones(4)

    def forward(self, x, *, options, flag=2):
        y = self.parts["as int-4"](x["a/b c"]) + self.plain
        y = torch.cond(y.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (y,))
        with torch.no_grad():
            y = torch.div(y, 2, rounding_mode="floor")
        return {"out put": y.reshape(-1, 2), "n": y.shape[0] * 2 + 1, "o": OrderedDict(k=y)}


@pytest.mark.filterwarnings("ignore")  # torch's own, about its tracing of `cond`
def test_what_real_programs_hold_is_read(tmp_path):
    torch.manual_seed(0)
    model, x = Odd().eval(), {"a/b c": torch.randn(3, 4)}
    named = {"options": (torch.ones(1),), "flag": 3}
    shapes = {"x": {"a/b c": {0: Dim("batch", max=64)}}, "options": (None,), "flag": None}
    program = torch.export.export(model, (x,), named, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "odd.pt2", extra_files={"notes (1).txt": "hello"})
    x = {"a/b c": torch.randn(5, 4)}
    made, expected = lift(open_program(tmp_path / "odd.pt2"))(x, **named), model(x, **named)
    assert torch.equal(made["out put"], expected["out put"]) and made["n"] == expected["n"] == 11
