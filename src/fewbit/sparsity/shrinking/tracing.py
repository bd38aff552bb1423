# SPDX-License-Identifier: Apache-2.0
"""A run of a module on one item, in which labels go along with tensors, operator by operator.

Nothing is exported and no model code is read: the module runs as it is, and each operator of PyTorch that runs below
it tells what it does to labels. An operator that nobody knows keeps every channel it touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from fewbit.backends.eager.calling import Item, call
from fewbit.backends.eager.guest import guest
from fewbit.data.tree import flatten
from fewbit.sparsity.shrinking.flow import Flow, Matrix
from fewbit.sparsity.shrinking.rules import values_of


@dataclass(frozen=True)
class Axis:
    """One axis of a parameter or buffer.

    Args:
        tensor: its name in the module.
        number: of the axis.
        labels: along it.
    """

    tensor: str
    number: int
    labels: Tensor


@dataclass(frozen=True)
class Traced:
    """What a run showed: the axes of every parameter and float buffer, and which of their labels go together."""

    flow: Flow
    axes: tuple[Axis, ...]


def trace(model: nn.Module, item: Item) -> Traced:
    """Run a module on one item and follow its channels.

    Args:
        model: a module; it is as it was afterwards.
        item: what it is called with.

    Raises:
        DataError: the model failed.
    """
    flow = Flow()
    axes = []
    for name, tensor in named_tensors(model).items():
        value = Matrix(tuple(flow.new(side) for side in tensor.shape))
        flow.values[tensor] = value
        axes += [Axis(name, number, labels) for number, labels in enumerate(value.axes)]
    # In pieces, attention is products and a softmax, for which there are rules.
    with guest(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _placed(model, flow), _Follower(flow):
        answer = call(model, item)
    flow.place, flow.op = "", "answer"
    for _, leaf in flatten(answer):
        if isinstance(leaf, Tensor):
            flow.stays(flow.labels(leaf), "an answer of the model")
    flow.settle()
    return Traced(flow, tuple(axes))


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and float buffers by their first name, each once."""
    found = dict(model.named_parameters())
    return found | {name: each for name, each in model.named_buffers() if each.is_floating_point() and each.ndim}


class _Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, flow: Flow) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._flow = flow

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        outs = [leaf for _, leaf in flatten(out) if isinstance(leaf, Tensor)]
        for tensor, value in zip(outs, values_of(self._flow, func, args, kwargs or {}, outs), strict=True):
            self._flow.note(tensor, value)
        return out


@contextmanager
def _placed(model: nn.Module, flow: Flow) -> Iterator[None]:
    """Know which module runs, to say where channels are kept."""
    handles = []
    stack: list[str] = []

    def enter(name: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            stack.append(flow.place)
            flow.place = name

        return hook

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        flow.place = stack.pop()

    for name, module in model.named_modules():
        handles += [module.register_forward_pre_hook(enter(name)), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
