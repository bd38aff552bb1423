# SPDX-License-Identifier: Apache-2.0
"""Writing a placement into the graph: QuantizeLinear and DequantizeLinear where the runtime fuses them into integer
kernels.

Codes are uint8 with one scale and zero point a value; weights int8, one scale an output channel; biases int32 on the
product of both scales, which is the only form that every kernel takes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.grids import CodeScale
from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.opset import quantize_domain
from fewbit.backends.graph.placement import Placement
from fewbit.backends.graph.units import Unit
from fewbit.backends.graph.weights import to_node
from fewbit.backends.graph.writing import Writer
from fewbit.numerics.qtensor import QTensor

_MOST = 2**31 - 1


def emit(
    model: ir.Model, placement: Placement, scales: Mapping[str, CodeScale], weights: Mapping[str, QTensor]
) -> None:
    """Write a placement into a model, in place.

    Args:
        model: the model that the placement's units are of.
        placement: what computes in integers.
        scales: of every value that integer units read or give, by name.
        weights: codes by the name of the unit: int8, symmetric, one scale an output channel.
    """
    _Emitter(model, placement, scales, weights).write()
    passes.RemoveUnusedNodesPass()(model)


class _Emitter:
    def __init__(
        self, model: ir.Model, placement: Placement, scales: Mapping[str, CodeScale], weights: Mapping[str, QTensor]
    ):
        self._graph, self._placement, self._weights = model.graph, placement, weights
        self._scales = dict(scales)
        self._new = Writer(model.graph)
        self._domain = quantize_domain(model)
        self._inside = {node for unit in placement.units for node in unit.nodes}
        self._codes: dict[ir.Value, ir.Value] = {}  # what a value is kept as
        self._read: dict[ir.Value, ir.Value] = {}  # the float that is made of it again

    def write(self) -> None:
        order = {node: index for index, node in enumerate(self._graph)}
        for unit in sorted(self._placement.units, key=lambda unit: order[unit.nodes[0]]):
            self._write(unit)

    def _write(self, unit: Unit) -> None:
        inputs = {value: self._as_read(value) for value in unit.reads}
        if unit.kind == "affine":  # the same codes, read in another way
            self._codes[unit.out] = self._codes[unit.reads[0]]
            self._serve(unit)
        elif unit.kind in ("hard_swish", "hard_sigmoid"):
            self._write_gate(unit, inputs[unit.reads[0]])
        else:
            for node in unit.nodes:
                for index, value in enumerate(node.inputs):
                    if value in inputs:
                        node.replace_input_with(index, inputs[value])
            if unit.layer is not None:
                self._write_weight(unit, unit.layer)
            if self._placement.gives_codes(unit) or any(use.node in self._inside for use in unit.out.uses()):
                self._quantize(unit.out)
                self._serve(unit)

    # values

    def _as_read(self, value: ir.Value) -> ir.Value:
        """A value as an integer unit reads it: codes, made floats right before."""
        if value not in self._codes:
            self._quantize(value)
        return self._dequantized(value)

    def _quantize(self, value: ir.Value) -> None:
        name = _name(value)
        codes = self._node("QuantizeLinear", [value, *self._grid(name, self._scales[name])], f"{name}.quantize")
        codes.shape, codes.type = value.shape, ir.TensorType(ir.DataType.UINT8)
        self._put(codes, value.producer())
        self._codes[value] = codes

    def _dequantized(self, value: ir.Value) -> ir.Value:
        if value not in self._read:
            name, codes = _name(value), self._codes[value]
            read = self._node("DequantizeLinear", [codes, *self._grid(name, self._scales[name])], f"{name}.dequantize")
            read.shape, read.type = value.shape, value.type
            self._put(read, codes.producer())
            self._read[value] = read
        return self._read[value]

    def _serve(self, unit: Unit) -> None:
        """Let everyone read the codes of what a unit gives as codes only; an output of the graph keeps its name."""
        value = unit.out
        if not self._placement.gives_codes(unit):
            return
        read, quantizer = self._dequantized(value), self._codes[value].producer()
        for index, out in enumerate(self._graph.outputs):
            if out is value:
                name = value.name
                value.name, read.name = f"{name}.before", name
                self._scales[_name(value)] = self._scales[str(name)]
                self._graph.outputs[index] = read
        for node, index in [(use.node, use.idx) for use in value.uses()]:
            if node is not quantizer and node not in unit.nodes:
                node.replace_input_with(index, read)

    # units

    def _write_gate(self, unit: Unit, x: ir.Value) -> None:
        """clip(αx + β, 0, 1) as x + β/α on a grid of 255 steps from 0 to 1/α, whose codes are then read as 0 to 1."""
        last, name = unit.nodes[-1], unit.name
        shift = unit.offset / unit.factor
        code, zero = (255, 0) if shift >= 0 else (0, 255)
        number = self._new.constant(f"{name}.shift.codes", np.array(code, np.uint8))
        far = CodeScale(max(abs(shift), 1e-30) / 255, zero)
        read = self._node("DequantizeLinear", [number, *self._grid(f"{name}.shift", far)], f"{name}.shift.dequantize")
        moved = self._node("Add", [x, read], f"{name}.shifted")
        ends = self._grid(f"{name}.gate", CodeScale(1 / (255 * unit.factor), 0))
        codes = self._node("QuantizeLinear", [moved, *ends], f"{name}.gate.quantize")
        made = [read, moved, codes]
        if unit.kind == "hard_swish":
            opened = self._grid(f"{name}.opened", CodeScale(1 / 255, 0))
            gate = self._node("DequantizeLinear", [codes, *opened], f"{name}.gate.dequantize")
            product = self._node("Mul", [x, gate], f"{name}.product")
            product.type, product.shape = unit.out.type, unit.out.shape
            grid = self._grid(_name(unit.out), self._scales[_name(unit.out)])
            codes = self._node("QuantizeLinear", [product, *grid], f"{name}.quantize")
            made += [gate, product, codes]
        self._graph.insert_before(last, [value.producer() for value in made])  # type: ignore[misc]
        self._codes[unit.out] = codes
        self._serve(unit)

    def _write_weight(self, unit: Unit, layer: Layer) -> None:
        name, codes = unit.name, self._weights[unit.name]
        scale = codes.qparams.step.reshape(-1).float().numpy()
        axis = 1 if layer.split else layer.axes[0]
        own = to_node(layer, codes.codes()).contiguous().numpy().astype(np.int8)
        scale = self._holding_bias(unit, layer, scale)
        inputs = [
            self._new.constant(f"{name}.weight.codes", own),
            self._new.constant(f"{name}.weight.scale", scale),
            self._new.constant(f"{name}.weight.zero_point", np.zeros(scale.shape, np.int8)),
        ]
        read = self._node("DequantizeLinear", inputs, f"{name}.weight.dequantize", {"axis": axis})
        read.type, read.shape = layer.weight_value.type, layer.weight_value.shape
        self._graph.insert_before(layer.node, read.producer())  # type: ignore[arg-type]
        layer.node.replace_input_with(layer.weight, read)
        self._write_bias(unit, layer, scale)

    def _bias(self, unit: Unit, layer: Layer) -> tuple[ir.Node, int, np.ndarray] | None:  # type: ignore[type-arg]
        """The node that adds a layer's bias, the bias' place among its inputs, and its values `[out]` or `[1]`."""
        node, index = (layer.node, layer.bias) if unit.bias is None else (unit.bias, None)
        if unit.bias is not None:
            index = next(place for place, value in enumerate(unit.bias.inputs) if constant(value) is not None)
        value = node.inputs[index] if index is not None and len(node.inputs) > index else None
        found = constant(value)
        return None if index is None or found is None else (node, index, np.asarray(found, np.float64).reshape(-1))

    def _holding_bias(self, unit: Unit, layer: Layer, scale: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        """Scales no smaller than an int32 bias needs: those of rows of almost nothing beside a large bias would be."""
        found = self._bias(unit, layer)
        if found is None:
            return scale
        least = np.abs(found[2]) / (self._scales[_name(unit.reads[0])].scale * (_MOST // 2))
        held: np.ndarray = np.maximum(scale, least.astype(np.float32))  # type: ignore[type-arg]
        return held

    def _write_bias(self, unit: Unit, layer: Layer, scale: np.ndarray) -> None:  # type: ignore[type-arg]
        found = self._bias(unit, layer)
        if found is None:
            return
        node, index, values = found
        product = scale * np.float32(self._scales[_name(unit.reads[0])].scale)
        codes = np.rint(np.broadcast_to(values, product.shape) / product.astype(np.float64))
        name = unit.name
        inputs = [
            self._new.constant(f"{name}.bias.codes", codes.astype(np.int32)),
            self._new.constant(f"{name}.bias.scale", product),
            self._new.constant(f"{name}.bias.zero_point", np.zeros(product.shape, np.int32)),
        ]
        read = self._node("DequantizeLinear", inputs, f"{name}.bias.dequantize", {"axis": 0})
        self._graph.insert_before(node, read.producer())  # type: ignore[arg-type]
        node.replace_input_with(index, read)

    # nodes

    def _node(self, op: str, inputs: list[ir.Value], name: str, attributes: dict[str, int] | None = None) -> ir.Value:
        domain = self._domain if op.endswith("Linear") else ""
        return self._new.node(op, inputs, name, attributes, domain=domain).outputs[0]

    def _put(self, value: ir.Value, after: ir.Node | None) -> None:
        node = value.producer()
        assert node is not None
        if after is None or after.graph is not self._graph:
            self._graph.insert_before(self._graph[0], node)
        else:
            self._graph.insert_after(after, node)

    def _grid(self, name: str, scale: CodeScale) -> list[ir.Value]:
        return [
            self._new.constant(f"{name}.scale", np.array(scale.scale, np.float32)),
            self._new.constant(f"{name}.zero_point", np.array(scale.zero, np.uint8)),
        ]


def _name(value: ir.Value) -> str:
    return value.name or ""
