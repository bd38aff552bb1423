# SPDX-License-Identifier: Apache-2.0
"""What stands in `fewbit.json` is believed only as far as it agrees with itself and with the files."""

import copy
import json
import random

import orjson
import pytest
import torch

from fewbit.engine.delivering import export, load
from fewbit.errors import DataError, FewbitError, UsageError
from fewbit.modules import manifest
from fewbit.modules.opening import open_model
from quantized_models import mlp, numbers, quantize_linears


@pytest.fixture
def folder(tmp_path):
    model = quantize_linears(mlp())
    return export(model, tmp_path / "out")


def change(folder, edit):
    content = json.loads((folder / "fewbit.json").read_text())
    edit(content)
    (folder / "fewbit.json").write_text(json.dumps(content))


def test_a_folder_that_is_no_export(tmp_path, folder):
    with pytest.raises(UsageError, match="is not a folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="not a folder that fewbit exported") as error:
        load(tmp_path)
    assert str(folder) in error.value.try_
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError) as error:
        load(tmp_path)
    assert "fewbit quantize" in error.value.try_


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"version": 0}', b'{"version": "1"}', b"[" * 5000])
def test_a_manifest_that_is_none(folder, content):
    (folder / "fewbit.json").write_bytes(content)
    with pytest.raises(DataError) as error:
        load(folder, mlp())
    assert error.value.code == "manifest" and "fewbit.json" in error.value.where


def test_it_is_short_and_an_entry_a_line(folder):
    """Readers that know JSON see no difference."""
    text = (folder / "fewbit.json").read_text()
    content = json.loads(text)
    assert len(text) < 0.7 * len(json.dumps(content, indent=2))
    lines = text.splitlines()
    assert all(sum(line.startswith(f'"{name}":') for line in lines) == 1 for name in content["tensors"])


def test_a_later_version(folder):
    change(folder, lambda content: content.update(version=2))
    with pytest.raises(DataError, match="version 2") as error:
        load(folder, mlp())
    assert error.value.try_ == "a newer fewbit"


def test_a_manifest_larger_than_any(folder, monkeypatch):
    monkeypatch.setattr(manifest, "_MOST_BYTES", 10)
    with pytest.raises(DataError, match="10 are the most"):
        load(folder, mlp())


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "", ".", "a\\b", "C:x", "a\0b", "a//b"])
def test_names_that_lead_elsewhere(folder, name):
    change(folder, lambda content: content["files"].update({name: "0"}))
    with pytest.raises(DataError, match="inside the folder"):
        load(folder, mlp())


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda c: c["tensors"]["0.bias"].update(file="../x"), "does not describe the tensor '0.bias'"),
        (lambda c: c["tensors"]["0.bias"].update(shape=[-1]), "does not describe the tensor '0.bias'"),
        (lambda c: c["tensors"]["0.bias"].update(dtype="Tensor"), "does not describe the tensor '0.bias'"),
        (lambda c: c["tensors"]["0.bias"].update(kind="code?"), "does not describe the tensor '0.bias'"),
        (lambda c: c["tensors"]["0.bias"].pop("sha256"), "does not describe the tensor '0.bias'"),
        (lambda c: c["tensors"].update({"0.bias": None}), "does not describe the tensor '0.bias'"),
        (lambda c: c.pop("tensors"), "no table 'tensors'"),
        (lambda c: c.pop("layers"), "no table 'layers'"),
        (lambda c: c.update(aliases=[]), "no table 'aliases'"),
        (lambda c: c["aliases"].update({"x": "y"}), "another name of 'y'"),
        (lambda c: c["aliases"].update({"0.bias": "2.bias"}), "another name of '2.bias'"),
        (lambda c: c["aliases"].update({"x": ["0.bias"]}), "another name of"),
        (lambda c: c["tensors"].pop("0.weight_packed"), "lists no codes '0.weight_packed'"),
        (lambda c: c["tensors"]["0.weight_packed"].update(kind="buffer"), "lists no codes '0.weight_packed'"),
        (lambda c: c["tensors"]["0.weight_scale"].update(shape=[24, 4]), "its grid and shape ask for"),
        (lambda c: c["layers"]["0"]["weights"]["weight"].update(shape=[24, 48]), "its grid and shape ask for"),
        (lambda c: c["tensors"]["0.bias"].update(shape=[12, 2]), "the tensor is torch.float32 [24]"),
        (lambda c: c["tensors"]["0.bias"].update(file="other.safetensors"), "has unknown tensors: 0.bias"),
        (lambda c: c["tensors"].pop("0.bias"), "has unknown tensors: 0.bias"),
        (lambda c: c["tensors"]["0.bias"].update(sha256="0" * 64), "not those that were exported"),
        (lambda c: c.update(format="gguf?"), "no member 'gguf?'"),
        (lambda c: c.update(config={"what": 1}), "configuration in the manifest"),
    ],
)
def test_a_manifest_that_contradicts_itself_or_the_files(folder, edit, what):
    change(folder, edit)
    with pytest.raises(FewbitError) as error:
        load(folder, mlp())
    assert what in str(error.value)


