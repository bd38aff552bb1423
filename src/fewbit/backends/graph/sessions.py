# SPDX-License-Identifier: Apache-2.0
"""Sessions of ONNX Runtime: quiet, on the CPU, of models of any size.

A model is serialised without its large weights; the session is given their arrays. So there is no limit of 2 GB, no
file on the way, and no serialised copy of the weights beside the one that the runtime keeps.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from fewbit.errors import DataError, UsageError, require

_LARGE = 1024  # bytes: below this a weight travels inside the model, as shapes and axes have to
_ELEMENTS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
             "bool")  # fmt: skip
_UNKNOWN_OP = re.compile(r"Fatal error: ([\w.\-]*):(\w+)\(-?\d+\) is not a registered function/op")
_NO_KERNEL = re.compile(r"Could not find an implementation for (?:([\w.\-]*)[.:])?(\w+)\(\d+\)")


def session(model: ir.Model | bytes, *, optimize: bool = True, threads: int | None = None) -> Any:
    """An `onnxruntime.InferenceSession` on the CPU.

    Args:
        model: a graph, which is not changed, or a serialised one. The arrays of its weights are shared, so they must
            not be written to while the session lives.
        optimize: let the runtime fuse and lay out anew; without, its nodes are the model's.
        threads: how many work on one node; as many as there are cores if not given.

    Raises:
        UsageError: an operator that this runtime does not have.
        DataError: a model that it refuses.
    """
    runtime = require("onnxruntime", extra="onnx", purpose="running ONNX models")
    runtime.disable_telemetry_events()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.use_deterministic_compute = True
    if threads is not None:
        options.intra_op_num_threads = threads
    if not optimize:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content, arrays = (model, {}) if isinstance(model, bytes) else _parted(model)
    weights = [runtime.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
    if weights:
        options.add_external_initializers(list(arrays), weights)
    try:
        made = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's errors have no common class but this
        raise _refused(str(error)) from error
    made.fewbit_weights = (weights, arrays)  # the session reads them, but does not keep them alive
    return made


def _parted(model: ir.Model) -> tuple[bytes, dict[str, NDArray[Any]]]:
    """A model without its large weights, serialised, and the weights by name."""
    copy = model.clone(deep_copy=False)
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in copy.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < _LARGE or tensor.dtype.name == "STRING":
            continue
        array = tensor.numpy()
        if array.dtype.name not in _ELEMENTS or value.is_graph_output():
            continue
        arrays[name] = np.ascontiguousarray(array)
        value.const_value = ir.ExternalTensor(
            "weights", 0, array.nbytes, tensor.dtype, shape=ir.Shape(array.shape), name=name, base_dir=""
        )
    return ir.to_proto(copy).SerializeToString(), arrays


def _refused(words: str) -> UsageError | DataError:
    found = _UNKNOWN_OP.search(words) or _NO_KERNEL.search(words)
    if found:
        return UsageError(
            f"the runtime has no operator {found[2]} of domain {found[1] or 'ai.onnx'!r}",
            expected="operators that ONNX Runtime runs on the CPU",
            try_="export the model without it, or with operators of ONNX",
        )
    return DataError(f"the runtime refuses the model: {words[:300]}", code="model-unreadable", expected="a valid model")
