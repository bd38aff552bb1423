# SPDX-License-Identifier: Apache-2.0
"""Small graphs, quantized as far as a runtime can: placement with costs that want integers, ranges from a few runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from fewbit.backends.graph import targets
from fewbit.backends.graph.executed import executed
from fewbit.backends.graph.opening import open_graph
from fewbit.backends.graph.placing import Placing
from fewbit.backends.graph.saving import to_proto
from fewbit.backends.graph.view import GraphView
from fewbit.model.points import Role
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.qtensor import QTensor

INT8 = Grid(Dtype.int8, symmetric=True, granularity=QSchemeType.per_channel, axis=0)


def eager(target=targets.ONNXRUNTIME):
    """A target with the same kernels, to which float costs more than anything else."""
    cheap = {kind: lambda work: 1e-3 * work.out for kind in target.integer}
    free = {"to_codes": 0.0, "from_codes": 0.0, "layout": 0.0, "unfused": {}}
    return replace(target, name="eager", integer=cheap, floating=lambda work: 1.0 * work.out, **free)


class Quantized:
    """A float model, what was made of it, and both in the runtime.

    Args:
        proto: the float model.
        items: arrays by input, from which ranges are taken.
        target: the runtime.
        forbidden: nodes that stay in float, by name, with the reason.
        raised: whether the model is brought to a later operator set.
    """

    def __init__(self, proto, items, target=None, forbidden=None, raised=True):
        self.view = GraphView.of(proto) if raised else GraphView(open_graph(proto))
        self.items = items
        self.view.probe(items[0])
        float_model = self.view.model.clone()
        placing = _placing(self.view, target or eager())
        self.board = placing.board
        layers = {point.layer: 0.0 for point in self.view.points(lambda point: point.role is Role.weight)}
        self.placed = placing.place({}, layers, float("inf"), forbidden or {})
        ranges = {point: _ends(self._seen(float_model, value)) for point, value in placing.points.items()}
        codes = {
            point.layer: codes_of(self.view.read(point))
            for point in self.view.points(lambda point: point.role is Role.weight)
            if point.layer in self.placed.layers
        }
        placing.settle(self.placed, ranges, codes)
        self.model = self.view.model
        self.proto = to_proto(self.model)
        onnx.checker.check_model(self.proto)
        self.executed = executed(self.model)
        self.float = to_proto(float_model)

    def _seen(self, model, value):
        twin = model.clone()
        own = next(v for node in twin.graph for v in node.outputs if v.name == value.name) if value.producer() else None
        if own is None:
            return [item[value.name] for item in self.items]
        twin.graph.outputs[:] = [own]
        proto = to_proto(twin)
        return [answers(proto, item, optimized=False)[0] for item in self.items]

    @property
    def units(self):
        """Kinds of the units in integers."""
        return sorted(unit.kind for unit in self.placed.own.placement.units)

    def outputs(self, item, optimized=True):
        """What the quantized model answers."""
        return answers(self.proto, item, optimized)

    def steps_apart(self):
        """How far what the runtime runs is from what the graph says, in steps of the output's codes."""
        (scale,) = [numpy_helper.to_array(c) for c in self.proto.graph.initializer if c.name == f"{self._last}.scale"]
        return max(np.abs(self.outputs(item)[0] - self.outputs(item, False)[0]).max() / scale for item in self.items)

    @property
    def _last(self):
        return self.proto.graph.output[0].name

    def check(self, *, off=0.05, apart=0.02):
        """As the runtime runs it, it does what the graph says, and that is near to the float model."""
        for item in self.items:
            wanted, plain, fast = answers(self.float, item), self.outputs(item, False), self.outputs(item)
            for a, b, c in zip(wanted, plain, fast, strict=True):
                spread = max(float(np.std(a)), 1e-6)
                assert a.shape == b.shape == c.shape and a.dtype == b.dtype == c.dtype
                assert np.sqrt(np.mean(np.square(b - c))) <= apart * spread
                assert np.sqrt(np.mean(np.square(a - c))) <= off * spread
        return self


def answers(proto, item, optimized=True):
    """The outputs of a model in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    ready = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return ready.run(None, dict(item))


def _placing(view, target):
    targets.TARGETS[target.name], before = target, targets.TARGETS.get(target.name)
    try:
        return Placing(view.model, view._shapes, target.name)
    finally:
        if before is None:
            del targets.TARGETS[target.name]
        else:
            targets.TARGETS[target.name] = before


def _ends(seen):
    return float(min(x.min() for x in seen)), float(max(x.max() for x in seen))


def codes_of(weight):
    """A weight as int8 with one scale per output channel, to the nearest.

    Values stay within ±64: two products with uint8 then fit in int16, so sums are exact on processors without VNNI too.
    """
    rows = weight.float().reshape(weight.shape[0], -1)
    block = INT8.weight_block(tuple(weight.shape), 0)
    qparams = from_range(rows.amin(1), rows.amax(1), INT8, block)
    qparams = replace(qparams, scale=2 * qparams.scale.reshape(-1, *(1,) * (weight.ndim - 1)))
    return QTensor.encode(weight.float(), qparams)


def items_of(count=3, **shapes):
    """Items of standard normal numbers."""
    made = np.random.default_rng(7)
    return [
        {name: made.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(count)
    ]
