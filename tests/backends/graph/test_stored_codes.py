# SPDX-License-Identifier: Apache-2.0
"""Weights that are codes in the file and floats in the session."""

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper

from fewbit.backends.graph.catalogue import catalogue
from fewbit.backends.graph.stored_codes import store_codes
from fewbit.backends.graph.weights import read_weight, write_weight
from onnx_graphs import model, random, run
from tiny_models import codes


def graph_of(op, weight, **attributes):
    node = helper.make_node(op, ["x", "w"], ["y"], name="layer", **attributes)
    shape = [2, weight.shape[1], 6, 6] if op == "Conv" else [2, weight.shape[0], *([6, 6] if weight.ndim > 2 else [])]
    return model([node], {"x": shape}, {"y": None}, {"w": weight}), random(*shape, seed=5)


CASES = {
    "conv": ("Conv", random(8, 4, 3, 3), {}),
    "transposed": ("ConvTranspose", random(4, 8, 3, 3), {}),
    "matmul": ("MatMul", random(16, 8), {}),
    "gemm": ("Gemm", random(16, 8), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_model_computes_with_what_the_codes_stand_for(case, tmp_path):
    op, weight, attributes = CASES[case]
    proto, x = graph_of(op, weight, **attributes)
    stored, written = ir.from_proto(proto), ir.from_proto(proto)
    layer = catalogue(stored).layers["layer"]
    kept = codes(read_weight(layer))
    store_codes(stored, layer, kept)
    write_weight(written.graph, catalogue(written).layers["layer"], kept.dequantize())
    torch.testing.assert_close(*(torch.from_numpy(run(ir.to_proto(m), x=x)[0]) for m in (stored, written)))
    # Nothing of it is left to compute when a session has been made.
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(ir.to_proto(stored).SerializeToString(), options, providers=["CPUExecutionProvider"])
    left = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert not left & {"Cast", "Mul", "DequantizeLinear"}
    sizes = {value.name: value.const_value.nbytes for value in stored.graph.initializers.values()}
    assert sum(sizes.values()) < 0.5 * weight.nbytes
