# SPDX-License-Identifier: Apache-2.0
"""Files that are no state dict: each is named for what it is, in our own words."""

import argparse
import pickle
import warnings

import pytest
import torch
from safetensors.torch import save_file

from fewbit.errors import DataError
from fewbit.modules.state_file import read_pickled, read_safetensors
from quantized_models import mlp, numbers


def fault(path, read=read_pickled):
    with warnings.catch_warnings(), pytest.raises(DataError) as error:
        warnings.simplefilter("error")
        read(path)
    text = str(error.value)
    assert "\x1b" not in text and "weights_only" not in text and "still be loaded" not in text
    assert str(path) in error.value.where and error.value.expected and error.value.try_
    return error.value


@pytest.mark.parametrize("zipped", [True, False])
def test_a_whole_model_is_named_by_its_class(tmp_path, zipped):
    torch.save(mlp(), tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    error = fault(tmp_path / "m.pt")
    assert "pickle of Python objects, such as torch.nn.modules" in error.what and "state_dict()" in error.try_


def test_other_things_beside_the_tensors_are_named(tmp_path):
    torch.save({"args": argparse.Namespace(), "state_dict": mlp().state_dict()}, tmp_path / "m.pt")
    assert "argparse.Namespace" in fault(tmp_path / "m.pt").what


def test_a_plain_pickle_warns_of_nothing(tmp_path):
    (tmp_path / "m.pt").write_bytes(pickle.dumps({"a": 1}, protocol=4))
    assert "not a pickle of tensors alone" in fault(tmp_path / "m.pt").what


@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, numbers(2, 40))])
def test_a_torchscript_program(tmp_path, make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of its retirement
        make(mlp()).save(tmp_path / "m.pt")
        torch.save(torch.jit.load(tmp_path / "m.pt").state_dict(), tmp_path / "weights.pt")
    error = fault(tmp_path / "m.pt")
    assert "TorchScript" in error.what and ".pt2" in error.expected
    assert "torch.jit.load(path).state_dict()" in error.try_  # and that is a file we take
    assert all(torch.equal(read_pickled(tmp_path / "weights.pt")[n], t) for n, t in mlp().state_dict().items())


@pytest.mark.parametrize("content", [b"", b"hello world" * 10, "cut"])
def test_a_damaged_file(tmp_path, content):
    torch.save(mlp().state_dict(), tmp_path / "m.pt")
    save_file(mlp().state_dict(), tmp_path / "m.safetensors")
    for name, read in (("m.pt", read_pickled), ("m.safetensors", read_safetensors)):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-100] if content == "cut" else content)
        assert "it is damaged, or" in fault(path, read).what
