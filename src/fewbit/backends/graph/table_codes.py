# SPDX-License-Identifier: Apache-2.0
"""Tables of embeddings kept as codes: rows are looked up first and dequantized then, never the whole table."""

from __future__ import annotations

import onnx_ir as ir
import torch

from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.runtime_blocks import runtime_blocks
from fewbit.backends.graph.weight_codes import code_tensor, keep_value, storage_type
from fewbit.backends.graph.writing import RUNTIME, Writer, drop_if_unused, replace_node
from fewbit.errors import UsageError
from fewbit.numerics.qtensor import QTensor


def keep_table(graph: ir.Graph, layer: Layer, codes: QTensor, *, standard: bool = False) -> None:
    """Keep a table as codes, for every Gather that looks rows up in it; other readers get it dequantized.

    Args:
        graph: the model's main graph.
        layer: a Gather.
        codes: `[rows, features]`, integers of up to 8 bits.
        standard: use the operators of ONNX alone, which have no form for groups within a row, and none that is smaller
            than 8 bits; otherwise ONNX Runtime's GatherBlockQuantized.

    Raises:
        UsageError: codes that neither has a form for.
    """
    table = layer.weight_value
    write = Writer(graph)
    if standard and (storage_type(codes.grid.dtype).bitwidth != 8 or codes.blocks.counts[1] > 1):
        raise UsageError(
            f"a table of {codes.grid.dtype.name} by {codes.grid.granularity.value}, with ONNX's operators alone",
            where=layer.name,
            expected="8 bits, and one scale for the table or each row",
            try_='target="onnxruntime"',
        )
    readers = [use.node for use in table.uses() if use.idx == 0 and _looks_up(use.node)]
    for node in dict.fromkeys(readers):
        _standard(write, node, table, codes) if standard else _by_runtime(write, node, table, codes)
    if table.uses() or table.is_graph_output():
        keep_value(graph, table, layer, codes)
    drop_if_unused(table)


def _looks_up(node: ir.Node) -> bool:
    return node.op_type == "Gather" and not node.domain and node.attributes.get_int("axis", 0) == 0


def _by_runtime(write: Writer, node: ir.Node, table: ir.Value, codes: QTensor) -> None:
    # Rows begin with a byte, and the operator counts columns by bytes.
    bits = 8 if codes.shape[1] % 2 else None
    blocks, owner = runtime_blocks(codes, node.name or "", bits=bits), table.graph
    dtype = table.dtype or ir.DataType.FLOAT
    inputs = [
        write.constant(f"{table.name}.packed", blocks.pack(blocks.codes).numpy(), owner),
        node.inputs[1],
        write.constant(f"{table.name}.row_scale", blocks.scale.numpy().astype(dtype.numpy()), owner),
        write.constant(f"{table.name}.row_zero_point", blocks.pack(blocks.zero).numpy(), owner),
    ]
    attributes = {"gather_axis": 0, "quantize_axis": 1, "block_size": blocks.block, "bits": blocks.bits}
    name = f"{node.name}.dequantize"
    made = write.node("GatherBlockQuantized", inputs, name, attributes, domain=RUNTIME, dtype=dtype)
    replace_node(node, [made], made)


def _standard(write: Writer, node: ir.Node, table: ir.Value, codes: QTensor) -> None:
    """Look up codes and scales by the same indices: (code - zero) * scale, in float32."""
    owner, name, qparams = table.graph, node.name or "", codes.qparams
    dtype, indices = table.dtype or ir.DataType.FLOAT, node.inputs[1]
    kept = write.constant(f"{table.name}.codes", code_tensor(codes.codes(), storage_type(codes.grid.dtype)), owner)
    rows = write.node("Gather", [kept, indices], name)
    nodes = [rows, write.node("Cast", rows.outputs, f"{name}.cast", {"to": ir.DataType.FLOAT.value})]
    for op, part, numbers in (("Sub", "zero_point", qparams.zero_point), ("Mul", "scale", qparams.step)):
        if numbers is None or (op == "Sub" and not bool(numbers.any())):
            continue
        if numbers.numel() == 1:
            other = write.constant(f"{table.name}.row_{part}", numbers.reshape(()).numpy(), owner)
        else:
            by_row = numbers.index_select(0, torch.arange(codes.shape[0]) // codes.block[0])
            every = write.constant(f"{table.name}.row_{part}", by_row.numpy(), owner)
            nodes.append(write.node("Gather", [every, indices], f"{name}.{part}"))
            other = nodes[-1].outputs[0]
        before = next(done for done in reversed(nodes) if done.op_type != "Gather")
        nodes.append(write.node(op, [before.outputs[0], other], f"{name}.{op.lower()}", dtype=ir.DataType.FLOAT))
    if dtype != ir.DataType.FLOAT:
        nodes.append(write.node("Cast", nodes[-1].outputs, f"{name}.back", {"to": dtype.value}, dtype=dtype))
    replace_node(node, nodes, rows)
