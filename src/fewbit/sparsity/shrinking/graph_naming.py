# SPDX-License-Identifier: Apache-2.0
"""What the user wants gone, and which groups of a graph that means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import onnx_ir as ir

from fewbit.backends.graph.layers import layers
from fewbit.errors import UsageError, nearest
from fewbit.schemes.patterns import fault_of, matches
from fewbit.sparsity.shrinking.graph_groups import Group


class Wish(Protocol):
    """What the user wants gone; see `fewbit.sparsity.stages.shrink`."""

    @property
    def channels(self) -> float:
        """The share of channels."""

    @property
    def heads(self) -> float:
        """The share of heads."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Layers whose channels may go: names, globs, `re:` and an expression, operators; all if none is named."""

    @property
    def ignore(self) -> tuple[str, ...]:
        """Layers whose channels stay."""

    @property
    def multiple(self) -> int:
        """Of which the number of channels that a group keeps is to be one."""

    @property
    def score(self) -> str:
        """`error`, or `magnitude`: by weights alone, whatever the data."""

    @property
    def compensate(self) -> bool:
        """Whether readers make up for what went."""


def is_named(group: Group, settings: Wish) -> bool:
    """Whether the user lets channels of a group go: a layer of it is named, and none is to be left alone."""
    named = not settings.targets or any(_names(node, settings.targets) for node in group.layers)
    return named and not any(_names(node, settings.ignore) for node in group.layers)


def refuse_names(model: ir.Model, settings: Wish) -> None:
    """Refuse entries that name nothing, all at once.

    Raises:
        UsageError: entries that name no layer.
    """
    nodes = [layer.node for layer in layers(model.graph)]
    faults = []
    for what, entries in (("targets", settings.targets), ("ignore", settings.ignore)):
        for entry in entries:
            found = fault_of(entry)
            if found is None and not any(_names(node, [entry]) for node in nodes):
                known = {node.name or "" for node in nodes} | {node.op_type for node in nodes}
                found = f"{entry!r} names no layer with a weight; {nearest(entry, known)[:300]}"
            if found is not None:
                faults.append(f"{what}: {found}")
    if faults:
        raise UsageError("; ".join(faults), where="shrink", expected="names, patterns or operators of layers")


def _names(node: ir.Node, entries: Sequence[str]) -> bool:
    return any(matches(entry, node.name or "") or entry == node.op_type for entry in entries)