@pytest.mark.parametrize("format", ["gguf", None, ["safetensors"]])
def test_an_export_in_another_format_is_not_read_as_our_own(folder, format):
    change(folder, lambda content: content.update(format=format))
    with pytest.raises(UsageError, match="in the format") as error:
        open_model(folder, mlp)
    assert error.value.where == str(folder) and "safetensors" in error.value.expected


def test_any_damage_ends_in_the_same_model_or_a_clear_error(folder):
    """The manifest with parts replaced at random: never another exception."""
    content = json.loads((folder / "fewbit.json").read_text())
    expected = quantize_linears(mlp())(numbers(5, 40))
    rng, refused = random.Random(1), 0
    for _ in range(80):
        damaged = copy.deepcopy(content)
        place, key = damaged, None
        while isinstance(place, dict | list) and place and (key is None or rng.random() < 0.8):
            holder, key = place, rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            place = holder[key]
        holder[key] = rng.choice([None, -1, 2**64, "x", [], {}, [1, 2], True, 0.5, "int3", "uint8"])
        (folder / "fewbit.json").write_bytes(
            orjson.dumps(damaged, option=orjson.OPT_NON_STR_KEYS) if _fits(damaged) else b""
        )
        try:
            made = load(folder, mlp())
        except FewbitError:
            refused += 1
        else:
            assert made(numbers(5, 40)).shape == expected.shape
    assert refused > 30


def _fits(value):
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


def test_hostile_sizes_take_no_memory(folder):
    def edit(content):
        content["layers"]["0"]["weights"]["weight"].update(shape=[2**30, 2**20], block=[1, 16])

    change(folder, edit)
    with pytest.raises(DataError, match="ask for"):
        load(folder, mlp())


def test_a_change_of_meaning_gives_other_numbers_only_if_the_manifest_is_changed(folder):
    """The files are hashed; the manifest is the root and has to be trusted as a whole."""
    change(folder, lambda c: c["layers"]["0"]["weights"]["weight"]["grid"].update(dtype="uint4", symmetric=True))
    with pytest.raises(DataError):
        load(folder, mlp())  # an unsigned grid has a zero point, which is not there


def test_loading_runs_no_code_the_manifest_names(folder, tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef make(): pass\n")
    change(folder, lambda content: content.update(factory=f"{tmp_path}/evil.py:make"))
    with pytest.raises(UsageError) as error:
        load(folder)
    assert "evil.py" in error.value.try_ and not (tmp_path / "ran").exists()
    change(folder, lambda content: content.update(huggingface={"class": "os.system"}))
    with pytest.raises(UsageError, match="no model class"):
        load(folder)
    change(folder, lambda content: content.update(huggingface={"class": "pipeline"}))
    with pytest.raises(UsageError, match="no model class"):
        load(folder)
    assert torch.equal(load(folder, mlp())(numbers(5, 40)), quantize_linears(mlp())(numbers(5, 40)))
