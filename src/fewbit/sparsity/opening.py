# SPDX-License-Identifier: Apache-2.0
"""The model that is to become sparse, from whatever the user gives: an object, a file, a folder, a function."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fewbit import registry
from fewbit.backends.eager.copying import copied
from fewbit.errors import DataError, UsageError, require
from fewbit.modules.opening import open_model, refuse_missing


@dataclass(frozen=True)
class Network:
    """A model and where it came from.

    Args:
        model: an `nn.Module` or an ONNX `ModelProto`; never to be changed: it may be the user's.
        home: its file or folder, or `"file.py:function"`; none for an object that does not say.
        factory: `"file.py:function"` that builds it, if there is one.
    """

    model: Any
    home: str | None = None
    factory: str | None = None

    @property
    def is_graph(self) -> bool:
        """Whether it is an ONNX model."""
        return not isinstance(self.model, nn.Module)


def open_network(model: Any, factory: str | None = None) -> Network:
    """The model that somebody names.

    Args:
        model: an `nn.Module`, a `ModelProto`, an `.onnx` file, a Hugging Face folder, a `.pt2`, a state dict with a
            factory, a folder that fewbit exported, or `"file.py:function"`.
        factory: `"file.py:function"` that returns the model a state dict belongs to.

    Raises:
        UsageError: nothing that can be opened.
        DataError: a file that is damaged.
    """
    if isinstance(model, nn.Module):
        return Network(model, getattr(model, "name_or_path", "") or None, factory)
    if not isinstance(model, str | Path):
        if not registry.get("backends", "onnx").accepts(model):
            expected = "an nn.Module, an onnx.ModelProto, or a path"
            raise UsageError(f"a {type(model).__name__} is no model", where="model", expected=expected)
        return Network(model, None, factory)
    if registry.is_reference(model):
        return Network(open_model(model), str(model), str(model))
    refuse_missing(model)
    if str(model).lower().endswith(".onnx"):
        return Network(_graph(Path(model).expanduser()), str(Path(model).expanduser()))
    return Network(open_model(model, factory), str(Path(model).expanduser()), factory)


def own_copy(model: Any) -> Any:
    """A model that is nobody else's; matrices share their memory, since nothing writes into them."""
    if isinstance(model, nn.Module):
        return copied(model)
    made = type(model)()
    made.CopyFrom(model)
    return made


def _graph(path: Path) -> Any:
    onnx = require("onnx", extra="onnx", purpose="opening an ONNX model")
    try:
        return onnx.load(str(path))
    except Exception as error:  # whatever a damaged file makes protobuf raise
        raise DataError(
            f"the model cannot be read: {type(error).__name__}: {str(error)[:200]}",
            code="model-unreadable",
            where=path,
            expected="a whole .onnx file, with its weights beside it where they are kept apart",
            try_="export it again",
        ) from error
