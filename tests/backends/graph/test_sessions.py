# SPDX-License-Identifier: Apache-2.0
"""Sessions: weights are shared, what the runtime refuses is said."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from fewbit.backends.graph.sessions import session
from fewbit.errors import DataError, UsageError
from onnx_graphs import model, random, run


def linear():
    weight = random(64, 64)
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [3, 64]}, {"y": None}, {"w": weight})


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("threads", [None, 1])
def test_runs_as_the_model(optimize, threads):
    proto, x = linear(), random(3, 64, seed=1)
    for source in (ir.from_proto(proto), proto.SerializeToString()):
        [y] = session(source, optimize=optimize, threads=threads).run(None, {"x": x})
        np.testing.assert_allclose(y, run(proto, x=x)[0], atol=1e-5)


def test_weights_do_not_travel():
    """A session of a model beyond 2 GB cannot be tested here; that its weights are not in what is serialised can."""
    graph, weight = ir.from_proto(linear()), random(64, 64)
    graph.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
    before = ir.to_proto(graph).SerializeToString()
    made = session(graph, optimize=False)
    _, arrays = made.fewbit_weights
    assert list(arrays) == ["w"]
    assert np.shares_memory(arrays["w"], weight)
    assert ir.to_proto(graph).SerializeToString() == before


def test_weights_live_as_long_as_the_session():
    proto, x = linear(), random(3, 64, seed=1)
    made = session(ir.from_proto(proto))  # the graph is gone already
    np.testing.assert_allclose(made.run(None, {"x": x})[0], run(proto, x=x)[0], atol=1e-5)


def test_external_weights(tmp_path):
    ir.save(ir.from_proto(linear()), tmp_path / "m.onnx", external_data="m.data")
    x = random(3, 64, seed=1)
    [y] = session(ir.load(tmp_path / "m.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(y, run(linear(), x=x)[0], atol=1e-5)


def test_unknown_operators():
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}, {"y": [1]}, {})
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Frob", "my.ops"
    proto.opset_import.append(helper.make_opsetid("my.ops", 1))
    with pytest.raises(UsageError, match=r"Frob.*my\.ops"):
        session(ir.from_proto(proto))


def test_refused_models():
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [3, 5]}, {}, {"w": random(4, 4)})
    proto.graph.output.append(helper.make_tensor_value_info("y", 1, [3, 4]))
    with pytest.raises(DataError, match="the runtime refuses the model"):
        session(ir.from_proto(proto))
    with pytest.raises(DataError, match="the runtime refuses the model"):
        session(b"no model")
