# SPDX-License-Identifier: Apache-2.0
"""One forward, watched: which layers ran, what each was called with, and whose output each read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from fewbit.backends.eager.affine import Affine, affine_of
from fewbit.backends.eager.calling import Item, call
from fewbit.backends.eager.catalogue import Catalogue, Layer
from fewbit.backends.eager.flow import Flow
from fewbit.backends.eager.guest import lent_randomness
from fewbit.backends.eager.rescaling import can_divide
from fewbit.backends.eager.running import inputs_of
from fewbit.backends.eager.trial import Call
from fewbit.data.tree import flatten, map_leaves


@dataclass
class Visit:
    """One call of a layer.

    Args:
        call: what it was called with; copies, so that nothing done in place later changes them.
        reads: marks of its input.
        reads_besides: marks of its other arguments.
        identity: equal for layers that read the same tensor.
        single: whether its input is one tensor; attention may read three.
    """

    call: Call
    reads: int
    reads_besides: int
    identity: tuple[int, ...]
    single: bool


@dataclass
class Trace:
    """What one forward showed.

    Args:
        flow: the marks.
        visits: the calls of each layer, layers in the order they first ran.
        out: what the model returned, copied.
        escaped: marks of what the model returned or turned into numbers of Python.
        affine: how the norms among the layers scale their output.
    """

    flow: Flow
    visits: dict[str, list[Visit]] = field(default_factory=dict)
    out: list[Tensor] = field(default_factory=list)
    escaped: int = 0
    affine: dict[str, Affine] = field(default_factory=dict)

    def features(self, layer: Layer) -> int:
        """The channel axis of a layer's output."""
        return self.affine[layer.name].features if layer.name in self.affine else layer.features()


def steps(found: Catalogue) -> dict[str, Layer]:
    """The layers that count as one step: those that run, and lie in no other."""
    taken: dict[str, Layer] = {}
    for name, layer in found.layers.items():
        if layer.called and not layer.inside and not any(outer in taken for outer in _outer(name)):
            taken[name] = layer
    return taken


def _outer(name: str) -> Iterator[str]:
    """The names of the modules that a module lies in, the model itself left out."""
    while name := name.rpartition(".")[0]:
        yield name


def trace(model: nn.Module, layers: dict[str, Layer], item: Item, *, every: bool = False) -> Trace:
    """Run one item and write down who reads what.

    Args:
        model: the model.
        layers: that count as one step.
        item: what it is called with.
        every: follow the output of every layer, not only of those whose channels can be scaled.
    """
    found = Trace(Flow())
    copies: dict[Any, Tensor] = {}
    handles = [handle for layer in layers.values() for handle in _hooks(layer, found, copies, every)]
    try:
        with lent_randomness(model), found.flow:
            out = call(model, item)
    finally:
        for handle in handles:
            handle.remove()
    tensors = [leaf for _, leaf in flatten(out) if isinstance(leaf, Tensor)]
    found.out = [tensor.detach().clone() for tensor in tensors]
    found.escaped = found.flow.leaked
    for tensor in tensors:
        found.escaped |= found.flow.marks(tensor)
    return found


def _hooks(layer: Layer, found: Trace, copies: dict[Any, Tensor], every: bool) -> list[Any]:
    flow = found.flow

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs = inputs_of(layer, args, kwargs)
        reads = besides = 0
        for _, leaf in flatten((args, kwargs)):
            if isinstance(leaf, Tensor):
                marks = flow.marks(leaf)
                if any(leaf is x for x in inputs):
                    reads |= marks
                else:
                    besides |= marks
        identity = flow.identity(inputs[0], layer.features()) if inputs and inputs[0].ndim else ()
        with _disable_current_modes():
            kept: Call = map_leaves(lambda leaf: _copy(leaf, copies), (args, kwargs))
        found.visits.setdefault(layer.name, []).append(Visit(kept, reads, besides, identity, len(inputs) == 1))
        flow.inside += 1

    def after(module: nn.Module, args: Any, out: Any) -> None:
        flow.inside -= 1
        if layer.op is None and not layer.slots and layer.name not in found.affine:
            with _disable_current_modes():
                scaled = affine_of(module, found.visits[layer.name][-1].call)
            if scaled is not None:
                found.affine[layer.name] = scaled
        divisible = isinstance(out, Tensor) and (every or layer.name in found.affine or can_divide(layer))
        for _, leaf in flatten(out):
            if isinstance(leaf, Tensor):
                flow.begin(layer.name if divisible else None, leaf, found.features(layer))

    return [
        layer.module.register_forward_pre_hook(before, with_kwargs=True),
        layer.module.register_forward_hook(after),
    ]


def _copy(leaf: Any, copies: dict[Any, Tensor]) -> Any:
    """A tensor's values now; one copy for all who read the same."""
    if not isinstance(leaf, Tensor):
        return leaf
    storage = leaf.untyped_storage()
    key = (storage._cdata, leaf.storage_offset(), leaf.shape, leaf.stride(), leaf._version, leaf.dtype)
    if key not in copies:
        copies[key] = leaf.detach().clone(memory_format=torch.preserve_format)
    return copies[key]
