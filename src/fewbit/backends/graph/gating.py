# SPDX-License-Identifier: Apache-2.0
"""What rounding one value does to the model's answers, measured for each value by itself in one session.

Every value goes through `If(gate) rounded else value`, and the gates are an input: one graph, compiled once, is the
float model with all gates closed, and the model with one value rounded with one gate open. No model is built for a
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from fewbit.backends.graph.grids import CodeScale
from fewbit.backends.graph.opset import quantize_domain
from fewbit.backends.graph.sessions import session
from fewbit.backends.graph.units import FLOATS
from fewbit.backends.graph.writing import Writer

Answers = list[list[NDArray[np.float64]]]

_EASY = 0.5  # of what a group may cost, what is not worth a closer look
_RUNS = 32  # of an item, until what is not told apart yet stays so

_GATES = "fewbit.gates"
# What turns numbers into a choice: before it an error can be seen long before the choice changes.
_SQUASHING = ("Softmax", "LogSoftmax", "Sigmoid", "ArgMax", "TopK", "NonMaxSuppression", "Cast", "Squeeze", "Unsqueeze",
              "Identity", "Reshape", "Transpose", "Flatten")  # fmt: skip


class Gated:
    """A model whose values can be rounded one at a time.

    Args:
        model: the float model; it is not changed.
        scales: the values, by name, and the codes they would become.
    """

    def __init__(self, model: ir.Model, scales: Mapping[str, CodeScale]):
        twin = model.clone(deep_copy=False)
        self.values = list(scales)
        judged = answers(twin.graph)
        chosen = _put_gates(twin, scales)
        outputs = dict.fromkeys(chosen.get(value, value) for group in judged for value in group)
        twin.graph.outputs[:] = list(outputs)
        place = {value: index for index, value in enumerate(outputs)}
        self._groups = [[place[chosen.get(value, value)] for value in group] for group in judged]
        self._session = session(twin)
        self._closed = np.zeros(len(self.values), bool)

    def run(self, item: Mapping[str, Any], opened: Sequence[int] = ()) -> Answers:
        """The answers to one item, with some values rounded."""
        gates = self._closed.copy()
        gates[list(opened)] = True
        found = self._session.run(None, {**item, _GATES: gates})
        wide = [np.asarray(out, np.float64) for out in found]
        return [[wide[index] for index in group] for group in self._groups]

    def harm(
        self, items: Sequence[Mapping[str, Any]], noise: Mapping[str, float] | None = None, allowed: float = 0.0
    ) -> dict[str, float]:
        """For each value: the energy of the error that rounding it brings, over that of the answers.

        Errors of different values add up, so many are measured at once: a group whose error is small is left together,
        and its error shared out by the noise of its members; another is halved, the worst first, as long as there is
        time. Without `noise` each is measured alone.

        Args:
            items: what the model is run on.
            noise: of each value, the energy of rounding over its own.
            allowed: the error of all values together that would be worth while; what is small beside its share of this
                is not looked at more closely.
        """
        clean = [self.run(item) for item in items]

        def measure(group: list[int]) -> float:
            return sum(distance(a, self.run(item, group)) for a, item in zip(clean, items)) / max(len(items), 1)

        everyone = list(range(len(self.values)))
        if noise is None:
            return {name: measure([index]) for index, name in enumerate(self.values)}
        shares = [noise[name] for name in self.values]
        found = dict.fromkeys(self.values, 0.0)
        for harm, group in _halved(everyone, measure, _EASY * allowed / max(len(everyone), 1)) if everyone else ():
            whole = sum(shares[index] for index in group)
            for index in group:
                found[self.values[index]] = harm * (shares[index] / whole if whole else 1 / len(group))
        return found


def _halved(
    everyone: list[int], measure: Callable[[list[int]], float], easy: float
) -> Iterator[tuple[float, list[int]]]:
    """Groups and their harm: the one that does the most for its size is halved, until all do little or it takes long.

    Args:
        everyone: the first group.
        measure: the harm of a group.
        easy: a harm by member that is not worth a closer look.
    """
    waiting, most = [(-measure(everyone) / len(everyone), everyone)], _RUNS
    while waiting:
        each, group = heappop(waiting)  # of a member, and less than zero: the smallest comes first
        if len(group) == 1 or -each <= easy or most <= 0:
            yield -each * len(group), group
            continue
        middle = len(group) // 2
        for half in (group[:middle], group[middle:]):
            heappush(waiting, (-measure(half) / len(half), half))
        most -= 2


def answers(graph: ir.Graph) -> list[list[ir.Value]]:
    """What tells how well a model answers: each float output, with what it is before being turned into a choice.

    Both are looked at. Where a choice is clear, an error can be seen long before it changes; where most of what is
    before is far from any choice, as in the background of a mask, it hides the error of the rest.
    """
    found = []
    for value in _tensors(graph.outputs):
        group, at = [value], value
        while (node := at.producer()) is not None and node.graph is graph and node.op_type in _SQUASHING:
            before = node.inputs[0]
            if before is None or before.producer() is None:
                break
            at = before
        group += [at] if at is not value else []
        for each in group:
            each.type = each.type or ir.TensorType(ir.DataType.FLOAT)
        group = [each for each in group if each.dtype in FLOATS]
        found += [group] if group else []
    return found or [[value] for value in _tensors(graph.outputs)]


def _tensors(values: Iterable[ir.Value | None]) -> list[ir.Value]:
    """Values, those that are sequences or the like as the tensors they are made of."""
    found: dict[ir.Value, None] = {}
    for value in values:
        if value is None or isinstance(value.type, ir.TensorType | None):
            found.update({} if value is None else {value: None})
        elif (maker := value.producer()) is not None and maker.graph is value.graph:
            found.update(dict.fromkeys(_tensors(maker.inputs)))
    return list(found)


def distance(wanted: Answers, found: Answers) -> float:
    """The energy of the difference over that of the answers about their mean: the largest of a group, then the mean."""
    shares = [max(_share(a, b) for a, b in zip(ours, theirs)) for ours, theirs in zip(wanted, found)]
    return sum(shares) / max(len(shares), 1)


def _share(wanted: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    if wanted.shape != found.shape:  # as many boxes as were found: another number of them is as wrong as it gets
        return 1.0
    there = np.isfinite(wanted)  # a mask of minus infinity is an answer too
    if not np.array_equal(there, np.isfinite(found)):
        return 1.0
    wanted, off = wanted[there], (wanted[there] - found[there])
    if not off.any():
        return 0.0
    whole = float(np.square(wanted).sum())
    energy = float(np.square(wanted - wanted.mean()).sum()) if wanted.size > 1 else whole
    energy = max(energy, 1e-6 * whole)  # answers that are all the same have nothing but their size
    return float(np.square(off).sum()) / energy if energy else 1.0


def _put_gates(model: ir.Model, scales: Mapping[str, CodeScale]) -> dict[ir.Value, ir.Value]:
    """Put a gate behind each value; what its readers read from then on."""
    found: dict[ir.Value, ir.Value] = {}
    graph, write = model.graph, Writer(model.graph)
    gates = ir.Value(name=_GATES, shape=ir.Shape([len(scales)]), type=ir.TensorType(ir.DataType.BOOL))
    graph.inputs.append(gates)
    values = {value.name: value for node in graph for value in node.outputs} | {v.name: v for v in graph.inputs}
    domain = quantize_domain(model)
    for index, (name, scale) in enumerate(scales.items()):
        value = values[name]
        readers = [(use.node, use.idx) for use in value.uses()]
        number = write.constant(f"{name}.gate.index", np.array(index, np.int64))
        grid = [
            write.constant(f"{name}.gate.scale", np.array(scale.scale, np.float32)),
            write.constant(f"{name}.gate.zero", np.array(scale.zero, np.uint8)),
        ]
        gate = write.node("Gather", [gates, number], f"{name}.gate")
        codes = write.node("QuantizeLinear", [value, *grid], f"{name}.gate.codes", domain=domain)
        rounded = write.node("DequantizeLinear", [codes.outputs[0], *grid], f"{name}.gate.rounded", domain=domain)
        same = write.node("Identity", [value], f"{name}.gate.same")
        branches = {"then_branch": _branch([codes, rounded], value), "else_branch": _branch([same], value)}
        chosen = write.node("If", [gate.outputs[0]], f"{name}.gate.chosen", branches)
        nodes = [gate, chosen]
        producer = value.producer()
        if producer is None or producer.graph is not graph:
            graph.insert_before(graph[0], nodes)
        else:
            graph.insert_after(producer, nodes)
        for node, place in readers:
            node.replace_input_with(place, chosen.outputs[0])
        found[value] = chosen.outputs[0]
        found[value].type, found[value].shape = value.type or ir.TensorType(ir.DataType.FLOAT), value.shape
    return found


def _branch(nodes: list[ir.Node], like: ir.Value) -> ir.Graph:
    out = nodes[-1].outputs[0]
    out.type, out.shape = like.type or ir.TensorType(ir.DataType.FLOAT), like.shape
    return ir.Graph([], [out], nodes=nodes, name=out.name)
