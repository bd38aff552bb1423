# SPDX-License-Identifier: Apache-2.0
"""A graph as a file, whole or not at all, and as the object that other libraries know."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import onnx_ir as ir

from fewbit.errors import UsageError

LIMIT = 1_900_000_000
"""Bytes of weights in one file; protobuf ends at 2 GB, and the graph needs room too."""


def save(model: ir.Model, path: str | Path, *, overwrite: bool = False, limit: int = LIMIT) -> Path:
    """Write a model; what stood there before stays until the new file is whole.

    A model with more weights than one file can hold has them in `NAME.onnx.data` beside it.

    Args:
        model: the model; it is not changed.
        path: the file.
        overwrite: whether a file that is there may be replaced.
        limit: bytes of weights above which they get a file of their own.

    Raises:
        UsageError: a folder, or a file that may not be replaced, stands there; or there is no folder to write into.
    """
    target = Path(path).expanduser()
    data = target.with_name(f"{target.name}.data")
    apart = weight_bytes(model) > limit
    _refuse(target, overwrite)
    if apart:
        _refuse(data, overwrite)
    # A folder, because the model names its data file: both must lie there under their last names.
    staged = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    staged.mkdir()
    try:
        if apart:
            ir.save(model, staged / target.name, external_data=data.name)
            _hold(model, data)
        else:
            (staged / target.name).write_bytes(to_proto(model).SerializeToString())
        _move(staged, target, data if apart else None)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return target


def to_proto(model: ir.Model) -> Any:
    """The model as an `onnx.ModelProto` that holds all weights itself, of whatever size.

    One above 2 GB cannot be written as one file: `onnx.save(proto, path, save_as_external_data=True)` writes two.
    """
    whole = model.clone()
    ir.external_data.load_to_model(whole)
    return ir.to_proto(whole)


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers, those of branches and loops too."""
    tensors = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _refuse(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise UsageError("a folder stands there", where=path, expected="the name of a file", try_=path / "model.onnx")
    if path.exists() and not overwrite:
        raise UsageError("a file stands there", where=path, expected="a new name", try_="overwrite=True")
    if not path.parent.is_dir():
        raise UsageError("there is no such folder", where=path.parent, expected="a folder to write into")


def _hold(model: ir.Model, data: Path) -> None:
    """Open the weights that lie in a file which is about to be replaced: what is open outlives its name."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and data.exists() and os.path.samefile(tensor.path, data):
                tensor.numpy()


def _move(staged: Path, target: Path, data: Path | None) -> None:
    """Put finished files into their places, or, interrupted, everything back.

    The old model goes first and the new one comes last: at no time does one stand beside weights that are not its own.
    """
    moves = [(staged / target.name, target)]
    if data is not None:
        moves = [(target, staged / "before"), (data, staged / "before.data"), (staged / data.name, data), *moves]
    moves = [(source, place) for source, place in moves if source.exists()]
    try:
        for source, place in moves:
            os.replace(source, place)
    except BaseException:
        for source, place in reversed(moves):
            if not source.exists():
                os.replace(place, source)
        raise
