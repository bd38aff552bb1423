# SPDX-License-Identifier: Apache-2.0
"""Words for devices: what each means here, and what is said where it is missing. No test needs a device."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fewbit import registry
from fewbit.data.devices import cuda, mps, qaic
from fewbit.data.devices._choice import choose_device
from fewbit.errors import UsageError


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(cuda, "missing", lambda: "no CUDA")
    monkeypatch.setattr(mps, "missing", lambda: "no Metal")


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(cuda, "missing", lambda: None)
    monkeypatch.setattr(cuda, "count", lambda: 2)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def test_the_processor_is_always_there(no_gpu):
    for word in ("cpu", "CPU", "auto", torch.device("cpu")):
        assert choose_device(word).device == torch.device("cpu")


def test_gpu_without_one_is_the_processor_with_a_loud_word(no_gpu):
    with pytest.warns(UserWarning, match="'gpu', but there is none.*no CUDA.*stay on the CPU"):
        found = choose_device("gpu")
    assert found.name == "cpu" and "no CUDA" in found.why


def test_gpu_without_one_is_an_error_if_it_is_required(no_gpu):
    with pytest.raises(UsageError, match="there is none"):
        choose_device("gpu", required=True)


@pytest.mark.parametrize("word", ["cuda", "cuda:1", "mps", "mps:0"])
def test_a_device_that_is_named_and_missing_is_an_error(no_gpu, word):
    with pytest.raises(UsageError, match=f"target_device='{word}': no") as error:
        choose_device(word)
    assert "cpu" in error.value.expected


def test_words_for_cuda(two_gpus):
    assert [choose_device(word).name for word in ("gpu", "auto", "cuda", "cuda:1")] == ["cuda:0"] * 3 + ["cuda:1"]
    assert choose_device("cuda").streams
    with pytest.raises(UsageError, match="no device 'cuda:2'") as error:
        choose_device("cuda:2")
    assert error.value.expected == "cuda:0 to cuda:1"


def test_processes_of_one_machine_take_one_device_each(two_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("gpu").name == "cuda:1"
    assert choose_device("cuda:0").name == "cuda:0"


def test_a_word_that_nobody_knows():
    with pytest.raises(UsageError, match="no device 'cudda'") as error:
        choose_device("cudda")
    assert "did you mean 'cuda'" in error.value.expected


def test_qaic_without_its_package_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_qaic", None)
    with pytest.raises(UsageError, match=r"torch_qaic cannot be imported.*Cloud AI SDK"):
        choose_device("qaic")


def test_qaic_with_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_qaic", ModuleType("torch_qaic"))
    backend = SimpleNamespace(is_available=lambda: True, device_count=lambda: 4)
    monkeypatch.setattr(torch, "qaic", backend, raising=False)
    monkeypatch.setattr(qaic, "device", lambda index: f"qaic:{index}")  # this PyTorch has no such device
    assert choose_device("qaic:3").name == "qaic:3"
    with pytest.raises(UsageError, match="no device 'qaic:4'"):
        choose_device("qaic:4")
    backend.is_available = lambda: False
    with pytest.raises(UsageError, match="finds no device"):
        choose_device("qaic")


class Shadow:
    """A plug-in's device, which PyTorch happens to have."""

    missing = staticmethod(lambda: None)
    count = staticmethod(lambda: 1)
    device = staticmethod(lambda index: torch.device("meta"))


def test_plug_ins_add_devices(monkeypatch):
    point = EntryPoint("shadow", "anything", "fewbit.devices")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Shadow)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "fewbit.devices" else [])
    assert choose_device("shadow").device == torch.device("meta")
    assert not choose_device("shadow").streams
