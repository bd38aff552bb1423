# SPDX-License-Identifier: Apache-2.0
"""Stacks that transformers makes of a checkpoint's experts lie in files, and are what they were."""

import tempfile

import pytest
import torch
from tests.tiny_models import transformer
from torch import nn

from fewbit.modules import memory, scratch
from fewbit.modules.memory import free_memory, give_back
from fewbit.modules.opening import open_model


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where such files are made; small tensors are worth one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_WORTH", 1)
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_is_equal_and_its_file_has_no_name(folder, dtype):
    x = torch.randn(3, 4, 5).to(dtype).mT
    found = scratch.mapped(x)
    assert torch.equal(found, x) and found.is_contiguous() and not list(folder.iterdir())
    assert not found.untyped_storage().resizable()  # mapped


def test_only_what_goes_beyond_the_budget_is_moved(folder):
    with scratch.on_disk(budget=100):
        layer = nn.Linear(5, 5)  # 100 bytes, and a bias that is too much
    assert layer.weight.untyped_storage().resizable() and not layer.bias.untyped_storage().resizable()
    after = nn.Linear(5, 5)
    assert after.bias.untyped_storage().resizable()
    layer.bias.data.fill_(2.0)
    assert layer(torch.zeros(5)).shape == (5,) and layer.bias.requires_grad


@pytest.mark.parametrize("budget", [420, 0])
def test_modules_that_share_a_parameter_go_on_sharing_it(folder, budget):
    with scratch.on_disk(budget=budget):
        first, between, second = (nn.Linear(10, 10, bias=False) for _ in range(3))  # 400 bytes each
        shared = nn.Parameter(torch.ones(10, 10))
        second.weight, first.weight = first.weight, first.weight
        first.other = between.other = shared
    assert second.weight is first.weight and first.weight.untyped_storage().resizable() == (budget > 400)
    assert first.other is between.other and not first.other.untyped_storage().resizable()


def test_without_room_it_stays_in_memory(folder, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(scratch.os, "posix_fallocate", full)
    with scratch.on_disk(budget=0):
        layer = nn.Linear(5, 5)
    assert layer.weight.untyped_storage().resizable() and not list(folder.iterdir())


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "llama"])
def test_an_opened_model_is_mapped_and_the_same(folder, monkeypatch, name):
    model = transformer(name).to(torch.bfloat16)
    model.save_pretrained(folder / "model")
    before = {path.name for path in folder.iterdir()}
    monkeypatch.setattr(scratch, "_SHARE", 1 << 60)
    opened = open_model(folder / "model")
    assert {path.name for path in folder.iterdir()} == before
    wanted = model.state_dict()
    assert all(torch.equal(value, wanted[key]) for key, value in opened.state_dict().items())
    assert all(p.dtype is torch.bfloat16 for p in opened.parameters())
    inside = [name for name, p in opened.named_parameters() if p.untyped_storage().resizable()]
    assert not inside, inside


def test_memory_is_known_and_given_back():
    assert 1 << 20 < free_memory() < 1 << 50
    give_back()


def test_in_a_container_its_limit_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    machine = free_memory()
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\nactive_file 100000\ninactive_file 250000\n")
    (tmp_path / "memory.max").write_text("1000000\n")
    assert free_memory() == 450_000 and machine > 1 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() > 1 << 20
