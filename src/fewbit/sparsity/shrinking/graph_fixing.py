# SPDX-License-Identifier: Apache-2.0
"""Shapes that a graph says in numbers, written anew once it is known what each axis keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from fewbit.backends.graph.constants import constant, new_constant
from fewbit.sparsity.shrinking.classes import Labels
from fewbit.sparsity.shrinking.graph_numbers import numbers
from fewbit.sparsity.shrinking.graph_walk import Kept, Walk


def fix_sides(walk: Walk, node: ir.Node, index: int, axes: Sequence[Labels]) -> None:
    """Write the new lengths of axes into an input that says them.

    A number that is the same for every input is written anew where it says how many channels there are, or was computed
    from that. A number of channels that depends on the input (heads times batch) is left for a Reshape to find out.

    Args:
        walk: takes the fix.
        node: the node.
        index: which of its inputs says the lengths.
        axes: labels of what it says, in its order.
    """
    said = numbers(walk, node.inputs[index])
    follows = [number.value is not None for number in said]
    for place, labels in enumerate(axes):
        if len(said) != len(axes) or (walk.strict and not follows[place]):
            walk.stay(node, labels, "it computes their number")

    def fix(kept: Kept) -> None:
        def changed(labels: Labels) -> bool:
            return kept(labels) != len(labels)

        new: dict[int, int] = {}
        for place, number in enumerate(said if len(said) == len(axes) else []):
            own = changed(axes[place])
            if number.value is None and own and node.op_type == "Reshape":
                new[place] = -1
            elif number.value is not None and number.value > 0 and (own or any(map(changed, number.axes))):
                new[place] = kept(axes[place])
        if sum(side == -1 for side in new.values()) + sum(number.value == -1 for number in said) > 1:
            new = {place: side for place, side in new.items() if side != -1}
        if new:
            _override(node, index, new, len(axes))

    walk.fixes.append(fix)


def _override(node: ir.Node, index: int, new: dict[int, int], count: int) -> None:
    """Let a list of numbers have others at some places, whether it is constant or computed."""
    value = node.inputs[index]
    assert value is not None
    told, sides = [place in new for place in range(count)], [new.get(place, 0) for place in range(count)]
    before = constant(value)
    if before is not None:
        put_numbers(node, index, np.where(told, sides, before.reshape(-1)).tolist())
        return
    if all(told):
        put_numbers(node, index, sides)
        return
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    where = new_constant(graph, value, np.array(told), f"{node.name}.fixed")
    numbers = new_constant(graph, value, np.array(sides, np.int64), f"{node.name}.sides")
    chosen = ir.node("Where", [where, numbers, value], name=f"{node.name}.where")
    chosen.outputs[0].name = f"{node.name}.shape"
    graph.insert_before(node, chosen)
    node.replace_input_with(index, chosen.outputs[0])


def put_numbers(node: ir.Node, index: int, numbers: Sequence[int]) -> None:
    """Give a node a list of whole numbers of its own, in the type of the one that it had."""
    graph, old = node.graph, node.inputs[index] if len(node.inputs) > index else None
    assert isinstance(graph, ir.Graph)
    like = node.outputs[0] if old is None else old
    before = constant(old)
    array = np.array(numbers, np.int64 if before is None else before.dtype)
    made = new_constant(graph, like, array, f"{node.name}.{index}.numbers")
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, made)
