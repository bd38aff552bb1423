# SPDX-License-Identifier: Apache-2.0
"""Whether a smaller module answers as the larger one does where nothing reads what was taken out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fewbit.backends.eager.calling import Item, call, small
from fewbit.backends.eager.guest import guest
from fewbit.backends.eager.padding import masks_of
from fewbit.data.batch import cut
from fewbit.data.tree import flatten
from fewbit.errors import DataError

_ROUNDING, _MOST = 2.0**10, 0.05
"""Sums in another order differ by so many units in the last place of the largest answer, at most, where all is well;
and by so much of it where a type has few places."""


def answers(model: nn.Module, item: Item) -> list[Tensor]:
    """What a module answers: its float tensors, in order."""
    with guest(model), torch.no_grad():
        answer = call(model, item)
    return [leaf for _, leaf in flatten(answer) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def probes(model: nn.Module, item: Item) -> list[Item]:
    """What to compare answers on: a few samples and positions of an item, and one sample alone.

    It is the item itself where the model takes no part of it, such as one without a batch axis.
    """
    mask = next(iter(masks_of(model, item)), None)
    found = [each for each in (small(item, mask), cut(item, 1)) if _takes(model, each)]
    return found or [item]


def _takes(model: nn.Module, item: Item) -> bool:
    try:
        answers(model, item)
    except DataError:
        return False
    return True


def fault(smaller: nn.Module, larger: nn.Module, items: Sequence[Item]) -> str | None:
    """What is wrong with a smaller module, in words; none if it answers as the larger one does, to rounding.

    Args:
        smaller: without the channels.
        larger: with these channels read by nothing.
        items: what they are called with.
    """
    for item in items:
        wanted = answers(larger, item)
        try:
            found = answers(smaller, item)
        except DataError as error:
            return error.what
        if [x.shape for x in wanted] != [x.shape for x in found]:
            return f"answers of {[tuple(x.shape) for x in found]} in the place of {[tuple(x.shape) for x in wanted]}"
        for a, b in zip(wanted, found, strict=True):
            allowed = min(_ROUNDING * torch.finfo(a.dtype).eps, _MOST)
            if not a.numel():
                continue
            a, b = (torch.nan_to_num(x.detach().double(), nan=0.0, posinf=0.0, neginf=0.0) for x in (a, b))
            span, off = float(a.abs().max()), float((a - b).abs().max())
            if off > allowed * max(span, 1e-6):
                return f"answers that differ by {off:.3g}, where the largest is {span:.3g}"
    return None
