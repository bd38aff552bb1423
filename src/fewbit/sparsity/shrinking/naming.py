# SPDX-License-Identifier: Apache-2.0
"""Which groups of channels a user's names mean."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fewbit.errors import UsageError, nearest
from fewbit.schemes.patterns import covers, fault_of
from fewbit.sparsity.shrinking.groups import Group


def is_named(group: Group, model: nn.Module, targets: Sequence[str], ignore: Sequence[str]) -> bool:
    """Whether a group may be shrunk: one of the layers that make it is a target, if there are any, and none is ignored.

    Args:
        group: the group.
        model: whose classes of layers can be named too.
        targets: names of layers, globs, `re:` and an expression, or names of classes.
        ignore: the same.
    """
    layers = [member.tensor.rpartition(".")[0] for member in group.makers]
    if any(_names(entry, layer, model) for entry in ignore for layer in layers):
        return False
    return not targets or any(_names(entry, layer, model) for entry in targets for layer in layers)


def refuse_names(model: nn.Module, targets: Sequence[str], ignore: Sequence[str]) -> None:
    """Refuse entries that name nothing, all at once.

    Raises:
        UsageError: entries that name no layer.
    """
    layers = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    faults = []
    for what, entries in (("targets", targets), ("ignore", ignore)):
        for entry in entries:
            found = fault_of(entry)
            if found is None and not any(_names(entry, layer, model) for layer in layers):
                found = f"{entry!r} names no layer with a weight; {nearest(entry, layers)[:300]}"
            if found is not None:
                faults.append(f"{what}: {found}")
    if faults:
        raise UsageError("; ".join(faults), where="targets", expected="names, patterns or classes of layers")


def _names(entry: str, layer: str, model: nn.Module) -> bool:
    return covers(entry, layer) or entry in {kind.__name__ for kind in type(model.get_submodule(layer)).__mro__}
