# SPDX-License-Identifier: Apache-2.0
"""Activations that wait: in memory up to a budget, beyond it in files of a folder that is gone in the end."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from math import prod
from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from fewbit.errors import UsageError
from fewbit.modules.memory import free_memory, give_back

_SHARE = 4  # a fourth of the memory that is free
_TRIMMED = 8 << 20  # bytes after which what was put away is given back to the system


class Kept:
    """A tensor that waits.

    Args:
        x: the tensor.
        shelf: that keeps it.
    """

    def __init__(self, x: Tensor, shelf: Shelf):
        self._x: Tensor | None = x
        self._form = (tuple(x.shape), x.stride(), x.dtype, x.device)
        self._path: Path | None = None
        self._shelf = shelf
        if shelf.take(x.nbytes):
            weakref.finalize(self, shelf.give, x.nbytes)
        elif _is_whole(x):
            self._path = shelf.write(_as_bytes(x))
            self._x = None
            weakref.finalize(self, self._path.unlink, missing_ok=True)

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        shape, _, dtype, _ = self._form
        return prod(shape) * dtype.itemsize

    @property
    def width(self) -> int:
        """Its last side."""
        return self._form[0][-1] if self._form[0] else 1

    @property
    def apart(self) -> bool:
        """Whether it is in a file, so that `get` makes a tensor of its own."""
        return self._path is not None

    def get(self) -> Tensor:
        """The tensor, bit by bit and with the strides it had."""
        if self._x is not None:
            return self._x
        assert self._path is not None
        shape, strides, dtype, device = self._form
        found = self._shelf.read(self._path).view(dtype).reshape(shape)
        return torch.empty_strided(shape, strides, dtype=dtype, device=device).copy_(found)


class Shelf:
    """Keeps tensors, in memory as long as there is room.

    Args:
        budget: bytes of memory; by default a share of what is free where the tensors are.
        folder: for files; that of the system for such by default.
        device: where the tensors are.

    >>> with Shelf(budget=8) as shelf:
    ...     one, other = shelf.keep(torch.ones(2)), shelf.keep(torch.ones(2))
    ...     one.apart, other.apart, other.get()
    (False, True, tensor([1., 1.]))
    """

    def __init__(
        self, budget: int | None = None, folder: Path | None = None, device: torch.device | None = None
    ) -> None:
        self.left = free_memory(device) // _SHARE if budget is None else budget
        self._parent, self._folder, self._files, self._written = folder, None, 0, 0
        self.device = device

    _folder: Path | None

    def __enter__(self) -> Shelf:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self, x: Tensor) -> Kept:
        """Keep a tensor, which is not to be changed."""
        return Kept(x, self)

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes of memory, which are taken then."""
        if size > self.left:
            return False
        self.left -= size
        return True

    def give(self, size: int) -> None:
        """Give memory back."""
        self.left += size

    def write(self, content: Tensor) -> Path:
        """Put bytes, `[count]`, into a file.

        Raises:
            UsageError: they do not fit on the disk.
        """
        if self._folder is None:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="fewbit-activations-", dir=self._parent))
        self._files += 1
        self._written += len(content)
        if self._written > _TRIMMED:
            self._written = 0
            give_back()
        path = self._folder / str(self._files)
        try:
            content.numpy().tofile(path)
        except OSError as error:
            raise UsageError(
                f"activations cannot be written: {error}",
                where=self._folder,
                expected="room on the disk for what does not fit into activation_budget",
                try_="a larger activation_budget, fewer samples, or another TMPDIR",
            ) from error
        return path

    def read(self, path: Path) -> Tensor:
        """The bytes of a file."""
        return torch.from_numpy(np.fromfile(path, np.uint8))


def _is_whole(x: Tensor) -> bool:
    """Whether no two elements lie in the same place, so that a copy can have the same strides."""
    if x.layout is not torch.strided or type(x) is not Tensor:
        return False
    reach = 1
    for stride, side in sorted((stride, side) for stride, side in zip(x.stride(), x.shape) if side > 1):
        if stride < reach:
            return False
        reach = stride * side
    return True


def _as_bytes(x: Tensor) -> Tensor:
    return x.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
