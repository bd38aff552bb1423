# SPDX-License-Identifier: Apache-2.0
"""`.pt2` archives: read without torch, and whatever is in them, nothing runs."""

import io
import json
import random
import subprocess
import sys
import zipfile

import pytest

from fewbit.backends.torch_export import BACKEND
from fewbit.errors import ModelError

torch = pytest.importorskip("torch")
MODEL = "models/model.json"


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)

    def forward(self, x, *, ids):
        return {"a": self.linear(x), "b": ids.sum()}


@pytest.fixture(scope="module")
def program():
    batch = torch.export.Dim("batch", min=2, max=64)
    ids = torch.ones(2, 5, dtype=torch.int64)
    shapes = {"x": {0: batch}, "ids": {0: batch}}
    return torch.export.export(Two(), (torch.ones(2, 3),), {"ids": ids}, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def saved(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("pt2") / "m.pt2"
    torch.export.save(program, path)
    return path


def edited(source, target, edit, compression=zipfile.ZIP_STORED):
    """A copy of an archive; `edit` maps a name and bytes to new bytes, or to nothing."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", compression) as new:
        for name in old.namelist():
            content = edit(name.partition("/")[2], old.read(name))
            if content is not None:
                new.writestr(name, content)
    return target


def with_json(change):
    def edit(name, content):
        if name != MODEL:
            return content
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


def test_names_shapes_and_dtypes(saved, program):
    for source in (saved, str(saved), program):
        assert BACKEND.matches(source)
        info = BACKEND.inspect(source)
        x, ids = info.inputs
        assert (x.name, x.dtype, ids.name, ids.dtype) == ("x", "float32", "ids", "int64")
        assert isinstance(x.shape[0], str) and x.shape == (ids.shape[0], 3) and ids.shape[1] == 5
        assert info.facts["positional"] == 1 and x.batch_axis == ids.batch_axis == 0
        assert info.outputs[0].shape == (x.shape[0], 4) and info.outputs[1].shape == ()
    assert BACKEND.inspect(saved).size == saved.stat().st_size and BACKEND.inspect(saved).facts["weights"] == 2


def test_torch_is_not_imported(saved):
    code = (
        f"import sys; from fewbit.backends.torch_export import BACKEND; BACKEND.inspect({str(saved)!r}); "
        "assert not BACKEND.matches(3) and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_in_the_archive_runs(saved, tmp_path, capsys):
    evil = pickled()

    def edit(name, content):
        return evil if name.endswith(".pt") else content

    def size(value):
        value["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = {"as_expr": {"expr_str": "print('BOOM')"}}

    assert len(BACKEND.inspect(edited(saved, tmp_path / "a.pt2", edit)).inputs) == 2
    assert BACKEND.inspect(edited(saved, tmp_path / "b.pt2", with_json(size))).inputs[0].shape == (None, 3)
    assert "BOOM" not in capsys.readouterr().out


def test_a_pickle_is_refused(tmp_path, capsys):
    (tmp_path / "x.pt2").write_bytes(pickled())
    with pytest.raises(ModelError, match="pickles") as caught:
        BACKEND.inspect(tmp_path / "x.pt2")
    assert caught.value.code == "model-unsafe" and "BOOM" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "empty"), (b"PK\x03\x04", "damaged archive"), (b"\x80\x02}q", "pickle"), (b"text", "archive")],
)
def test_other_files_are_named(tmp_path, content, reason):
    (tmp_path / "x.pt2").write_bytes(content)
    with pytest.raises(ModelError, match=reason) as caught:
        BACKEND.inspect(tmp_path / "x.pt2")
    assert caught.value.code == "model-unreadable" and "x.pt2" in caught.value.where


@pytest.mark.parametrize(
    ("member", "reason"), [("a/b", "without a program"), ("m/data/aotinductor/model/x.so", "compiled code")]
)
def test_other_archives_are_named(tmp_path, member, reason):
    with zipfile.ZipFile(tmp_path / "x.pt2", "w") as archive:
        archive.writestr(member, b"x")
    with pytest.raises(ModelError, match=reason):
        BACKEND.inspect(tmp_path / "x.pt2")


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.pop("graph_module"),
        lambda value: value["graph_module"].update(signature=[]),
        lambda value: value["graph_module"]["signature"]["input_specs"].append({"user_input": 3}),
        lambda value: value["graph_module"]["graph"].update(tensor_values=[]),
        lambda value: value["graph_module"].update(module_call_graph=[]),
        lambda value: value["graph_module"]["graph"]["tensor_values"]["x"].update(sizes=[{"as_int": "many"}]),
    ],
)
def test_damaged_descriptions_are_typed_errors(saved, tmp_path, change):
    with pytest.raises(ModelError) as caught:
        BACKEND.inspect(edited(saved, tmp_path / "x.pt2", with_json(change)))
    assert caught.value.code == "model-unreadable"


def test_a_bomb_is_refused_before_it_unfolds(saved, tmp_path):
    def pad(name, content):
        return content + b" " * (300 << 20) if name == MODEL else content

    path = edited(saved, tmp_path / "x.pt2", pad, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ModelError, match="bytes"):
        BACKEND.inspect(path)


def test_mutated_archives_end_in_an_info_or_a_typed_error(saved, tmp_path):
    content, chance, readable = saved.read_bytes(), random.Random(3), 0
    for _ in range(150):
        data = bytearray(content)
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / "m.pt2").write_bytes(data)
        try:
            BACKEND.inspect(tmp_path / "m.pt2")
            readable += 1
        except ModelError:
            continue
    assert 0 < readable < 150


def test_loading_says_what_works(saved):
    with pytest.raises(ModelError) as caught:
        BACKEND.load(saved)
    assert caught.value.code == "backend-not-built"
