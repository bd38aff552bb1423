# SPDX-License-Identifier: Apache-2.0
"""Trained codes and quantizers into the float graph that a marked module was exported as.

unmark            which node is which layer, batch norms folded
choose_grids      on which grid activations are between the layers
emit              QuantizeLinear and DequantizeLinear where ONNX Runtime makes integer kernels of them
what is left      weights of few bits that are multiplied as floats, what they read rounded where it was in training
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common as passes

from fewbit.backends.graph.emit import emit
from fewbit.backends.graph.executed import executed
from fewbit.backends.graph.guarding import keep_float
from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.opset import BY_AXIS, raise_opset
from fewbit.backends.graph.placement import Placement
from fewbit.backends.graph.repair import drop_idle
from fewbit.backends.graph.stored_codes import store_codes
from fewbit.backends.graph.targets import ONNXRUNTIME
from fewbit.backends.graph.unable import INSIDE, no_kernel
from fewbit.backends.graph.units import Unit, units
from fewbit.backends.graph.writing_codes import Pending, write_codes
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.qtensor import QTensor
from fewbit.sparsity.deploying.folded_codes import by_row
from fewbit.sparsity.deploying.how_far import FLOATS, INTEGERS, TRAINED
from fewbit.sparsity.deploying.marking import Trained
from fewbit.sparsity.deploying.rounded_inputs import round_inputs
from fewbit.sparsity.deploying.trained_grids import choose_grids, untrained_nodes
from fewbit.sparsity.deploying.unmarking import Known, unmark

_WHY = {
    TRAINED: "what it gives would be rounded as it was not in training",
    FLOATS: "biases of integer kernels are rounded",
}


@dataclass
class CodedGraph:
    """What was written.

    Args:
        layers: how many layers have codes.
        integer: the operators that multiply integers, each with how often it runs.
        floats: by layer, why it is multiplied as floats although its input was rounded in training.
        untrained: layers whose output is rounded as it was not in training.
    """

    layers: int
    integer: dict[str, int] = field(default_factory=dict)
    floats: dict[str, str] = field(default_factory=dict)
    untrained: list[str] = field(default_factory=list)

    def words(self) -> str:
        """What runs, in words."""
        kernels = ", ".join(f"{name} {count}" for name, count in self.integer.items())
        return f"codes in {self.layers} layers" + (f", multiplied as integers ({kernels})" if kernels else "")


def put_codes(
    model: ir.Model, trained: Mapping[str, Trained], feeds: Sequence[Mapping[str, Any]], *, how: str
) -> CodedGraph:
    """Put codes and quantizers into a graph, in place.

    Args:
        model: what the exporter made of a marked module.
        trained: its layers.
        feeds: inputs of the graph, for ranges of what no trained quantizer reads.
        how: `INTEGERS`; `TRAINED`, where what would have to be rounded as it was not in training is multiplied as
            floats; or `FLOATS`, where all is, with activations rounded as in training.

    Raises:
        UsageError: a layer whose codes cannot be put in.
    """
    raise_opset(model, BY_AXIS)
    known = unmark(model, trained)
    codes = {name: node.codes for name, node in known.items() if node.codes is not None}
    reads = {name: node.reads for name, node in known.items() if node.reads is not None}
    floats = _without_kernel(model.graph, known)
    integer = [name for name in reads if name not in floats]
    if how != INTEGERS:
        floats |= dict.fromkeys(integer if how == FLOATS else untrained_nodes(model, reads, integer), _WHY[how])
        integer = [name for name in reads if name not in floats]
    chosen = choose_grids(model, reads, integer, feeds)
    placement = Placement(ONNXRUNTIME, tuple(chosen.units), 0.0, 0.0, 0.0)
    emit(model, placement, chosen.scales, {name: by_row(codes[name]) for name in integer})
    round_inputs(model.graph, {name: reads[name] for name in floats})
    list(drop_idle(model.graph))
    keep_float(model.graph)
    _keep_rest(model, {name: each for name, each in codes.items() if name not in integer}, floats)
    passes.RemoveUnusedNodesPass()(model)
    runs = executed(model)
    floats |= {name: f"ONNX Runtime has made a {kind} of it" for name, kind in runs.float_nodes if name in integer}
    said = {known[name].module: why for name, why in floats.items()}
    layers = {known[name].module for name in codes}
    return CodedGraph(len(layers), runs.integer, said, [known[name].module for name in chosen.untrained])


def _without_kernel(graph: ir.Graph, known: Mapping[str, Known]) -> dict[str, str]:
    """The nodes with a rounded input that no integer kernel computes, each with the reason."""
    own = {unit.name: unit for unit in units(graph)}
    rounded = {name: node for name, node in known.items() if node.reads is not None}
    found = {name: _reason(own.get(name), node.codes) for name, node in rounded.items()}
    return {name: why for name, why in found.items() if why is not None}


def _reason(unit: Unit | None, codes: QTensor | None) -> str | None:
    if codes is None:
        return "its weight has no codes"
    if unit is None:
        return INSIDE
    if not _is_plain(codes):
        return f"integer kernels take symmetric int8, and no {codes.grid.dtype.name} by {codes.grid.granularity.value}"
    return no_kernel(unit, ONNXRUNTIME)


def _is_plain(codes: QTensor) -> bool:
    """Whether codes are what integer kernels take: int8 without zero points, a scale for all or for each output."""
    alone = codes.zero_point is None and codes.super_scale is None
    return codes.grid.dtype is Dtype.int8 and alone and codes.block[1:] == codes.shape[1:]


def _keep_rest(model: ir.Model, codes: Mapping[str, QTensor], rounded: Iterable[str]) -> None:
    """Weights that are multiplied as floats, kept as codes."""
    own = {name: _layer(model.graph, name) for name in codes}
    stored = [name for name in rounded if name in codes and _is_plain(codes[name]) and not own[name].split]
    for name in stored:
        if own[name].weight_value.is_initializer():  # and not kept already, by another layer that shares it
            store_codes(model, own[name], by_row(codes[name]))
    rest = {name: each for name, each in codes.items() if name not in stored}
    write_codes(model, {name: own[name] for name in rest}, Pending(dict(rest)), None)


def _layer(graph: ir.Graph, name: str) -> Layer:
    return next(layer for node in graph.all_nodes() if node.name == name and (layer := layer_of(node)) is not None)
