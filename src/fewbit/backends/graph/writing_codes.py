# SPDX-License-Identifier: Apache-2.0
"""Weights as codes, in the form that the runtime computes with: alone, or with activations scaled in each call.

write_codes(model, layers, pending, target)
  dynamic                 integers all through
  MatMulNBits             ONNX Runtime's own operator for 4 and 8 bits in blocks
  tables                  rows are looked up as codes
  DequantizeLinear        everything else, and every other runtime
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from fewbit.backends.graph.dynamic import round_input, write_dynamic
from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.nbits import takes_nbits, write_nbits
from fewbit.backends.graph.opset import raise_opset
from fewbit.backends.graph.table_codes import keep_table
from fewbit.backends.graph.targets import ONNXRUNTIME
from fewbit.backends.graph.weight_codes import keep_codes, needed_opset
from fewbit.model.ops import EMBEDDING
from fewbit.numerics.qtensor import QTensor


@dataclass
class Pending:
    """What is to be written.

    Args:
        codes: by layer.
        dynamic: layers whose input is scaled in each call.
        accuracy_level: of MatMulNBits; 0 computes in the model's own type.
    """

    codes: dict[str, QTensor] = field(default_factory=dict)
    dynamic: set[str] = field(default_factory=set)
    accuracy_level: int = 0

    def copy(self) -> Pending:
        """The same, apart."""
        return Pending(dict(self.codes), set(self.dynamic), self.accuracy_level)


def write_codes(model: ir.Model, layers: Mapping[str, Layer], pending: Pending, target: str | None) -> None:
    """Write codes into a graph, in place."""
    runtime = target in (None, ONNXRUNTIME.name)
    plain: dict[str, QTensor] = {}
    for name, codes in pending.codes.items():
        layer = layers[name]
        if name in pending.dynamic:
            write_dynamic(model.graph, layer, codes)
        elif runtime and takes_nbits(layer, codes):
            write_nbits(model.graph, layer, codes, accuracy_level=pending.accuracy_level)
        else:
            plain[name] = codes
    for name, layer in layers.items():
        if name in pending.dynamic and name not in pending.codes:
            round_input(model.graph, layer)
    done: set[ir.Value] = set()
    for name, codes in plain.items():
        weight = layers[name].weight_value
        if weight in done:
            continue  # who shares a weight reads the same codes
        done.add(weight)
        if layers[name].op is EMBEDDING:
            keep_table(model.graph, layers[name], codes, standard=not runtime)
        else:
            raise_opset(model, needed_opset(layers[name], codes))
            keep_codes(model.graph, layers[name], codes)
