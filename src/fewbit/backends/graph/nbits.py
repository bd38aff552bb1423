# SPDX-License-Identifier: Apache-2.0
"""Linear layers as MatMulNBits: ONNX Runtime multiplies with 4- or 8-bit weights without unpacking them first."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch.nn.functional as F

from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.linear import bias_of, linear_terms
from fewbit.backends.graph.runtime_blocks import runtime_block, runtime_blocks
from fewbit.backends.graph.writing import RUNTIME, Writer, drop_if_unused, replace_node
from fewbit.errors import UsageError
from fewbit.model.ops import LINEAR
from fewbit.numerics.qtensor import QTensor

_LARGEST = 256  # ONNX Runtime refuses longer blocks


def takes_nbits(layer: Layer, codes: QTensor) -> bool:
    """Whether there is a MatMulNBits that means what a layer with these codes does."""
    if layer.op is not LINEAR or len(codes.shape) != 2:
        return False
    try:
        bias_of(layer, linear_terms(layer), codes.shape[0])
        runtime_block(codes, layer.name, _LARGEST)
    except UsageError:
        return False
    return True


def write_nbits(graph: ir.Graph, layer: Layer, codes: QTensor, *, accuracy_level: int = 0) -> ir.Node:
    """Put a MatMulNBits in the place of a MatMul or Gemm with a constant right side.

    Args:
        graph: the model's main graph.
        layer: the layer; the new node has its name.
        codes: `[out, in]`, integers of up to 8 bits; those of up to 4 bits are kept in 4.
        accuracy_level: how activations may be rounded on the way: 0 as the model has them, 4 to int8, which is faster
            and has been seen to change a language model's next word.

    Raises:
        UsageError: a layer or codes that the operator has no form for.
    """
    terms = linear_terms(layer)
    write, weight, name = Writer(graph), layer.weight_value, layer.name
    owner, dtype = weight.graph or graph, weight.dtype or ir.DataType.FLOAT
    blocks = runtime_blocks(codes, name, _LARGEST)
    rows, columns = codes.shape
    count = blocks.scale.shape[1]
    padded = F.pad(blocks.codes, (0, count * blocks.block - columns)).reshape(rows, count, blocks.block)
    number = dtype.numpy()
    scale = blocks.scale.numpy() * np.float32(terms.factor)
    inputs: list[ir.Value | None] = [
        layer.node.inputs[layer.reads],
        write.constant(f"{weight.name}.packed", blocks.pack(padded).numpy(), owner),
        write.constant(f"{weight.name}.scale", scale.astype(number), owner),
    ]
    if not blocks.centred:
        inputs.append(write.constant(f"{weight.name}.zero_point", blocks.pack(blocks.zero).numpy(), owner))
    bias, rest = bias_of(layer, terms, rows)
    if bias is not None:
        inputs += [None] * (5 - len(inputs))
        inputs.append(write.constant(f"{name}.bias", bias.astype(number), owner))
    attributes = {
        "K": columns, "N": rows, "bits": blocks.bits, "block_size": blocks.block, "accuracy_level": accuracy_level,
    }  # fmt: skip
    node = write.node("MatMulNBits", inputs, name, attributes, domain=RUNTIME, dtype=dtype)
    nodes = [node]
    if rest is not None:
        nodes.append(write.node("Add", [node.outputs[0], rest], f"{name}.add", dtype=dtype))
    replace_node(layer.node, nodes, node)
    drop_if_unused(weight)
    return node
