# SPDX-License-Identifier: Apache-2.0
"""Gates spelled out: a·x + b, clipped and scaled to lie between 0 and 1, said in the one operator that runtimes know.

A hard-swish is x times such a gate. Its division may come before or after the product, or be done to x alone; the clip
may be a Clip, or a Max and a Min, or a Relu and a Min.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.nodes import only_reader, replace_value
from fewbit.backends.graph.one_number import clip_of, line_of

_TOLERANCE = 1e-5  # exporters write 1/6 as a number; what a type cannot hold is forgiven too


@dataclass
class _Gate:
    """`clip(factor · x + offset, low, high)`, as far as its nodes were followed.

    Args:
        x: what it reads.
        low: where it ends below.
        high: where it ends above.
        chain: the nodes it is spelled in, in order.
        factor: of x.
        offset: what is added.
        tolerance: how far from 0 and 1 its ends may be.
        product: a Mul in the midst of the chain, after which the rest of the scale comes.
        other: what that Mul multiplies the gate with.
        scaled: the node that multiplied that with a number, if one did.
    """

    x: ir.Value
    low: float
    high: float
    chain: list[ir.Node]
    factor: float = 1.0
    offset: float = 0.0
    tolerance: float = _TOLERANCE
    product: ir.Node | None = None
    other: ir.Value | None = None
    scaled: list[ir.Node] = field(default_factory=list)

    def scale(self, factor: float, offset: float) -> None:
        self.low, self.high, self.offset = (end * factor + offset for end in (self.low, self.high, self.offset))
        self.factor *= factor

    @property
    def is_whole(self) -> bool:
        """Whether it goes from 0 to 1."""
        return abs(self.low) < self.tolerance and abs(self.high - 1) < self.tolerance


def name_hard_swish(graph: ir.Graph) -> Iterator[tuple[str, str]]:
    """Say gates in HardSigmoid, and hard-swish in HardSigmoid and Mul, where they are spelled out."""
    for node in list(graph):
        if node.graph is not graph or node.domain:
            continue
        found = _gate(node)
        if found is None:
            continue
        gate = ir.node(
            "HardSigmoid", [found.x], {"alpha": found.factor, "beta": found.offset}, name=f"{node.name}.gate"
        )
        made, out = gate.outputs[0], found.chain[-1].outputs[0]
        made.name, made.type, made.shape = f"{out.name}.gate", found.x.type, found.x.shape
        graph.insert_before(found.product or found.chain[-1], gate)
        if found.product is not None:
            for index, value in enumerate((found.other, made)):
                found.product.replace_input_with(index, value)
            made = found.product.outputs[0]
        replace_value(graph, out, made)
        gone = [old for old in (*found.chain, *found.scaled) if old is not found.product]
        for old in reversed(gone):
            graph.remove(old, safe=True)
        yield gate.name or "", f"a gate, spelled out in {len(gone)} nodes"


def _gate(node: ir.Node) -> _Gate | None:
    """The gate whose clip begins at a node; none if that is no clip, or not of a gate."""
    gate = _clipped(node)
    if gate is None or not _look_back(gate):
        return None  # a clip of what a layer gives is better left with the layer
    while not gate.is_whole:
        last = gate.chain[-1]
        after = only_reader(last)
        if after is None:
            return None
        step = line_of(after)
        if step is not None and step[1] > 0 and (gate.product is None or step[2] == 0):
            gate.scale(*step[1:])
        elif gate.product is None and after.op_type == "Mul" and not after.domain and abs(gate.low) < gate.tolerance:
            other = next((v for v in after.inputs if v is not last.outputs[0]), None)
            if other is None or constant(other) is not None:
                return None
            gate.product, gate.other = after, other
            _look_aside(gate)
        else:
            return None
        gate.chain.append(after)
    return gate if gate.factor > 0 else None


def _clipped(node: ir.Node) -> _Gate | None:
    """A clip from a node on, over as many nodes as clip."""
    found = clip_of(node)
    if found is None:
        return None
    x, low, high = found
    gate = _Gate(x, low, high, [node])
    if x.dtype == ir.DataType.FLOAT16:
        gate.tolerance = float(np.finfo(np.float16).eps)
    while (after := only_reader(gate.chain[-1])) is not None and (more := clip_of(after)) is not None:
        gate.low, gate.high = (min(max(end, more[1]), more[2]) for end in (gate.low, gate.high))
        gate.chain.append(after)
    return gate if np.isfinite(gate.low) and np.isfinite(gate.high) and gate.low < gate.high else None


def _look_back(gate: _Gate) -> bool:
    """Take in what multiplies and shifts before the clip; whether anything does."""
    while True:
        before = gate.x.producer()
        step = None if before is None or only_reader(before) is not gate.chain[0] else line_of(before)
        if before is None or step is None:
            return line_of(gate.chain[0]) is not None
        gate.x, factor, offset = step
        gate.factor, gate.offset = gate.factor * factor, gate.factor * offset + gate.offset
        gate.chain.insert(0, before)


def _look_aside(gate: _Gate) -> None:
    """Take in a number that the other side of the product is multiplied with, if that makes the gate whole."""
    assert gate.other is not None
    before = gate.other.producer()
    step = None if before is None or only_reader(before) is not gate.product else line_of(before)
    if before is not None and step is not None and step[2] == 0 and abs(gate.high * step[1] - 1) < gate.tolerance:
        gate.other = step[0]
        gate.scale(step[1], 0.0)
        gate.scaled = [before]
