# SPDX-License-Identifier: Apache-2.0
"""A frozen layer: a kernel runs in the place of its forward, and keeps the codes in a layout of its own if it likes.

Whoever asks for anything but a forward still meets the codes. Saving, loading, copying, pickling and moving to
another device all see the layer as it was before `freeze`, and the kernel is chosen anew on the other side: layouts
belong to one device, and to one processor's instructions, but codes do not. A gradient passes through to the layer's
input.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from fewbit import registry
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class Terms:
    """What a kernel has to respect.

    Args:
        device: where the layer lives.
        exact: compute at least as precisely as the layer's own forward; without it a kernel for four bits and fewer may
            round activations to bfloat16, which adds far less error than the weights already have.
        shared: other layers use the same codes, so they stay where they are.
    """

    device: torch.device
    exact: bool = False
    shared: bool = False


class Kernel(Protocol):
    """What runs in the place of a layer's forward; see `fewbit.kernels._base`."""

    name: str
    refused: dict[str, str]
    terms: Terms
    note: str
    takes: tuple[str, ...]
    stand_in: Tensor | None

    def run(self, layer: Any, x: Tensor) -> Tensor:
        """What the layer's own forward gives."""

    def restore(self, layer: Any) -> QTensor:
        """The codes, bit by bit."""

    def tensors(self) -> Iterator[Tensor]:
        """Everything the kernel keeps alive."""


class Freezable:
    """Mixed into quantized modules."""

    kernel: Kernel | None
    frozen_terms: Terms | None = None  # also where no kernel took the layer: another device may have one
    _buffers: dict[str, Tensor | None]

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        assert isinstance(state, dict)
        return {**state, "kernel": None, "_buffers": {**self._buffers, **taken_parts(self)}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        if self.frozen_terms is not None:
            freeze_layer(self, self.frozen_terms)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)  # type: ignore[misc]
        destination.update({prefix + name: part for name, part in taken_parts(self).items()})

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        with thawed(self):
            super()._load_from_state_dict(*args, **kwargs)  # type: ignore[misc]


def freeze_layer(layer: Any, terms: Terms) -> dict[str, str]:
    """Give a layer the fastest kernel that takes it, in place.

    Returns:
        The faster kernels that came close, and why each refused; the layer's own forward stays where all did.
    """
    refused: dict[str, str] = {}
    layer.frozen_terms = terms
    for name in _fastest_first():
        member = registry.get("kernels", name)
        why = member.refuses(layer, terms)
        if why is None:
            kernel = member.Kernel(layer, terms)
            kernel.name, kernel.refused = name, refused
            for part in kernel.takes:
                layer._buffers[f"weight_{part}"] = None
            layer.kernel = kernel
            return refused
        if why:
            refused[name] = why
    return refused


def thaw_layer(layer: Any) -> None:
    """Put the codes back where they were before `freeze_layer`, in place."""
    parts = taken_parts(layer)
    layer.kernel = layer.frozen_terms = None
    layer._buffers.update(parts)


@contextmanager
def thawed(layer: Any) -> Iterator[None]:
    """A layer without its kernel for a while; afterwards it gets the one that fits what became of it."""
    terms = layer.frozen_terms
    thaw_layer(layer)
    try:
        yield
    finally:
        if terms is not None:
            freeze_layer(layer, replace(terms, device=device_of(layer)))


def taken_parts(layer: Any) -> dict[str, Tensor]:
    """The buffers that a kernel took out of a layer, restored."""
    if layer.kernel is None or not layer.kernel.takes:
        return {}
    parts = layer.kernel.restore(layer).tensors()
    return {f"weight_{part}": parts[part] for part in layer.kernel.takes if part in parts}


def device_of(layer: Any) -> torch.device:
    """Where a layer's codes live."""
    held = [part for part in layer._buffers.values() if part is not None]
    found: Tensor = held[0] if held else next(iter(layer.kernel.tensors()))
    return found.device


def run_frozen(layer: Any, *args: Any, **kwargs: Any) -> Tensor:
    """The forward of a frozen layer."""
    x = args[0] if args else next(iter(kwargs.values()))
    if x.is_floating_point() and torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))  # as the operators it stands for would
    out: Tensor
    if torch.compiler.is_compiling():
        out = layer.kernel.run(layer, x)
    elif x.numel() == 0:
        out = layer.own_forward(x)
    elif x.requires_grad and torch.is_grad_enabled():
        out = _Differentiable.apply(layer, x)  # type: ignore[no-untyped-call]
    else:
        out = layer.kernel.run(layer, x)
    return out


class _Differentiable(torch.autograd.Function):
    """A kernel's forward with the gradient of the layer's own. The layer's parameters get none: they are frozen."""

    @staticmethod
    def forward(ctx: Any, layer: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.layer = layer
        ctx.save_for_backward(x)
        out: Tensor = layer.kernel.run(layer, x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = ctx.layer.own_forward(x)
            if not out.requires_grad:
                return None, None
            (found,) = torch.autograd.grad(out, x, grad, allow_unused=True)
        return None, found


@cache
def _fastest_first() -> tuple[str, ...]:
    names = registry.names("kernels")
    return tuple(sorted(names, key=lambda name: -int(registry.get("kernels", name).SPEED)))
