# SPDX-License-Identifier: Apache-2.0
"""Weights of a model that is being opened, mapped from files also where the checkpoint has them in another shape.

transformers maps the tensors of a checkpoint, so that a model takes no memory until it is used. Experts that lie in the
files one by one it makes a stack of, in memory. Beyond a share of what is free, such stacks are moved to a file of no
name, as soon as each is made: the system keeps of them in memory what it has room for.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakTensorKeyDictionary

from fewbit.modules.memory import free_memory, give_back

_SHARE = 4  # a fourth of the memory that is free
_WORTH = 1 << 20  # bytes that are worth a file


@contextmanager
def on_disk(budget: int | None = None) -> Iterator[None]:
    """Within the block, parameters that modules get are moved to files once they take too much memory.

    Args:
        budget: bytes that stay in memory; by default a share of what is free.
    """
    left = free_memory() // _SHARE if budget is None else budget
    known = WeakTensorKeyDictionary()  # where each parameter went: modules that share one get the same again

    def move(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        nonlocal left
        if parameter is None or not _is_in_memory(parameter) or parameter.nbytes < _WORTH:
            return None
        if parameter not in known:
            known[parameter] = None
            if parameter.nbytes <= left:
                left -= parameter.nbytes
            else:
                known[parameter] = _moved(parameter)
        found: nn.Parameter | None = known[parameter]
        return found

    handle = register_module_parameter_registration_hook(move)  # type: ignore[arg-type]
    try:
        yield
    finally:
        handle.remove()
        give_back()


def _moved(parameter: nn.Parameter) -> nn.Parameter | None:
    try:
        data = mapped(parameter.detach())
    except (OSError, RuntimeError):  # no room on the disk, or no such files on this system: it stays where it is
        return None
    made = nn.Parameter(data, parameter.requires_grad)
    vars(made).update(vars(parameter))
    return made


def mapped(x: Tensor) -> Tensor:
    """A copy in a file that nobody else sees, and that is gone with the tensor.

    Raises:
        OSError: no room for it, or a system that keeps no files without a name.

    >>> torch.equal(mapped(torch.arange(3)), torch.arange(3))
    True
    """
    if sys.platform == "win32":
        raise OSError("files in use cannot be removed here")
    file, path = tempfile.mkstemp(prefix="fewbit-")
    try:
        os.posix_fallocate(file, 0, max(x.nbytes, 1))  # room is found out about now, and not when a page is written
        storage = torch.UntypedStorage.from_file(path, True, x.nbytes)
    finally:
        os.close(file)
        os.unlink(path)
    made: Any = torch.empty(0, dtype=x.dtype)
    found: Tensor = made.set_(storage, 0, x.shape, x.contiguous().stride()).copy_(x)
    return found


def _is_in_memory(parameter: nn.Parameter) -> bool:
    """Whether a tensor takes memory of its own: what is mapped cannot be resized."""
    plain = type(parameter) is nn.Parameter and parameter.device.type == "cpu" and parameter.layout is torch.strided
    return plain and parameter.untyped_storage().resizable()
