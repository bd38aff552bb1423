# SPDX-License-Identifier: Apache-2.0
"""Stacks of experts explained without a run: somebody knows that they are matrices `[out, in]`, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from fewbit.backends.eager.slots import Slot
from fewbit.backends.eager.view import EagerView
from fewbit.model.points import Role


def tell_stacks(view: EagerView, are_matrices: Callable[[str, tuple[int, ...]], bool]) -> list[str]:
    """Let a view know what its model's stacks are, instead of trying them with an example.

    Args:
        view: of a model, which may be empty.
        are_matrices: whether the stack of a name and a shape is `[experts, out, in]`.

    Returns:
        The stacks that are something else.
    """
    found = view._look().found
    stacks = {
        (layer, tensor): tuple(parameter.shape)
        for layer, tensor in found.unknown
        if (parameter := found.layers[layer].module._parameters[tensor]) is not None and parameter.ndim > 2
    }
    known = [(layer, tensor) for (layer, tensor), shape in stacks.items() if are_matrices(f"{layer}.{tensor}", shape)]
    view._seen |= {(layer, tensor): Slot(tensor, Role.weight, (0, 1, 2), stack=1) for layer, tensor in known}
    view._known, view._tried_own_example = None, True
    return [f"{layer}.{tensor}" for layer, tensor in stacks if (layer, tensor) not in known]
