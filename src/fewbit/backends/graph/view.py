# SPDX-License-Identifier: Apache-2.0
"""The view of an ONNX graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from fewbit import __version__
from fewbit.backends.graph.as_written import in_float, requantized
from fewbit.backends.graph.catalogue import Catalogue, catalogue
from fewbit.backends.graph.constants import constant
from fewbit.backends.graph.executed import executed
from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.nodes import only_reader
from fewbit.backends.graph.opening import open_graph, quantized_nodes
from fewbit.backends.graph.opset import BY_AXIS, raise_opset
from fewbit.backends.graph.placing import Placing
from fewbit.backends.graph.processor import saturates
from fewbit.backends.graph.repair import repair
from fewbit.backends.graph.rescaling import rescale
from fewbit.backends.graph.running import Sight, run
from fewbit.backends.graph.saving import save, to_proto
from fewbit.backends.graph.sessions import session
from fewbit.backends.graph.shapes import rank
from fewbit.backends.graph.shaping import value_shapes
from fewbit.backends.graph.shifting import shift
from fewbit.backends.graph.stored_codes import store_codes
from fewbit.backends.graph.structure import find_structure
from fewbit.backends.graph.targets import ONNXRUNTIME, target_of
from fewbit.backends.graph.unable import unable_dynamic, unable_static
from fewbit.backends.graph.weights import read_weight, write_weight
from fewbit.backends.graph.widening import widen
from fewbit.backends.graph.writing_codes import Pending, write_codes
from fewbit.errors import UsageError, nearest
from fewbit.model.ops import CONV, CONV_TRANSPOSE, LINEAR
from fewbit.model.placing import Placed, Rounding
from fewbit.model.points import Point, Role
from fewbit.model.structure import Structure
from fewbit.model.watch import Watch
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.record import Record
from fewbit.schemes.config import Config

Feed = Mapping[str, Any]


class GraphView:
    """An ONNX graph under the verbs of `ModelView`.

    Args:
        model: the graph, opened; the view changes it in place.
        source: what it was read from, which messages name and datasets are held against.
    """

    can = frozenset({"structure", "rescale", "shift", "place"})
    read_as = Grid(Dtype.uint8, symmetric=False)  # what layers in integers read, whatever eight bits were asked for
    left_in_float = "it stays in float, and the weight alone becomes codes"

    def __init__(self, model: ir.Model, source: Any = None):
        self.model = model
        self.source = source
        self._known: Catalogue | None = None
        self._types: dict[str, tuple[str, ...]] | None = None
        self._left: frozenset[str] = frozenset()
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._placings: dict[str | None, Placing] = {}
        self._example: Feed | None = None
        self._pending = Pending()
        self._written: ir.Model | None = None
        self.target: str | None = None
        self._noted: dict[tuple[str, str], None] = {}

    @classmethod
    def of(cls, source: Any) -> GraphView:
        """The view of a path or a `ModelProto`: opened, brought to an operator set that has integers, and repaired."""
        model = open_graph(source)
        view = cls(model, source)
        if not quantized_nodes(model):
            notes = raise_opset(model, BY_AXIS, fallback=10)
            notes += repair(model)
            view._noted = dict.fromkeys(notes)
        return view

    # looking

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What opening and running showed, as `(node, what)`."""
        return list(self._noted)

    def points(self, match: Callable[[Point], bool] | None = None) -> list[Point]:
        """Every point that matches, in order."""
        return [point for point in self._look().points if match is None or match(point)]

    def skipped(self) -> list[tuple[str, str]]:
        """Nodes with matrices that stay as they are, each with the reason."""
        return self._look().skipped

    def quantized(self) -> list[str]:
        """Nodes of quantized models, and layers with codes."""
        return [*self._pending.codes, *quantized_nodes(self.model)]

    def probe(self, item: Feed) -> None:
        """Learn the shapes of all values."""
        self._example = item
        self._shapes = value_shapes(self.model, item)
        self._placings.clear()

    def size(self) -> int:
        """Bytes of all initializers."""
        return sum(
            value.const_value.nbytes
            for graph in (self._finished().graph, *self._finished().graph.subgraphs())
            for value in graph.initializers.values()
            if value.const_value is not None
        )

    def layers(self) -> dict[str, tuple[str, ...]]:
        """Every node by name, with its operator."""
        return {node.name or "": (node.op_type,) for node in self.model.graph.all_nodes()}

    def types(self, layer: str) -> tuple[str, ...]:
        """The operator of a node."""
        if self._types is None:
            self._types = self.layers()
        if layer not in self._types:
            raise UsageError(f"the model has no node {layer!r}", expected=nearest(layer, self._types)[:300])
        return self._types[layer]

    def edges(self) -> list[tuple[str, str]]:
        """Who gives to whom, as pairs of node names."""
        return [
            (node.name or "", use.node.name or "")
            for node in self.model.graph.all_nodes()
            for value in node.outputs
            for use in value.uses()
        ]

    def read(self, point: Point) -> Tensor:
        """A weight in fewbit's layout, or what its codes stand for; not to be changed."""
        codes = self._pending.codes.get(point.layer)
        return read_weight(self.layer(point)) if codes is None else codes.dequantize()

    # running

    def run(self, items: Iterable[Feed], watch: Mapping[Point, Watch]) -> int:
        """Run the model over items, show what is asked about each watched activation, return the number of items."""
        return run(self.model, items, [self._sight(point, what) for point, what in watch.items()], self._shapes or None)

    def structure(self, item: Feed | None = None) -> Structure:
        """Who feeds whom; the graph alone says it."""
        return find_structure(self.model)

    def answers(self, items: Iterable[Feed]) -> Iterator[list[Tensor]]:
        """The outputs of the model for each item; those that are no tensors of numbers are left out."""
        yield from _outputs(session(self._finished()), items)

    def answers_as_written(self, items: Iterable[Feed]) -> Iterator[list[Tensor]]:
        """The same as the file says: without the runtime's graph optimizations, and without integer sums."""
        yield from _outputs(session(in_float(self._finished()), optimize=False), items)

    def requantized(self) -> list[tuple[str, str]]:
        """Layers with float weights that the runtime computes from quantized ones, each with its operator there."""
        return requantized(self._finished())

    def saturates(self) -> bool:
        """Whether the model has layers in integers, whose sums saturate on this processor."""
        return bool(saturates() and executed(self._finished()).integer)

    # placing

    def aim(self, target: str | None, accuracy_level: int = 0) -> None:
        """Say for which runtime the model will be written."""
        self.target = target_of(target).name
        self._pending.accuracy_level, self._written = accuracy_level, None

    def leave(self, nodes: Collection[str]) -> None:
        """Say which nodes stay in float, before `sites`: the others are placed without them."""
        self._left = frozenset(nodes)
        self._placings.clear()

    def hidden(self) -> dict[str, str]:
        """Layers in branches and loops: what they read does not leave these."""
        main = self.model.graph
        inner = (layer for layer in self._look().layers.values() if layer.node.graph is not main)
        return {layer.name: "it lies in a branch or a loop, whose values do not leave it" for layer in inner}

    def unable(self, *, static: bool) -> dict[str, str]:
        """Layers that cannot compute in integers where the model is aimed at, whatever the data, each with the reason.

        Args:
            static: with fixed scales; otherwise with scales that are found in each call.
        """
        found = self._look().layers
        if static:
            reasons = unable_static(self.model, target_of(self.target))
            return {name: reasons[name] for name in found if name in reasons}
        return {name: why for name, layer in found.items() if (why := unable_dynamic(layer)) is not None}

    def limits(self, target: str | None) -> dict[Point, tuple[float, float]]:
        """Of what only gates read: between what they are neither shut nor wide open."""
        return self._placing(target).limits()

    def sites(self, target: str | None) -> list[Point]:
        """Activations that may become codes, in order; after `probe`."""
        return list(self._placing(target).points)

    def harm(
        self,
        target: str | None,
        grids: Mapping[Point, QParams],
        items: Sequence[Feed],
        noise: Mapping[Point, float] | None = None,
        allowed: float = 0.0,
    ) -> dict[Point, float]:
        """The error in the model's answers that rounding each activation brings."""
        return self._placing(target).harm(grids, items, noise, allowed)

    def place(
        self,
        target: str | None,
        *,
        rounding: Mapping[Point, Rounding],
        weights: Mapping[str, float],
        price: float,
        forbidden: Mapping[str, str],
    ) -> Placed:
        """What computes in integers."""
        return self._placing(target).place(rounding, weights, price, forbidden)

    def settle(
        self, placed: Placed, activations: Mapping[Point, tuple[float, float]], weights: Mapping[str, QTensor]
    ) -> None:
        """Write a choice into the graph."""
        self._placing(placed.target).settle(placed, activations, weights)
        self._placings.clear()
        self._changed()

    def store(self, point: Point, codes: QTensor, target: str | None) -> None:
        """Keep a weight as codes in the file alone."""
        store_codes(self.model, self.layer(point), codes, standard=target_of(target) is not ONNXRUNTIME)
        self._changed()

    # changing

    def write(self, point: Point, tensor: Tensor) -> None:
        """Replace a weight, for every node that reads it."""
        if tuple(tensor.shape) != point.shape:
            raise UsageError(f"a tensor of shape {tuple(tensor.shape)}", where=point.name, expected=point.shape)
        write_weight(self.model.graph, self.layer(point), tensor)
        for user in point.users:
            self._pending.codes.pop(user.rpartition(".")[0], None)
        self._changed()

    def rescale(self, producer: str, consumers: Sequence[str], channels: Sequence[int], factors: Tensor) -> None:
        """Divide the producer's output channels by `factors` and multiply the consumers' inputs by them."""
        rescale(self.model, producer, consumers, channels, factors)
        self._changed()

    def shift(self, layer: str, amount: Tensor) -> None:
        """Add an amount to the output channels of a layer."""
        known = self._look()
        if layer not in known.layers:
            raise UsageError(f"the model has no layer {layer!r}", expected=nearest(layer, known.layers)[:300])
        shift(self.model, layer, amount, known.layers)
        self._changed()
        self._known = known  # there may be another Add; layers and points are the same

    def quantize(self, point: Point, how: QTensor | QParams | Grid) -> None:
        """Keep a weight as these codes; put a layer's input on a grid whose scales are found in each call.

        An input that no integer nodes read stays in float, and is noted.
        """
        if point.role is Role.weight and isinstance(how, QTensor) and how.shape == point.shape:
            for user in point.users:
                self._pending.codes[user.rpartition(".")[0]] = how
            self._written = None
        elif point.role is Role.input and isinstance(how, Grid):
            why = unable_dynamic(self.layer(point)) if point.layer in self._pending.codes else None
            if why is None:
                self._pending.dynamic.add(point.layer)
                self._written = None
            else:
                self._noted[point.name, f"{self.left_in_float}: {why}"] = None
        else:
            raise UsageError(
                f"{point.name} cannot be quantized by a {type(how).__name__} alone",
                where=point.name,
                expected="codes for a weight, a grid for an input; fixed scales are for the whole graph to place",
                try_="fewbit.quantize(model, dataset), which places them",
            )

    def signature(self) -> Any:
        """A path or a `ModelProto`."""
        return to_proto(self.model) if isinstance(self.source, ir.Model) else self.source

    def copy(self) -> GraphView:
        """A view of a copy; tensors are shared, and never changed in place."""
        twin = GraphView(self.model.clone(deep_copy=False), self.source)
        twin._pending = self._pending.copy()
        twin._noted, twin._shapes, twin._example = dict(self._noted), dict(self._shapes), self._example
        twin.target, twin._left = self.target, self._left
        return twin

    def native(self) -> Any:
        """The model as what it was given as: a `ModelProto`, or a model of onnx-ir."""
        model = self._finished()
        return model if isinstance(self.source, ir.Model) else to_proto(model)

    def save(self, path: Path, *, overwrite: bool = False) -> Path:
        """Write the model to a file, whole or not at all."""
        return save(self._finished(), path, overwrite=overwrite)

    def sign(self, config: Config, record: Record) -> None:
        """Leave in the model's metadata what was done to it; the record of each layer is a file beside it."""
        self._written = None
        self.model.metadata_props["fewbit"] = json.dumps({"version": __version__, **record.facts}, default=str)

    def executed(self) -> dict[str, Any]:
        """What ONNX Runtime runs of the model, for whichever it was written: operators in integers and in float."""
        return {"runtime": ONNXRUNTIME.name, **executed(self._finished()).facts()}

    # inside

    def layer(self, point: Point) -> Layer:
        """The layer a point belongs to."""
        found = self._look().layers
        if point.layer not in found:
            raise UsageError(f"the model has no layer {point.layer!r}", expected=nearest(point.layer, found)[:300])
        return found[point.layer]

    def _finished(self) -> ir.Model:
        """The model with codes written; how a weight is kept depends on what becomes of its layer's input.

        The view goes on with the float model beside it, so that a layer with codes can still be seen and shifted.
        """
        if not self._pending.codes and not self._pending.dynamic:
            return self.model
        if self._written is None:
            self._written = self.model.clone(deep_copy=False)
            write_codes(self._written, catalogue(self._written).layers, self._pending, self.target)
        return self._written

    def _changed(self) -> None:
        self._known = self._types = self._written = None

    def _look(self) -> Catalogue:
        if self._known is None:
            self._known = catalogue(self.model)
        return self._known

    def _placing(self, target: str | None) -> Placing:
        if target not in self._placings:
            self._widen()
            self._placings[target] = Placing(self.model, self._shapes, target, self._left)
        return self._placings[target]

    def _widen(self) -> None:
        """Let a float16 model compute in float32 inside: there are no integer kernels between halves on a CPU."""
        notes = widen(self.model)
        if notes and self._example is not None:
            self._noted |= dict.fromkeys(notes)
            self._changed()
            self._shapes = value_shapes(self.model, self._example)

    def _sight(self, point: Point, watch: Watch) -> Sight:
        if point.role is Role.input:
            layer = self.layer(point)
            value = layer.node.inputs[layer.reads]
            assert value is not None
            return Sight(value.name or "", layer.features, watch, layer)
        if point.role is Role.output and point.op in (LINEAR, CONV, CONV_TRANSPOSE):
            given, features = _output(self.layer(point))
            return Sight(given.name or "", features, watch)
        if point.role is Role.output:
            value = self._value(point)
            return Sight(value.name or "", self._axis(value), watch)
        raise UsageError(f"{point.name} cannot be watched", expected="an input or an output of a node")

    def _axis(self, value: ir.Value) -> int | None:
        """The axis of a value's features, as its layers have it: then what is computed for them serves for it too."""
        readers = (layer_of(use.node) for use in value.uses())
        axes = {layer.features for layer in readers if layer is not None and layer.node.inputs[layer.reads] is value}
        if len(axes) == 1:
            return axes.pop()
        rank = len(self._shapes.get(value.name or "", ()))
        return None if rank == 0 else 1 if rank > 3 else -1

    def _value(self, point: Point) -> ir.Value:
        """What a node gives, or an input of the graph."""
        for placing in self._placings.values():
            if point in placing.points:
                return placing.points[point]
        for node in self.model.graph:
            if node.name == point.layer:
                return node.outputs[0]
        for value in self.model.graph.inputs:
            if value.name == point.layer:
                return value
        raise UsageError(f"the model has no node {point.layer!r}", expected=nearest(point.layer, self.layers())[:300])


def _outputs(ready: Any, items: Iterable[Feed]) -> Iterator[list[Tensor]]:
    for item in items:
        found = (out for out in ready.run(None, dict(item)) if isinstance(out, np.ndarray))
        yield [torch.from_numpy(out) for out in found if out.dtype.kind in "fiub"]


def _output(layer: Layer) -> tuple[ir.Value, int]:
    """What a layer gives, with the constant that is added to it as a bias, and the axis of its channels."""
    value, reader = layer.node.outputs[0], only_reader(layer.node)
    axis = 1 if layer.op is not LINEAR else -1 if layer.weight or rank(value) == 1 else -2
    if reader is not None and reader.op_type == "Add" and any(constant(other) is not None for other in reader.inputs):
        value = reader.outputs[0]
    return value, axis
