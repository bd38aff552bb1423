# SPDX-License-Identifier: Apache-2.0
"""How large a model is, as it is and without its zeros."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from fewbit.modules.inventory import take
from fewbit.modules.tensor_file import plain_bytes
from fewbit.numerics.compacting import compacted
from fewbit.numerics.squeezing import Bytes


def sizes(model: Any) -> dict[str, int]:
    """Bytes of all tensors, one that is used several times once: `raw`, and `compact` as files without zeros have them.

    Args:
        model: an `nn.Module` or an ONNX `ModelProto`.

    >>> sizes(nn.Linear(64, 64, bias=False))["raw"]
    16384
    """
    raw = compact = 0
    for content, width, signed in _of_module(model) if isinstance(model, nn.Module) else _of_graph(model):
        raw += content.nbytes
        compact += compacted(content, width, signed=signed).nbytes
    return {"raw": raw, "compact": compact}


def _of_module(model: nn.Module) -> Iterator[tuple[Bytes, int, bool]]:
    for entry in take(model).entries.values():
        parts = 2 if entry.dtype.is_complex else 1
        floats = entry.dtype.is_floating_point or entry.dtype.is_complex
        yield plain_bytes(entry.read()), entry.dtype.itemsize // parts, floats


def _of_graph(model: Any) -> Iterator[tuple[Bytes, int, bool]]:
    from onnx import numpy_helper

    from fewbit.sparsity.zeros_graph import constants, graphs

    for graph in graphs(model.graph):
        for proto in constants(graph).values():
            array = np.ascontiguousarray(numpy_helper.to_array(proto))
            content = array.reshape(-1).view(np.uint8) if array.dtype != object else np.zeros(0, np.uint8)
            if proto.HasField("raw_data"):
                content = np.frombuffer(proto.raw_data, np.uint8)  # codes of 4 bits, two a byte
            width = array.itemsize if array.nbytes == content.nbytes else 1
            yield content, width, array.dtype.kind in "fV"
