# SPDX-License-Identifier: Apache-2.0
"""What every `inspect` needs: bounded reading of model files, typed errors for other files, batch axes of inputs."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from fewbit.errors import ModelError
from fewbit.model_info import Dim, TensorInfo

_SIGNATURES = (
    (b"version https://git-lfs", "a git-lfs pointer: fetch the file with `git lfs pull`"),
    (b"<!doctype html", "an HTML page: the download failed"),
    (b"<html", "an HTML page: the download failed"),
    (b"<?xml", "an XML file"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"GGUF", "a GGUF file"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
)
_SEQUENCE_WORDS = ("frame", "time", "seq", "length", "token", "step")
"""A leading axis with such a name counts something other than samples."""


def open_model_file(path: Path, kind: str) -> BinaryIO:
    """Open a regular file that is not empty; FIFOs and devices are refused instead of waiting for them."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (OSError, ValueError) as error:
        raise unreadable(path, kind, getattr(error, "strerror", None) or str(error)) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        os.close(descriptor)
        raise unreadable(path, kind, "the file is empty" if stat.S_ISREG(status.st_mode) else "not a regular file")
    return cast(BinaryIO, os.fdopen(descriptor, "rb"))


def read_model_file(path: Path, kind: str, limit: int) -> bytes:
    """The bytes of a file, if it is no larger than `limit` bytes."""
    with open_model_file(path, kind) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            raise unreadable(path, kind, f"{size:,} bytes, more than the {limit:,} such a file can have")
        try:
            return stream.read(limit)
        except OSError as error:
            raise unreadable(path, kind, str(error)) from error


def unreadable(source: Any, kind: str, reason: str, *, hint: str = "export the model again") -> ModelError:
    """The error for a file that is damaged or of another kind."""
    return ModelError(
        f"not a readable {kind} model: {reason}", code="model-unreadable", where=str(source),
        expected=f"a complete {kind} model", hint=hint,
    )  # fmt: skip


def describe_content(first: bytes) -> str | None:
    """What a file of the wrong kind is, from its first bytes.

    >>> describe_content(b"<html><body>404")
    'an HTML page: the download failed'
    """
    start = first[:64].lstrip().lower()
    return next((text for magic, text in _SIGNATURES if start.startswith(magic.lower())), None)


def not_built(kind: str, source: Any) -> ModelError:
    """The error of a backend that only inspects so far."""
    name = source if isinstance(source, str | Path) else type(source).__name__
    return ModelError(
        f"{kind} models can be inspected, but not loaded yet", code="backend-not-built", where=str(name),
        expected="an .onnx file", hint="export the model to ONNX; {fewbit.check} with {model} works as it is",
    )  # fmt: skip


def with_batch_axes(inputs: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
    """The inputs with their batch axis, as far as shapes and names tell.

    An axis called `batch` is one wherever it stands, and so is an axis of the same name in another input. Otherwise it
    is the first axis, unless that is fixed to several in one input and something else in another, or counts frames.

    >>> state = TensorInfo("state", "float32", (2, "batch", 128))
    >>> [tensor.batch_axis for tensor in with_batch_axes([TensorInfo("x", "float32", ("batch", 576)), state])]
    [0, 1]
    """
    names = {dim for tensor in inputs for dim in tensor.shape or () if isinstance(dim, str) and "batch" in dim.lower()}
    if not names:
        # One free first axis that all agree on may stand elsewhere in other inputs: [N, 576] and [2, N, 128].
        names = {tensor.shape[0] for tensor in inputs if tensor.shape and isinstance(tensor.shape[0], str)}
        names = {name for name in names if isinstance(name, str) and not _counts_steps(name)}
        names = names if len(names) == 1 else set()
    leading = {tensor.shape[0] for tensor in inputs if tensor.shape}
    return tuple(replace(tensor, batch_axis=_batch_axis(tensor.shape, names, leading)) for tensor in inputs)


def _batch_axis(shape: tuple[Dim, ...] | None, names: set[Any], leading: set[Dim]) -> int | None:
    if shape is None:
        return 0
    if not shape:
        return None
    for axis, dim in enumerate(shape):
        if isinstance(dim, str) and dim in names:
            return axis
    first = shape[0]
    if isinstance(first, str) and _counts_steps(first):
        return None
    if isinstance(first, int) and first > 1 and len(leading) > 1:
        return None
    return 0


def _counts_steps(name: str) -> bool:
    return "batch" not in name.lower() and any(word in name.lower() for word in _SEQUENCE_WORDS)
