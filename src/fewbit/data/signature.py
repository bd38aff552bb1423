# SPDX-License-Identifier: Apache-2.0
"""What a model takes, said without its framework: input names, shapes, dtypes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewbit import registry
from fewbit.data.near_paths import near_paths
from fewbit.errors import UsageError


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of a model.

    Args:
        name: as the model calls it.
        shape: with the batch axis; an `int` is fixed, a `str` is a named dynamic axis, `None` is free. `None` as a
            whole: not known (a PyTorch module says nothing about shapes).
        dtype: numpy's name (`"float32"`, `"int64"`, `"bfloat16"`), or `None` when not known.
        required: whether the model runs without it.
    """

    name: str
    shape: tuple[int | str | None, ...] | None = None
    dtype: str | None = None
    required: bool = True

    def __str__(self) -> str:
        axes = "?" if self.shape is None else ", ".join("?" if axis is None else str(axis) for axis in self.shape)
        return f"{self.name}: {self.dtype or 'any'}[{axes}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs of a model in order.

    Args:
        framework: the member of `signatures` that read it: `onnx`, `torch`, `openvino`.
        inputs: in the model's own order.
        open_ended: the model takes further names too (`**kwargs`).
        positional: so many leading inputs must be given by place; all others go by name.
        source: what was read, for messages.
        floating: the dtype of the model's own floating parameters, where its inputs do not say theirs: a PyTorch module
            takes floating inputs in no other. `None` when not known.
    """

    framework: str
    inputs: tuple[InputSpec, ...]
    open_ended: bool = False
    positional: int = 0
    source: str = "model"
    floating: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The input names in order."""
        return tuple(spec.name for spec in self.inputs)


def read_signature(model: Any) -> Signature:
    """The signature of a model of any framework: a path, a loaded model or a `Signature` itself.

    Raises:
        UsageError: no reader knows this kind of model.
    """
    if isinstance(model, Signature):
        return model
    if isinstance(model, str | os.PathLike) and not Path(model).expanduser().exists():
        raise UsageError(
            f"there is no model file {os.fspath(model)!r}",
            where=Path.cwd(),
            expected="a path that exists",
            try_=near_paths(os.fspath(model)),
        )
    for name in registry.names("signatures"):
        member = registry.get("signatures", name)
        if member.accepts(model):
            signature: Signature = member.read(model)
            return signature
    raise UsageError(
        f"cannot tell the inputs of a {type(model).__name__}: {str(model)[:80]}",
        expected=f"a model of one of: {', '.join(registry.names('signatures'))}",
        try_="a .onnx, .xml or .pt2 file; in Python also a torch.nn.Module or a loaded model. A .pt or .pth file holds "
        "weights without inputs: export it with torch.onnx.export or torch.export.save",
    )
