# SPDX-License-Identifier: Apache-2.0
"""The memory of a forward that waits in the middle, put away while it does.

A forward that was left in the middle holds what it computed in the variables of the model's own functions, where nobody
can change it. But a tensor's memory can be emptied and filled again behind its back. What may be emptied is what was
computed from the item alone, step by step from the state the block was called with: masks, tables and whatever else
several forwards may share is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from fewbit.backends.eager.shelf import Shelf

_WORTH = 1 << 12  # bytes that are worth a file

Storage = Any  # `torch.UntypedStorage`, which has no types


class Traces(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what is computed from some tensors, as long as it lives.

    Args:
        shared: modules whose tensors are never put away.
    """

    def __init__(self, shared: Iterable[nn.Module] = ()):
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = WeakTensorKeyDictionary()
        self._modules = list(shared)
        self._others: dict[int, Storage] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the default imports the compiler: seconds

    def begin(self, x: Tensor, *, shared: bool) -> None:
        """Follow a tensor; one that is shared is not put away itself."""
        self._own[x] = None
        if shared:
            storage = x.untyped_storage()
            self._others[storage._cdata] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if any(x in self._own for x in _tensors((*args, *kwargs.values()))):
            for x in _tensors((out,)):
                self._own[x] = None
        return out

    def memory(self) -> list[Storage]:
        """The memory of what is alive and may be put away, each once."""
        taken = dict(self._others)
        for module in self._modules:
            for x in _tensors((*module._parameters.values(), *module._buffers.values(), *vars(module).values())):
                taken[x.untyped_storage()._cdata] = None
        found = {x.untyped_storage()._cdata: x.untyped_storage() for x in list(self._own)}
        return [each for key, each in found.items() if key not in taken and each.nbytes() >= _WORTH]


class Doze:
    """What one forward holds while it waits: counted on a shelf, or put into files of it.

    Args:
        traces: of the forward.
        shelf: takes it.
    """

    def __init__(self, traces: Traces, shelf: Shelf):
        self._traces, self._shelf = traces, shelf
        self._counted = 0
        self._files: list[tuple[Storage, Path]] = []

    def sleep(self) -> None:
        """Put away what does not fit into the budget; nothing of it may be used until it wakes."""
        if self._counted or self._files:
            return
        memory = self._traces.memory()
        size = sum(each.nbytes() for each in memory)
        if self._shelf.take(size):
            self._counted = size
            return
        for each in memory:
            if each.resizable():
                # A copy, as memory that numpy has seen cannot be emptied.
                self._files.append((each, self._shelf.write(_view(each).to("cpu", copy=True))))
                each.resize_(0)

    def wake(self) -> None:
        """Have everything back as it was."""
        self._shelf.give(self._counted)
        self._counted = 0
        for each, path in self._files:
            content = self._shelf.read(path)
            each.resize_(len(content))
            _view(each).copy_(content)
            path.unlink(missing_ok=True)
        self._files = []


def _view(storage: Storage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _tensors(values: Iterable[Any], depth: int = 3) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif depth and isinstance(value, list | tuple):
            yield from _tensors(value, depth - 1)
        elif depth and isinstance(value, dict):
            yield from _tensors(value.values(), depth - 1)
