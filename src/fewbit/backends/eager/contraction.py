# SPDX-License-Identifier: Apache-2.0
"""Which axis of a parameter a module contracts with its input, found by watching the module do it.

Experts kept in one tensor are `[experts, out, in]` in one model and `[experts, in, out]` in the next, and nothing in
the module says which. So the module is run on what it was called with, the parameter replaced by a marker: values that
differ along one axis only. Whatever indexing, transposing or copying lies between, the matrix products then show which
way round the marker comes in, and whether the other factor is the module's input itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fewbit.backends.eager.slots import Slot
from fewbit.backends.eager.trial import Call, forward, swapped
from fewbit.data.tree import flatten
from fewbit.model.points import Role

NEVER = "it is never multiplied with the input as a matrix"


def slot_of(module: nn.Module, name: str, call: Call) -> Slot | str:
    """How a module uses one of its parameters, or in words why that is not to be told.

    Args:
        module: of any class.
        name: the parameter.
        call: what the module is called with.
    """
    parameter = module._parameters[name]
    assert parameter is not None
    uses = [_use(module, name, axis, call) for axis in range(parameter.ndim)]
    contracted = [axis for axis, use in enumerate(uses) if use is not None and use.contracted]
    kept = [axis for axis, use in enumerate(uses) if use is not None and use.kept]
    if not contracted and not kept:
        return NEVER
    if len(contracted) != 1 or not kept or contracted[0] in kept:
        return "which one of its axes is contracted with the input does not show"
    out = kept[-1]  # of several, the others number weights: einsum makes experts and outputs one axis
    stack = [axis for axis in range(parameter.ndim) if axis not in (*contracted, out)]
    ours = (*stack, out, *contracted)
    axes = tuple(ours.index(axis) for axis in range(parameter.ndim))
    use = uses[contracted[0]]
    assert use is not None
    return Slot(name, Role.weight, axes, stack=len(stack), fed=use.by_input)


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches matrix products for a factor made of the marker's values.

    Attributes:
        contracted: the marker varied along the axis that was summed over.
        kept: it varied along the other.
        by_input: the other factor's rows were rows of the input.
        seen: any product had the marker in it.
    """

    def __init__(self, marker: Tensor, inputs: list[Tensor]):
        super().__init__()  # type: ignore[no-untyped-call]
        self._marker = marker
        self._inputs = inputs
        self.contracted = self.kept = self.by_input = self.seen = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the default imports the compiler: seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "mm" in func.name().split("::")[-1].split(".")[0] or func.name().startswith(("aten::mv", "aten::addmv")):
            factors = [arg for arg in args if isinstance(arg, Tensor) and arg.is_floating_point()]
            if len(factors) >= 2:
                left, right = factors[-2:]  # a summand, if any, comes before the factors
                self._look(left, right, columns=True)
                self._look(right, left, columns=False)
        return func(*args, **(kwargs or {}))

    def _look(self, factor: Tensor, other: Tensor, *, columns: bool) -> None:
        if factor.ndim < 2 or not factor.numel():
            return
        matrix = factor.flatten(0, -3)[0] if factor.ndim > 2 else factor
        if not torch.isin(matrix, self._marker.to(matrix.dtype)).all():
            return
        self.seen = True
        down, across = bool((matrix != matrix[:1]).any()), bool((matrix != matrix[:, :1]).any())
        summed, other_axis = (across, down) if columns else (down, across)
        self.contracted |= summed
        self.kept |= other_axis
        rows = other.mT if columns and other.ndim > 1 else other
        self.by_input |= any(_has_row(rows, x) for x in self._inputs)


def _use(module: nn.Module, name: str, axis: int, call: Call) -> _Products | None:
    """What the products show when a parameter varies along one axis only; none if no product had it."""
    parameter = module._parameters[name]
    assert parameter is not None
    side = parameter.shape[axis]
    # Distinct, exact in half precision, and nothing an activation is likely to be.
    values = (torch.arange(side, device=parameter.device) % 1021 + 1).to(parameter.dtype) * 2.0**-12
    marker = values.reshape([side if a == axis else 1 for a in range(parameter.ndim)]).expand(parameter.shape)
    inputs = [leaf for _, leaf in flatten(call) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    watch = _Products(values, inputs)
    with swapped(module, {name: marker.contiguous()}), torch.no_grad(), watch:
        forward(module, call)
    return watch if watch.seen else None


def _has_row(rows: Tensor, x: Tensor) -> bool:
    """Whether the last row of a factor is a row of the input."""
    if not rows.numel() or rows.shape[-1] != x.shape[-1]:
        return False
    last = rows.reshape(-1, rows.shape[-1])[-1]
    return bool((x.reshape(-1, x.shape[-1]) == last.to(x.dtype)).all(-1).any())
