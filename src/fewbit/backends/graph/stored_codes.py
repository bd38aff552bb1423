# SPDX-License-Identifier: Apache-2.0
"""Weights that are codes in the file and floats in memory, for layers that compute in float.

Cast and Mul of constants are computed when a session is made, so nothing is paid at run time; DequantizeLinear, which
runtimes keep for the sake of fusions, would be computed in each call.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.table_codes import keep_table
from fewbit.backends.graph.weights import to_node
from fewbit.backends.graph.writing import Writer, drop_if_unused
from fewbit.model.ops import EMBEDDING
from fewbit.numerics.qtensor import QTensor


def store_codes(model: ir.Model, layer: Layer, codes: QTensor, *, standard: bool = False) -> None:
    """Keep a weight as int8 codes with one scale an output channel, for every node that reads it.

    Args:
        model: the model.
        layer: the layer; of a table, rows are looked up as codes.
        codes: in fewbit's layout.
        standard: use the operators of ONNX alone.
    """
    if layer.op is EMBEDDING:
        keep_table(model.graph, layer, codes, standard=standard)
        return
    write, weight, name = Writer(model.graph), layer.weight_value, layer.name
    owner, dtype = weight.graph or model.graph, weight.dtype or ir.DataType.FLOAT
    own = to_node(layer, codes.codes()).contiguous().numpy().astype(np.int8)
    scale = to_node(layer, codes.qparams.step).contiguous().numpy()
    kept = write.constant(f"{weight.name}.codes", own, owner)
    each = write.constant(f"{weight.name}.scale", scale.astype(dtype.numpy()), owner)
    cast = write.node("Cast", [kept], f"{name}.weight.cast", {"to": dtype.value}, dtype=dtype)
    product = write.node("Mul", [cast.outputs[0], each], f"{name}.weight.scaled", dtype=dtype)
    product.outputs[0].shape = weight.shape
    weight.replace_all_uses_with(product.outputs[0], replace_graph_outputs=True)
    owner.insert_before(owner[0], [cast, product])
    drop_if_unused(weight)
