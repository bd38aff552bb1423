# SPDX-License-Identifier: Apache-2.0
"""Gradients of a module's answers by its weights, one item and one weight at a time; see `fewbit.model.sensing`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.calling import Item, call
from fewbit.backends.eager.catalogue import Catalogue
from fewbit.backends.eager.guest import guest
from fewbit.backends.eager.slots import Slot
from fewbit.data.tree import flatten
from fewbit.errors import DataError
from fewbit.model.points import Point
from fewbit.model.sensing import Take, Weigh


def run_gradients(
    model: nn.Module, found: Catalogue, points: Sequence[Point], items: Iterable[Item], weigh: Weigh, take: Take
) -> None:
    """Run items forth and back.

    Args:
        model: a copy, whose parameters will be marked.
        found: its catalogue.
        points: of weights.
        items: what it is called with.
        weigh: how much each value of an answer counts.
        take: is given each gradient, which is then let go.
    """
    for parameter in model.parameters():
        if type(parameter) is nn.Parameter:  # those of special classes are the original's
            parameter.requires_grad_(False)
    asked: dict[nn.Parameter, list[tuple[Point, Slot]]] = {}  # a parameter may be a weight of several layers
    for point in points:
        layer = found.layers[point.layer]
        slot, own = layer.slot(point.tensor), layer.module._parameters[point.tensor]
        assert slot is not None and own is not None
        asked.setdefault(own, []).append((point, slot))
    for weight, mine in asked.items():
        weight.requires_grad_(True).register_post_accumulate_grad_hook(_handing(mine, take))  # type: ignore[no-untyped-call]
    with guest(model), torch.enable_grad():
        for index, item in enumerate(items):
            answers = [leaf for _, leaf in flatten(call(model, item, index)) if _counts(leaf)]
            weighed = weigh(index, [answer.detach() for answer in answers])
            _go_back([(a, w.to(a)) for a, w in zip(answers, weighed) if w is not None], index)


def _handing(mine: Sequence[tuple[Point, Slot]], take: Take) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        for point, slot in mine:
            take(point, slot.ours(parameter.grad))
        parameter.grad = None

    return hook


def _counts(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and not leaf.is_complex()


def _go_back(weighed: list[tuple[Tensor, Tensor]], index: int) -> None:
    try:
        torch.autograd.backward([a for a, _ in weighed], [w for _, w in weighed])
    except (RuntimeError, NotImplementedError) as error:
        raise DataError(
            f"the model cannot be differentiated: {type(error).__name__}: {str(error)[:300]}",
            code="no-gradients",
            where=f"item {index}",
            expected="answers that follow from the weights by operations that have gradients",
        ) from error
