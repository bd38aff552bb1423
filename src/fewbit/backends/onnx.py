# SPDX-License-Identifier: Apache-2.0
"""ONNX models: a `.onnx` file or a `ModelProto`, run in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewbit.errors import require

if TYPE_CHECKING:
    from fewbit.model.view import ModelView


def accepts(model: object) -> bool:
    """Whether this is an ONNX model, by its suffix or its type's name; what is inside is for `view` to see."""
    if isinstance(model, str | Path):
        return str(model).lower().endswith(".onnx")
    names = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(model).__mro__}
    return bool(names & {"onnx.ModelProto", "onnx_ir.Model"})


def view(model: Any) -> ModelView:
    """The view of a model, which is read and repaired; what was given is not changed."""
    require("onnx_ir", extra="onnx", purpose="quantizing ONNX models")
    require("onnxruntime", extra="onnx", purpose="quantizing ONNX models")
    from fewbit.backends.graph.view import GraphView

    return GraphView.of(model)
