# SPDX-License-Identifier: Apache-2.0
"""The model that is to become sparse, from whatever the user gives: an object, a file, a folder, a function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

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


def apart(model: nn.Module, other: nn.Module) -> nn.Module:
    """A model with the memory it shares with another made its own, so that training it changes that one in nothing.

    What shares memory within the model goes on sharing it.

    >>> given = nn.Linear(2, 2)
    >>> made = apart(own_copy(given), given)
    >>> made.weight.data_ptr() == given.weight.data_ptr()
    False
    """
    theirs = {tensor.untyped_storage().data_ptr() for tensor in _plain_tensors(other)} - {0}
    own: dict[int, torch.UntypedStorage] = {}
    for tensor in _plain_tensors(model):
        shared = tensor.untyped_storage()
        if shared.data_ptr() in theirs and shared.data_ptr() not in own:
            own[shared.data_ptr()] = shared.clone()  # type: ignore[no-untyped-call]
    for tensor in _plain_tensors(model):
        storage = own.get(tensor.untyped_storage().data_ptr())
        if storage is not None:
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            tensor.data = empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return model


def _plain_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers; special classes of tensors say nothing of their memory."""
    for tensor in (*model.parameters(), *model.buffers()):
        if type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and not tensor.is_meta and not is_lazy(tensor):
            yield tensor


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
