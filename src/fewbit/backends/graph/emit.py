# SPDX-License-Identifier: Apache-2.0
"""Writing a placement into the graph: QuantizeLinear and DequantizeLinear where the runtime fuses them into integer
kernels.

Codes are uint8 with one scale and zero point a value; what they are for layers says `emit_layers`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from fewbit.backends.graph.emit_layers import write_layer
from fewbit.backends.graph.grids import CodeScale
from fewbit.backends.graph.guarding import keep_float
from fewbit.backends.graph.nodes import give_out
from fewbit.backends.graph.opset import quantize_domain
from fewbit.backends.graph.placement import Placement
from fewbit.backends.graph.units import Unit
from fewbit.backends.graph.writing import Writer
from fewbit.numerics.qtensor import QTensor

_CLIP = 12  # the operator set in which codes can be clipped


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
    if placement.target.rounds_weights:
        keep_float(model.graph)
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
        if unit.kind == "affine" and self._shares_codes(unit):
            self._codes[unit.out] = self._codes[unit.reads[0]]
            self._serve(unit)
        elif unit.kind == "pass" and unit.ends is not None and self._can_clip(unit, *unit.ends):
            self._write_clip(unit, self._codes[unit.reads[0]], unit.ends, unit.nodes[0])
        elif unit.kind in ("affine", "hard_swish") or (unit.kind == "hard_sigmoid" and self._can_clip(unit, 0.0, 1.0)):
            self._write_line(unit, inputs[unit.reads[0]])
        else:
            for node in unit.nodes:
                for index, value in enumerate(node.inputs):
                    if value in inputs:
                        node.replace_input_with(index, inputs[value])
            if unit.layer is not None:
                step = self._scales[_name(unit.reads[0])].scale
                write_layer(self._new, self._domain, unit, self._weights[unit.name], step)
            if self._placement.gives_codes(unit) and unit.ends is not None and self._can_clip(unit, *unit.ends):
                self._write_ends(unit, unit.ends)
            elif self._placement.gives_codes(unit) or any(use.node in self._inside for use in unit.out.uses()):
                for value in unit.gives:
                    self._quantize(value)
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
        if not self._placement.gives_codes(unit):
            return
        for value in unit.gives:
            read, quantizer = self._dequantized(value), self._codes[value].producer()
            if value.is_graph_output():
                scale = self._scales[_name(value)]
                give_out(self._graph, value, read)
                self._scales[_name(value)] = scale
            for node, index in [(use.node, use.idx) for use in value.uses()]:
                if node is not quantizer and node not in unit.nodes:
                    node.replace_input_with(index, read)

    # units

    def _shares_codes(self, unit: Unit) -> bool:
        """Whether what a line gives is the codes that it reads, read in another way."""
        before, after = (self._scales[_name(value)] for value in (unit.reads[0], unit.out))
        return after.follows(before, unit.factor, unit.offset)

    def _can_clip(self, unit: Unit, low: float, high: float) -> bool:
        """Whether what a unit gives can be clipped as codes."""
        own = self._placement.target.clips_codes and self._new.opset >= _CLIP
        return own or self._scales[_name(unit.out)].clips(low, high)

    def _clipped(self, name: str, codes: ir.Value, scale: CodeScale, low: float, high: float) -> list[ir.Value]:
        """Codes between two ends; nothing new where there are none outside."""
        if scale.clips(low, high):
            return []
        ends = [np.array(scale.code(end), np.uint8) for end in (low, high)]
        numbers = [self._new.constant(f"{name}.{end}", code) for end, code in zip(("least", "most"), ends)]
        clipped = self._node("Clip", [codes, *numbers], f"{name}.clip")
        clipped.shape, clipped.type = codes.shape, ir.TensorType(ir.DataType.UINT8)
        return [clipped]

    def _write_clip(self, unit: Unit, codes: ir.Value, ends: tuple[float, float], place: ir.Node) -> None:
        name = _name(unit.out)
        made = self._clipped(name, codes, self._scales[name], *ends)
        self._graph.insert_before(place, [value.producer() for value in made])  # type: ignore[misc]
        self._codes[unit.out] = [codes, *made][-1]
        self._serve(unit)

    def _write_ends(self, unit: Unit, ends: tuple[float, float]) -> None:
        """Codes of what is not clipped yet, and those clipped: kernels are fused with codes that follow at once."""
        before, name = unit.nodes[-2].outputs[0], _name(unit.out)
        codes = self._node("QuantizeLinear", [before, *self._grid(name, self._scales[name])], f"{name}.quantize")
        codes.shape, codes.type = unit.out.shape, ir.TensorType(ir.DataType.UINT8)
        self._put(codes, unit.nodes[-2])
        self._write_clip(unit, codes, ends, unit.nodes[-1])

    def _write_line(self, unit: Unit, x: ir.Value) -> None:
        """αx + β as x + β/α on its own grid, stretched by 1/α; a gate is that clipped, a hard-swish its product with x.

        The gate of a hard-swish, which nobody else reads, has 255 steps from 0 to 1: codes clip by themselves.
        """
        name = unit.name
        shift = unit.offset / unit.factor
        code, zero = (255, 0) if shift >= 0 else (0, 255)
        number = self._new.constant(f"{name}.shift.codes", np.array(code, np.uint8))
        far = CodeScale(max(abs(shift), 1e-30) / 255, zero)
        read = self._node("DequantizeLinear", [number, *self._grid(f"{name}.shift", far)], f"{name}.shift.dequantize")
        moved = self._node("Add", [x, read], f"{name}.shifted")
        own = self._scales[_name(unit.out)]
        gate = CodeScale(1 / 255, 0) if unit.kind == "hard_swish" else own
        stretched = self._grid(f"{name}.gate", CodeScale(gate.scale / unit.factor, gate.zero))
        codes = self._node("QuantizeLinear", [moved, *stretched], f"{name}.gate.quantize")
        made = [read, moved, codes]
        if unit.kind != "affine":
            made += self._clipped(f"{name}.gate", codes, gate, 0.0, 1.0)
        if unit.kind == "hard_swish":
            opened = self._node(
                "DequantizeLinear", [codes, *self._grid(f"{name}.opened", gate)], f"{name}.gate.dequantize"
            )
            product = self._node("Mul", [x, opened], f"{name}.product")
            product.type, product.shape = unit.out.type, unit.out.shape
            codes = self._node("QuantizeLinear", [product, *self._grid(_name(unit.out), own)], f"{name}.quantize")
            made += [opened, product, codes]
        self._graph.insert_before(unit.nodes[-1], [value.producer() for value in made])  # type: ignore[misc]
        self._codes[unit.out] = made[-1]
        self._serve(unit)

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
