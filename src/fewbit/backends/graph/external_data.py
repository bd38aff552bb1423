# SPDX-License-Identifier: Apache-2.0
"""Weights in files beside an ONNX file: whether they are all there, and whole, before any of them is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from fewbit.errors import DataError


def refuse_lost_weights(model: ir.Model, where: Any) -> None:
    """Refuse a model whose weights lie in files that are missing or too short.

    Args:
        model: as it was read; external tensors are not loaded yet.
        where: what it was read from.

    Raises:
        DataError: with every file, its first tensor that is not there, the bytes needed and those found.
    """
    lost: dict[str, str] = {}
    for name, tensor in _external(model):
        path = os.fspath(tensor.path)
        if path in lost:
            continue
        if not os.path.isfile(path):
            lost[path] = f"{path} is not there, which holds {name}"
            continue
        needed, found = (tensor.offset or 0) + tensor.nbytes, os.path.getsize(path)
        if needed > found:
            lost[path] = f"{path} is cut short: {name} needs {needed} bytes of it, and there are {found}"
    if lost:
        raise DataError(
            f"weights are lost: {'; '.join(list(lost.values())[:3])}",
            code="model-unreadable",
            where=where,
            expected="the external data files beside the model, whole",
            try_="copy the .onnx file together with its data files once more; give the path, not a ModelProto",
        )


def _external(model: ir.Model) -> Iterator[tuple[str, ir.ExternalTensor]]:
    """Every tensor that lies in another file, with a name for it: initializers, and constants of nodes."""
    bodies = [graph for function in model.functions.values() for graph in (function.graph, *function.subgraphs())]
    for graph in (*model.graphs(), *bodies):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.name or "", value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    tensor = attribute.as_tensor()
                    if isinstance(tensor, ir.ExternalTensor):
                        yield node.name or tensor.name or "", tensor
