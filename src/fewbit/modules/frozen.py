# SPDX-License-Identifier: Apache-2.0
"""A frozen layer: a kernel runs in the place of its forward, and keeps the codes in a layout of its own if it likes.

Whoever asks for anything but a forward still meets the codes. Saving, loading, copying, pickling and moving to
another device all see the layer as it was before `freeze`, and the kernel is chosen anew on the other side: layouts
belong to one device, and to one processor's instructions, but codes do not. A gradient passes through to the layer's
input: the kernel computes forwards, the layer's own forward is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from fewbit import registry
from fewbit.numerics.qtensor import QTensor

_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)  # PyTorch 2.7 has it first


def exporting() -> bool:
    """Whether `torch.export` is looking on; PyTorch 2.11 says so of `torch.compile` too."""
    return _is_exporting() and not torch.compiler.is_dynamo_compiling()


@dataclass(frozen=True)
class Terms:
    """What a kernel has to respect.

    Args:
        device: where the layer lives.
        exact: compute at least as precisely as the layer's own forward; without it a kernel for four bits may round
            activations to bfloat16, and one for fp8 sum as its GPU does, which adds far less error than the weights
            already have.
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
    wraps: bool
    stand_in: Tensor | None

    def run(self, layer: Any, x: Any) -> Any:
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
            freeze_layer(self, replace(self.frozen_terms, device=device_of(self)))

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
    members, broken = _fastest_first()
    refused = dict(broken)
    layer.frozen_terms = terms
    for name, member in members.items():
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


def run_frozen(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """The forward of a frozen layer."""
    if layer.kernel.wraps:
        return layer.kernel.run(layer, *args, **kwargs)
    x = _only_tensor(layer, args, kwargs)
    if x is None:
        return layer.own_forward(*args, **kwargs)  # which knows what to say of such a call
    if _autocast(x):
        x = x.to(torch.get_autocast_dtype(x.device.type))  # as the operators it stands for would
    learns = x.requires_grad and torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        if not learns or exporting():
            return layer.kernel.run(layer, x.detach() if learns else x)  # an exported program learns nothing
        if not layer.kernel.takes and layer.input_quantizer is None:
            return layer.own_forward(x)
        from fewbit.modules.graph_break import outside_the_graph

        # Operators on packed codes have no derivative, and a compiler cannot follow how they are unpacked; the one of
        # PyTorch 2.11 loses the gradient of quantized activations.
        return outside_the_graph(layer, x)
    if x.numel() == 0:
        return layer.own_forward(x)
    return differentiable(layer, x) if learns else layer.kernel.run(layer, x)


def _only_tensor(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """What a call gives as the one argument that kernels take; none if it gives anything else."""
    if len(args) + len(kwargs) != 1:
        return None
    x = args[0] if args else kwargs.get(layer.first_argument)
    return x if isinstance(x, Tensor) else None


def _autocast(x: Tensor) -> bool:
    """Whether operators would cast `x`."""
    return x.is_floating_point() and x.dtype is not torch.float64 and torch.is_autocast_enabled(x.device.type)


def differentiable(layer: Any, x: Tensor) -> Tensor:
    """The layer's output by its kernel, with the gradient of its own forward."""
    out: Tensor = _Differentiable.apply(layer, x)  # type: ignore[no-untyped-call]
    return out


class _Differentiable(torch.autograd.Function):
    """A kernel's forward with the gradient of the layer's own. The layer's parameters get none: they are frozen."""

    @staticmethod
    def forward(ctx: Any, layer: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.layer, ctx.precision = layer, _precision_now(x)
        ctx.save_for_backward(x)
        out: Tensor = layer.kernel.run(layer, x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        with torch.enable_grad(), ctx.precision:
            x = x.detach().requires_grad_()
            out = ctx.layer.own_forward(x)
            if not out.requires_grad:
                return None, None
            (found,) = torch.autograd.grad(out, x, grad, allow_unused=True)
        return None, found


def _precision_now(x: Tensor) -> AbstractContextManager[Any]:
    """Autocast as it is now, for a backward, which runs outside of it."""
    kind = x.device.type
    return torch.autocast(kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else nullcontext()


@cache
def _fastest_first() -> tuple[dict[str, Any], dict[str, str]]:
    """Every kernel by name; and the plug-ins that cannot be used, each with why: the others still freeze a model."""
    members: dict[str, Any] = {}
    broken: dict[str, str] = {}
    for name in registry.names("kernels"):
        try:
            member = registry.get("kernels", name)
            _ = member.SPEED, member.refuses, member.Kernel
            members[name] = member
        except Exception as error:  # whatever a plug-in's import may raise
            if registry.is_built_in("kernels", name):
                raise
            broken[name] = f"its {registry.summary('kernels', name)} is broken ({type(error).__name__}: {error})"
    return dict(sorted(members.items(), key=lambda entry: -int(entry[1].SPEED))), broken
