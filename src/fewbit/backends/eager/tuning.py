# SPDX-License-Identifier: Apache-2.0
"""A block of a module that is run with other weights, so that they can be tuned for what it answers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.chains import Call
from fewbit.backends.eager.joining import Joining
from fewbit.backends.eager.padding import Positions
from fewbit.data.tree import flatten, map_leaves


class EagerBlock:
    """A block with what it is called with and what it shall answer; see `fewbit.model.walking.Block`.

    It runs in the model's own type, but for float16, whose range slopes leave.

    Args:
        module: the block.
        name: its name in the model.
        layers: those within it, by name.
        calls: what it is called with, by item.
        entry: where among the arguments the state is.
        state: where in what it returns the state is.
        wanted: the state it shall return, by item.
        positions: take padding out, by item.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        layers: Mapping[str, Layer],
        calls: Mapping[int, Call],
        entry: str,
        state: str,
        wanted: Mapping[int, Tensor],
        positions: Mapping[int, Positions],
    ):
        self._module, self._name, self._layers, self._path = module, name, layers, state
        self._wanted, self._positions = wanted, positions
        tensors = (*module.named_parameters(), *module.named_buffers())
        self._wide = {path: x.detach().float() for path, x in tensors if x.dtype is torch.float16}
        self._weights: dict[str, Tensor] = {}
        self._places = {number: place for place, number in enumerate(calls)}
        given: list[Call] = [map_leaves(_widened, call) for call in calls.values()]
        self._joining = Joining(given, entry, self._state)

    @property
    def items(self) -> tuple[int, ...]:
        """The numbers of the items."""
        return tuple(self._places)

    def run(self, weights: Mapping[str, Tensor], items: Sequence[int]) -> Tensor:
        """What it answers to some items with other weights, `[positions, features]`, padding taken out."""
        self._weights = dict(self._own(name, value) for name, value in weights.items())
        try:
            found: dict[int, Tensor] = {}
            for group in self._joining.groups([self._places[number] for number in items]):
                found |= zip(group, self._joining.answers(group))
        finally:
            self._weights = {}
        return torch.cat([self._rows(number, found[self._places[number]]) for number in items])

    def wanted(self, items: Sequence[int]) -> Tensor:
        """What it shall answer to them."""
        return torch.cat([self._rows(number, self._wanted[number]) for number in items])

    def _state(self, call: Call) -> Tensor:
        others = {path: x for path, x in self._wide.items() if path not in self._weights}
        out = functional_call(self._module, others | self._weights, *call)
        state: Tensor = dict(flatten(out))[self._path]
        return state

    def _own(self, name: str, value: Tensor) -> tuple[str, Tensor]:
        """The parameter's name in the block, and a value as the block keeps it."""
        layer, _, tensor = name.rpartition(".")
        slot = self._layers[layer].slot(tensor)
        assert slot is not None
        path = name.removeprefix(f"{self._name}.")
        dtype = self._module.get_parameter(path).dtype
        return path, slot.own(value).to(torch.float32 if dtype is torch.float16 else dtype)

    def _rows(self, number: int, state: Tensor) -> Tensor:
        return self._positions[number].select(state, -1)[0]


@contextmanager
def steady(device: torch.device) -> Iterator[None]:
    """Within the block gradients are the same every time: attention on a GPU sums them in any order otherwise."""
    if device.type != "cuda":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    lenient = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operations that know no other way
            yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=lenient)
        memory.fill_uninitialized_memory = filled


def _widened(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype is torch.float16 else leaf
