# SPDX-License-Identifier: Apache-2.0
"""What each expert of a stack reads of one item, in the model as it is and in the float model beside it.

In both the tokens go to the experts to which the first one sends them, so that what an expert reads in the one and what
it would have read in the other lie row by row beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.chains import replaced
from fewbit.backends.eager.padding import Positions
from fewbit.backends.eager.routing import Met, meetings, stages
from fewbit.backends.eager.running import inputs_of
from fewbit.backends.eager.trial import Call
from fewbit.data.tree import flatten
from fewbit.model.points import Role
from fewbit.model.walking import Inputs


def stacks_of(layer: Layer) -> dict[str, int]:
    """The stacks of a layer that are floats, each with the axis that numbers its experts."""
    slots = [slot for slot in layer.slots if slot.role is Role.weight and slot.stack == 1]
    return {slot.tensor: slot.axes.index(0) for slot in slots if slot.tensor in layer.module._parameters}


def stages_of(layer: Layer, module: nn.Module, call: Call) -> list[tuple[str, ...]]:
    """The stacks of a layer that read the same, together, in the order they run; nothing if that does not show."""
    stacks = stacks_of(layer)
    try:
        return stages(meetings(module, stacks, call)) if stacks else []
    except Exception:  # whatever a module raises that is run on markers; the layer is then taken as a whole
        return []


class Experts:
    """Stacks of one layer that read the same.

    Args:
        layer: the experts.
        stacks: their parameters.
        later: those that come after these, and need not be computed.
    """

    def __init__(self, layer: Layer, stacks: Sequence[str], later: Sequence[str]):
        axes = stacks_of(layer)
        self._layer, self._first = layer, stacks[0]
        self._markers = {name: axes[name] for name in (*stacks, *later)}

    def inputs(self, item: int, calls: Sequence[tuple[nn.Module, Call]], positions: Positions) -> Iterator[Inputs]:
        """What they are given, one after the other.

        Args:
            item: its index.
            calls: the module in each of the models that are walked, and what it is called with.
            positions: take padding out.
        """
        found = [self._met(module, _sent_alike(call, calls[0][1]), positions) for module, call in calls]
        beside = found[-1] if _fits(found[0], found[-1]) else found[0]  # a model that goes other ways wants nothing
        for met, other in zip(found[0], beside):
            kept = _told(met.rows, positions)
            if kept.any():
                rows = met.rows[kept]
                wanted = _wanted(other.rows[kept], rows) if len(calls) > 1 else None
                yield Inputs(item, rows, wanted, expert=met.expert)

    def _met(self, module: nn.Module, call: Call, positions: Positions) -> list[Met]:
        met = meetings(module, self._markers, _blanked(self._layer, call, positions))
        return [each for each in met if each.stack == self._first]


def _sent_alike(call: Call, first: Call) -> Call:
    """A call with the routing of another: its whole numbers and truths."""
    chosen = {path: x for path, x in flatten(first) if isinstance(x, Tensor) and not x.is_floating_point()}
    made: Call = replaced(call, chosen)
    return made


def _blanked(layer: Layer, call: Call, positions: Positions) -> Call:
    """A call in which the rows of padding are NaN, which they stay whatever an expert makes of them."""
    inputs = inputs_of(layer, *call)
    if not positions.has_padding or not inputs:
        return call
    x = inputs[0]
    rows = torch.arange(x.numel() // x.shape[-1], device=x.device).reshape(*x.shape[:-1], 1)
    padded = torch.ones(rows.numel(), dtype=torch.bool, device=x.device)
    padded[positions.select(rows, -1)[0].flatten()] = False
    blank = x.masked_fill(padded.reshape(rows.shape), torch.nan)
    made: Call = replaced(call, {path: blank for path, leaf in flatten(call) if leaf is x})
    return made


def _told(rows: Tensor, positions: Positions) -> Tensor:
    """Which rows are of tokens: no padding, and not the zeros that stand for a token that went elsewhere."""
    kept = (rows != 0).any(-1)
    return kept & ~rows.isnan().any(-1) if positions.has_padding else kept


def _fits(one: Sequence[Met], other: Sequence[Met]) -> bool:
    return [(met.expert, met.rows.shape) for met in one] == [(met.expert, met.rows.shape) for met in other]


def _wanted(beside: Tensor, rows: Tensor) -> Tensor:
    """What the float model has; where it sends a token elsewhere after all, what there is."""
    return torch.where((beside == 0).all(-1, keepdim=True), rows, beside)
