# SPDX-License-Identifier: Apache-2.0
"""ONNX models, run by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewbit.backends._base import EncodeWeight, Model
from fewbit.model_info import ModelInfo


class OnnxBackend:
    """Reads `.onnx` files and `ModelProto`s."""

    name = "onnx"
    suffixes = (".onnx",)
    extra = "onnx"
    target = "onnxruntime"
    edits = frozenset({EncodeWeight})

    def matches(self, source: Any) -> bool:
        """A path that ends in `.onnx`, or a `ModelProto`."""
        if isinstance(source, str | Path):
            path = Path(source)
            return path.suffix.lower() in self.suffixes or (path.is_dir() and (path / "model.onnx").is_file())
        return type(source).__name__ == "ModelProto"

    def inspect(self, source: Any) -> ModelInfo:
        """Inputs, outputs and metadata; weights are not read."""
        from fewbit.backends.onnx.inspect import inspect_onnx

        return inspect_onnx(source)

    def load(self, source: Any) -> Model:
        """The graph with its weights."""
        from fewbit.backends.onnx.model import OnnxModel

        return OnnxModel.read(source)


BACKEND = OnnxBackend()
