# SPDX-License-Identifier: Apache-2.0
"""An ONNX graph that can be edited, run and saved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewbit.backends._base import Edit, EncodeWeight, Graph, Inputs, Kernel, Layer, Reduction, RunResult, Session
from fewbit.errors import ModelError, UsageError, require

_WEIGHT_AXIS = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
"""Operators with a weight at input 1, and its output-channel axis."""


class OnnxModel:
    """A copy of a `ModelProto`; the original is not changed."""

    def __init__(self, proto: Any):
        self._onnx = require("onnx", extra="onnx", purpose="ONNX models")
        self._proto = proto

    @classmethod
    def read(cls, source: Any) -> OnnxModel:
        """From a file or a `ModelProto`."""
        onnx = require("onnx", extra="onnx", purpose="ONNX models")
        if isinstance(source, str | Path):
            return cls(onnx.load(str(source)))
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        return cls(proto)

    def graph(self) -> Graph:
        """Layers whose weight is a constant of two or more axes."""
        constants = {tensor.name: tuple(tensor.dims) for tensor in self._proto.graph.initializer}
        layers = []
        for index, node in enumerate(self._proto.graph.node):
            if node.op_type in _WEIGHT_AXIS and len(node.input) > 1 and len(constants.get(node.input[1], ())) > 1:
                shape = constants[node.input[1]]
                axis = _WEIGHT_AXIS[node.op_type] % len(shape)
                if node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute):
                    axis = 0
                layers.append(Layer(node.name or f"{node.op_type}.{index}", node.op_type, node.input[1], shape, axis))
        return Graph(tuple(layers))

    def fork(self) -> OnnxModel:
        """A copy."""
        return OnnxModel.read(self._proto)

    def weight(self, name: str) -> np.ndarray:
        """A constant by name."""
        tensor = next(tensor for tensor in self._proto.graph.initializer if tensor.name == name)
        array: np.ndarray = self._onnx.numpy_helper.to_array(tensor)
        return array

    def apply(self, edits: Iterable[Edit]) -> None:
        """Replace weights by integers and DequantizeLinear."""
        for edit in edits:
            if not isinstance(edit, EncodeWeight):
                raise UsageError(
                    f"the ONNX backend has no edit {type(edit).__name__}", code="edit-unknown", hint="EncodeWeight"
                )
            self._encode(edit)

    def _encode(self, edit: EncodeWeight) -> None:
        helper, to_tensor = self._onnx.helper, self._onnx.numpy_helper.from_array
        graph = self._proto.graph
        tensor = next(tensor for tensor in graph.initializer if tensor.name == edit.weight)
        graph.initializer.remove(tensor)
        integers, scales = f"{edit.weight}_quantized", f"{edit.weight}_scale"
        graph.initializer.append(to_tensor(edit.integers, integers))
        graph.initializer.append(to_tensor(edit.scales, scales))
        attributes = {} if edit.axis is None else {"axis": edit.axis}
        node = helper.make_node(
            "DequantizeLinear", [integers, scales], [edit.weight], name=f"{edit.weight}_dequantize", **attributes
        )
        graph.node.insert(0, node)

    def session(self, *, observe: Sequence[Reduction] = (), threads: int | None = None) -> OnnxSession:
        """An ONNX Runtime session on the CPU."""
        return OnnxSession(self._proto.SerializeToString(), threads)

    def save(self, path: Path) -> Path:
        """Write the model; it is checked first."""
        self._onnx.checker.check_model(self._proto)
        path.write_bytes(self._proto.SerializeToString(deterministic=True))
        return path

    def for_user(self) -> Any:
        """The `ModelProto`."""
        return self._proto


class OnnxSession:
    """A model in ONNX Runtime."""

    def __init__(self, content: bytes, threads: int | None):
        runtime = require("onnxruntime", extra="onnx", purpose="ONNX models")
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's errors have no common class
            raise ModelError(
                f"ONNX Runtime refuses the model: {str(error)[:200]}", code="model-refused",
                expected="a model that onnxruntime.InferenceSession loads", hint="export it with another opset",
            ) from error  # fmt: skip
        self._outputs = [value.name for value in self._session.get_outputs()]

    def run(self, inputs: Inputs) -> RunResult:
        """One batch."""
        return RunResult(dict(zip(self._outputs, self._session.run(None, dict(inputs)))))

    def kernels(self) -> tuple[Kernel, ...] | None:
        """Not read yet: issue 4 reads the optimized graph."""
        return None

    def close(self) -> None:
        """Free its memory."""
        del self._session


_: type[Session] = OnnxSession
