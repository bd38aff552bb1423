# SPDX-License-Identifier: Apache-2.0
"""Times in turns, and sentences that say where zeros bring no speed."""

import numpy as np
import pytest
import torch
from torch import nn

import fewbit
import sparsity_jobs as jobs
from fewbit.data.dataset import Dataset
from fewbit.numerics.sparsity import Pattern, kept
from fewbit.record import Record
from fewbit.sparsity.latency import latency, words
from fewbit.sparsity.opening import own_copy
from fewbit.sparsity.unchanged import is_unchanged


class _Clock:
    """Time that passes only while a model computes, whatever else the machine is doing."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = _Clock()
    monkeypatch.setattr("fewbit.sparsity.latency.time", made)
    return made


class _Takes(nn.Module):
    def __init__(self, seconds, log, clock):
        super().__init__()
        self.seconds, self.log, self.clock = seconds, log, clock

    def forward(self, x):
        self.log.append(self.seconds)
        self.clock.now += self.seconds
        return x


def test_the_ratio_is_that_of_the_times_and_models_take_turns(clock):
    log = []
    found = latency(_Takes(0.004, log, clock), _Takes(0.016, log, clock), ((torch.ones(1),), {}), seconds=0.05)
    assert found["turns"] == 7 and found["runtime"] == "PyTorch"
    assert found["ratio"]["median"] == pytest.approx(4) and found["ratio"]["low"] <= found["ratio"]["median"]
    assert found["float_ms"]["median"] == pytest.approx(4) and found["result_ms"]["median"] == pytest.approx(16)
    turns = [tuple(log[6:][n : n + 2]) for n in range(0, 14, 2)]
    assert turns[:2] == [(0.004, 0.016), (0.016, 0.004)]
    said = words(nn.Linear(2, 2), found)
    assert len(said) == 1 and "slower than the float model by" in said[0]


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.4, 0.6, "2.00 times as fast"), (0.9, 1.1, "as far as could be seen")]
)
def test_the_verdict_needs_quartiles_on_one_side(low, high, verdict):
    ratio = {"median": (low + high) / 2, "low": low, "high": high}
    assert verdict in words(nn.Linear(2, 2), {"ratio": ratio, "runtime": "PyTorch", "turns": 7})[0]


def test_a_slow_model_takes_three_turns(clock):
    log = []
    found = latency(_Takes(0.01, log, clock), _Takes(0.01, log, clock), ((torch.ones(1),), {}), seconds=0)
    assert found["turns"] == 3 and len(log) == 8


def test_graphs_run_in_onnx_runtime():
    item = {"pixel_values": np.ones((1, 3, jobs.SIDE, jobs.SIDE), np.float32)}
    found = latency(jobs.graph(), jobs.graph(1), item, seconds=0)
    assert found["runtime"] == "ONNX Runtime" and found["ratio"]["median"] > 0


def test_what_zeros_do_not_do_is_said():
    model = jobs.pruned(jobs.network())
    (said,) = words(model, None)
    assert "45.0% of the weights are zero" in said and "no faster" in said
    assert words(jobs.network(), None) == []


def test_two_of_four_and_codes_are_said():
    layer = nn.Linear(16, 16)
    layer.weight.data *= kept(layer.weight.detach().abs(), Pattern.read("2:4"))
    model = nn.Sequential(layer, nn.Linear(16, 16)).eval()
    assert any("1 of 2 linear layers are 2:4" in line and "Ampere" in line for line in words(model, None))
    small = fewbit.compress_weights(model, mode="int8_sym")
    assert any("Codes of few bits" in line for line in words(small, None))


@pytest.mark.parametrize("kind", ["module", "graph"])
def test_a_copy_is_told_from_a_model_that_was_changed(kind):
    given = jobs.network() if kind == "module" else jobs.graph()
    same = own_copy(given)
    assert is_unchanged(given, same)
    if kind == "module":
        same.conv.weight = nn.Parameter(same.conv.weight.detach().clone())
        assert is_unchanged(given, same)  # the same numbers elsewhere
        same.conv.weight.data[0, 0, 0, 0] += 1
        assert not is_unchanged(given, nn.Sequential(given))
    else:
        same.graph.initializer[0].raw_data = bytes(len(same.graph.initializer[0].raw_data))
    assert not is_unchanged(given, same)
    assert not is_unchanged(given, None)


class _Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale


@pytest.mark.parametrize(
    ("given", "other"),
    [
        (_Scaled(1.0), _Scaled(3.0)),
        (_Scaled((1, ("a", 2))), _Scaled((1, ("a", 3)))),
        (_Scaled(None), _Scaled(3.0)),
        (nn.MaxPool2d(2), nn.MaxPool2d(3)),
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
    ],
)
def test_a_model_with_another_setting_is_another(given, other):
    """In the mode it is in as well as in the other: both are judged in eval mode."""
    assert is_unchanged(nn.Sequential(given), nn.Sequential(own_copy(given)).eval())
    assert not is_unchanged(nn.Sequential(given), nn.Sequential(other))


@pytest.mark.parametrize("kind", ["module", "graph"])
def test_a_copy_is_not_timed(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("fewbit.sparsity.deployment.latency", lambda *_: pytest.fail("there is nothing to time"))
    model = jobs.network() if kind == "module" else jobs.graph()
    data = Dataset(jobs.pictures(12), batched=False)
    folder = fewbit.sparsify(model, data, use_case="ic", optim_level=0, output=tmp_path / "same")
    facts = Record.from_json((folder / "record.json").read_bytes()).facts
    assert facts["latency"] is None
    assert facts["speed"] == ["It is the float model, byte for byte, and as fast: nothing was timed."]
    assert "byte for byte" in (folder / "deployment" / "README.md").read_text()
