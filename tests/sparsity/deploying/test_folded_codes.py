# SPDX-License-Identifier: Apache-2.0
"""Codes follow what a batch norm does to a weight: exactly, whatever its sign, and zeros stay zeros."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import helper

import onnx_graphs
from fewbit.backends.graph.layers import layers
from fewbit.backends.graph.opening import open_graph
from fewbit.errors import UsageError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.sparsity.deploying.folded_codes import by_row, refitted, shield

CODES = torch.tensor([[5, 0, -127], [-128, 0, 1], [3, 2, 0], [0, 0, 0]], dtype=torch.int8)
FACTORS = torch.tensor([-2.0, -0.5, 0.0, 7.0])


def qtensor(**grid):
    scale = torch.tensor([[0.1], [0.2], [0.3], [0.4]])
    zero = torch.ones(4, 1) if grid.get("symmetric") is False else None
    return QTensor.from_codes(CODES, QParams(Grid(Dtype.int8, **grid), (1, 3), scale, zero))


def layer(weight):
    node = helper.make_node("Gemm", ["x", "w"], ["y"], name="gemm", transB=1)
    model = open_graph(onnx_graphs.model([node], {"x": [1, 3]}, {"y": [1, 4]}, {"w": np.asarray(weight, np.float32)}))
    return next(iter(layers(model.graph)))


def test_signs_go_into_codes_and_sizes_into_scales():
    made = refitted(layer(qtensor().dequantize() * FACTORS[:, None]), qtensor(), "it")
    assert made.codes().tolist() == [[-5, 0, 127], [-128, 0, 1], [0, 0, 0], [0, 0, 0]]  # -128 has no opposite
    torch.testing.assert_close(made.scale.flatten()[:3], torch.tensor([0.2, -0.1, 0.3]))
    torch.testing.assert_close(made.dequantize(), qtensor().dequantize() * FACTORS[:, None])


def test_what_was_not_folded_stays_as_it_is():
    codes = qtensor()
    assert refitted(layer(codes.dequantize()), codes, "it") is codes


def test_another_weight_is_refused():
    with pytest.raises(UsageError, match="not what its codes stand for") as error:
        refitted(layer(qtensor().dequantize() + 0.1), qtensor(), "it")
    assert error.value.where == "it"


def test_one_scale_for_all_becomes_one_for_each_output():
    codes = QTensor.from_codes(CODES, QParams(Grid(Dtype.int8), (4, 3), torch.tensor([[0.25]])))
    made = by_row(codes)
    assert made.block == (1, 3) and torch.equal(made.dequantize(), codes.dequantize())
    assert by_row(made) is made


@pytest.mark.parametrize("symmetric", [True, False])
def test_codes_with_zero_points_are_kept_from_being_multiplied(symmetric):
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], name="gemm", transB=1),
        helper.make_node("Mul", ["a", "f"], ["y"], name="mul"),
    ]
    constants = {"w": np.zeros((4, 3), np.float32), "f": FACTORS.numpy()}
    model: ir.Model = open_graph(onnx_graphs.model(nodes, {"x": [1, 3]}, {"y": [1, 4]}, constants))
    shield(model.graph.node("gemm"), qtensor(symmetric=symmetric))
    assert [node.op_type for node in model.graph] == ["Gemm", *([] if symmetric else ["Identity"]), "Mul"]
