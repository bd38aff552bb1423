# SPDX-License-Identifier: Apache-2.0
"""Activations are rounded where they were in training, and once; grids that nobody trained reach as far as the data."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import fewbit
from coded_networks import rows, samples
from fewbit.sparsity.deploying.codes_to_onnx import write_codes_onnx
from processor import exact_sums


@pytest.fixture
def written(tmp_path):
    def write(model, change=None):
        torch.manual_seed(0)
        small = fewbit.quantize(model().eval(), rows("residual"), preset="w8a8")
        if change is not None:
            change(small)
        path = tmp_path / "model.onnx"
        attempt = write_codes_onnx(small, path, samples(small, "residual"), rows("residual"))
        return attempt, onnx.load(path).graph

    return write


@exact_sums
def test_what_moves_pools_and_clips_does_so_with_codes(written):
    """Nothing is rounded that was not in training, though nothing is left of the floats between the layers."""
    attempt, graph = written(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(72, 3),
        )
    )
    assert attempt.facts["untrained"] == [] and attempt.facts["integer"] == {"QGemm": 1, "QLinearConv": 1}
    assert attempt.check["relative"] < 1e-4
    given = {name: node for node in graph.node for name in node.output}
    pool = next(node for node in graph.node if node.op_type == "MaxPool")
    assert given[pool.input[0]].op_type == "DequantizeLinear"
    assert sum(node.op_type == "QuantizeLinear" for node in graph.node) == 4  # input, Conv, MaxPool, Flatten


@exact_sums
def test_a_clip_inside_the_range_of_a_grid_clips_codes(written):
    def wider(small):
        small[2].input_quantizer.scale.mul_(2.0)  # codes reach beyond what is clipped

    attempt, graph = written(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardtanh(0.0, 0.5), nn.Conv2d(8, 4, 3)), wider
    )
    clip = next(node for node in graph.node if node.op_type == "Clip")
    given = {name: node for node in graph.node for name in node.output}
    assert given[clip.input[0]].op_type == "QuantizeLinear"
    assert attempt.facts["integer"] == {"QLinearConv": 2} and attempt.check["relative"] < 0.02


class Both(nn.Module):
    """A value that a layer reads, and a sum."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, input):
        x = self.first(input)
        return x + self.second(x)


@exact_sums
@pytest.mark.parametrize("narrow", [False, True])
def test_a_sum_is_not_clipped_by_the_grid_of_a_layer(written, narrow):
    """The grid of the layer serves both where it reaches as far as the value does; if not, the value has its own."""

    def change(small):
        small.second.input_quantizer.scale.mul_(0.3 if narrow else 1.0)

    attempt, graph = written(Both, change)
    assert attempt.facts["untrained"] == ["first", "second"] and attempt.facts["integer"] == {"QLinearConv": 2}
    assert attempt.check["relative"] < 0.02
    assert sum(node.op_type == "QuantizeLinear" for node in graph.node) == 3 + narrow


@exact_sums
def test_ranges_are_those_of_all_inputs(tmp_path):
    """What reaches farther than the samples that the answers are judged by is not clipped."""
    torch.manual_seed(0)
    small = fewbit.quantize(nn.Sequential(nn.Conv2d(3, 4, 1)).eval(), rows("residual"), preset="w8a8")
    ends = []
    for number, feeds in enumerate(([], [{"input": row["input"] * 2} for row in rows("residual")])):
        path = tmp_path / f"{number}.onnx"
        attempt = write_codes_onnx(small, path, samples(small, "residual"), feeds)
        assert attempt.facts["untrained"] == ["0"]
        found = onnxruntime.InferenceSession(path).run(None, {"input": 9 * rows("residual")[0]["input"]})[0]
        ends.append(float(np.ptp(found)))
    assert ends[1] > 1.5 * ends[0]
