# SPDX-License-Identifier: Apache-2.0
"""A module without some of its channels, that runs and answers as it should, or the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from torch import nn

from fewbit.backends.eager.calling import Item
from fewbit.backends.eager.copying import copied
from fewbit.modules.huggingface import is_pretrained
from fewbit.sparsity.shrinking.attributes import refresh
from fewbit.sparsity.shrinking.cutting import cut, cuts, zeroed
from fewbit.sparsity.shrinking.fitting import Change, apply, candidates, sizes, tries
from fewbit.sparsity.shrinking.groups import HEADS, Group
from fewbit.sparsity.shrinking.proving import fault
from fewbit.sparsity.shrinking.rebuilding import rebuilt, take_over

Adapt = Callable[[nn.Module], None]
"""Changes the numbers that a module keeps of its own shapes, after its tensors were cut."""


def smaller(model: nn.Module, groups: Sequence[Group], gone: set[int]) -> nn.Module:
    """A copy of a module with tensors cut, and with the sizes that PyTorch's own modules say; large tensors are shared
    with the original where they are as they were."""
    made = copied(model)
    before = {name: dict(module.named_parameters(recurse=False)) for name, module in made.named_modules()}
    places = cuts(groups, gone)
    cut(made, places)
    for name, module in made.named_modules():
        if any(tensor is not before[name].get(own) for own, tensor in module.named_parameters(recurse=False)):
            refresh(module, dict(before[name]))
    return made


def silenced(model: nn.Module, groups: Sequence[Group], gone: set[int]) -> nn.Module:
    """A copy of a module in which nothing reads some channels."""
    made = copied(model)
    zeroed(made, groups, gone)
    return made


def fit(
    model: nn.Module, groups: Sequence[Group], gone: set[int], items: Sequence[Item], *, reloadable: bool
) -> tuple[Adapt | None, str]:
    """How a module has to change besides its tensors, or none and the reason.

    Args:
        model: the module.
        groups: of it.
        gone: the classes that are taken out.
        items: to compare answers on.
        reloadable: whether a Hugging Face model must be one that its library builds from a configuration.
    """
    made, wanted = smaller(model, groups, gone), silenced(model, groups, gone)
    if not reloadable and fault(made, wanted, items) is None:
        return partial(_change, ()), ""
    if is_pretrained(model):
        adapt, why = _configured(made, wanted, groups, gone, items)
        if adapt is not None or reloadable:
            return adapt, why
    wrong = None
    near, far = (tries(candidates(made, groups, gone, far=far)) for far in (False, True))
    for changes in chain(near, far):
        back = apply(made, changes)
        found = fault(made, wanted, items)
        back()
        if found is None:
            return partial(_change, changes), ""
        wrong = wrong or found
    return None, f"without it the module fails: {wrong}"


def _configured(
    made: Any, wanted: nn.Module, groups: Sequence[Group], gone: set[int], items: Sequence[Item]
) -> tuple[Adapt | None, str]:
    widths = [len(member.classes) // len(group.classes) for group in groups if group.kind == HEADS
              for member in group.makers]  # fmt: skip
    wrong = "no configuration of its class says such shapes"
    for empty in rebuilt(made, sizes(groups, gone), min(widths, default=None)):
        trial: Any = copied(made)
        take_over(trial, empty)
        found = fault(trial, wanted, items)
        if found is None:
            return partial(_take_over, empty), ""
        wrong = found
    return None, f"it could not be saved and loaded again: {wrong}"


def alike(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups that are the same in different layers: `layers.0.fc` and `layers.1.fc`."""
    found: dict[tuple[Any, ...], list[Group]] = {}
    for group in groups:
        found.setdefault((group.kind, len(group.classes), re.sub(r"\d+", "*", group.name)), []).append(group)
    return list(found.values())


def _change(changes: Sequence[Change], module: nn.Module) -> None:
    apply(module, changes)


def _take_over(empty: nn.Module, module: nn.Module) -> None:
    take_over(module, empty)
