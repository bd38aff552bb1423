# SPDX-License-Identifier: Apache-2.0
"""Zeros in the weights of an ONNX graph; a code is one where it equals its zero point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_CODES = {
    "DequantizeLinear": (0, 2), "QLinearConv": (3, 5), "QLinearMatMul": (3, 5), "MatMulInteger": (1, 3),
    "ConvInteger": (1, 3), "MatMulNBits": (1, 3), "QGemm": (3, 5),
}  # fmt: skip
"""Operators that read codes: where, and where the zero points are."""


def zeros_of_graph(model: Any) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Of every weight of at least two axes the layer that reads it, how many elements are zero, and the shape.

    A layer that reads several, as an LSTM does, is named once for each, with the name of the tensor behind its own.

    Args:
        model: an `onnx.ModelProto` that holds its weights itself.
    """
    found = list(_counted(model))
    times = Counter(layer for layer, _, _, _ in found)
    for layer, tensor, zeros, shape in found:
        yield f"{layer}.{tensor}" if times[layer] > 1 else layer, zeros, shape


def _counted(model: Any) -> Iterator[tuple[str, str, int, tuple[int, ...]]]:
    """The same, with the name of the tensor after that of the layer."""
    from onnx import numpy_helper

    for graph in graphs(model.graph):
        held = constants(graph)
        readers: dict[str, Any] = {}
        for node in graph.node:
            for name in node.input:
                readers.setdefault(name, node)
        for name, proto in held.items():
            reader = readers.get(name)
            if reader is None or len(proto.dims) < 2:
                continue
            array = numpy_helper.to_array(proto)
            codes = _CODES.get(reader.op_type)
            if codes is None and array.dtype.kind not in "fV":  # shapes and indices; V: bfloat16
                continue
            if codes is not None and reader.input[codes[0]] != name:  # the scales, or the zero points
                continue
            layer = _layer(reader, readers)
            if codes is None:
                yield layer, name, int(array.size - np.count_nonzero(array)), array.shape
                continue
            given = reader.input[codes[1]] if len(reader.input) > codes[1] else ""
            zero = numpy_helper.to_array(held[given]) if given in held else None
            yield (layer, name, *_codes_at(array, zero, reader))


def _codes_at(codes: NDArray[Any], zero: NDArray[Any] | None, reader: Any) -> tuple[int, tuple[int, ...]]:
    said = {each.name: each.i for each in reader.attribute}
    if reader.op_type == "MatMulNBits":
        return _packed(codes, zero, said)
    wide = codes.astype(np.int32)
    if zero is None:
        return int((wide == 0).sum()), codes.shape
    point = zero.astype(np.int32)
    if point.ndim == 1 and point.size > 1:  # one a channel
        axis = said.get("axis", 1) if reader.op_type == "DequantizeLinear" else _channels(reader.op_type, codes.ndim)
        point = point.reshape([-1 if side == axis % codes.ndim else 1 for side in range(codes.ndim)])
    elif point.ndim == codes.ndim and said.get("block_size"):
        axis = said.get("axis", 1) % codes.ndim
        point = np.repeat(point, said["block_size"], axis).take(range(codes.shape[axis]), axis)
    return int((wide == point).sum()), codes.shape


def _channels(op_type: str, axes: int) -> int:
    """The axis of the output channels: a convolution's weight has them first, a matrix last."""
    return 0 if op_type in ("QLinearConv", "ConvInteger") else axes - 1


def _packed(content: NDArray[Any], zero: NDArray[Any] | None, said: dict[str, int]) -> tuple[int, tuple[int, ...]]:
    """Of `MatMulNBits`: codes `[outputs, blocks, bytes]`, several a byte, the lowest bits first."""
    bits, width, rows, block = said.get("bits", 4), said["K"], said["N"], said["block_size"]
    codes = _unpacked(content.reshape(rows, -1), bits)[:, : -(-width // block) * block]
    blocks = codes.shape[1] // block
    if zero is None:
        points = np.full((rows, blocks), 1 << (bits - 1))
    elif zero.dtype == np.uint8:
        points = _unpacked(zero.reshape(rows, -1), bits)[:, :blocks]
    else:  # of the type of the scales
        points = zero.reshape(rows, blocks)
    return int((codes == np.repeat(points, block, 1))[:, :width].sum()), (rows, width)


def _unpacked(content: NDArray[Any], bits: int) -> NDArray[Any]:
    each: NDArray[Any] = (content[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & ((1 << bits) - 1)
    return each.reshape(len(content), -1)


def _layer(reader: Any, readers: dict[str, Any]) -> str:
    """The name of the node that computes with a weight, behind the one that reads its codes or turns it round."""
    while reader.op_type in ("DequantizeLinear", "Transpose", "Cast", "Reshape", "Identity"):
        following = readers.get(reader.output[0])
        if following is None:
            break
        reader = following
    return str(reader.name or reader.output[0])


def constants(graph: Any) -> dict[str, Any]:
    """The tensors that a graph holds, by the name they are read under: initializers, and what `Constant` nodes give."""
    found = {each.name: each for each in graph.initializer}
    for node in graph.node:
        given = [each.t for each in node.attribute if each.name == "value"] if node.op_type == "Constant" else []
        found |= dict(zip(node.output, given))
    return found


def graphs(graph: Any) -> Iterator[Any]:
    """A graph and those of its branches and loops."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)
            for inner in attribute.graphs:
                yield from graphs(inner)
