# SPDX-License-Identifier: Apache-2.0
"""Gradual magnitude pruning: while a model learns, the smallest of its weights go, a few more each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.slots import Slot, slots_of
from fewbit.model.points import Point
from fewbit.numerics.sparsity import Pattern
from fewbit.sparsity.growing import grown
from fewbit.sparsity.schedules import Schedule
from fewbit.tuning.masks import Masks


@dataclass(frozen=True)
class _Weight:
    """A parameter that is pruned, and how it lies."""

    name: str
    parameter: nn.Parameter
    slot: Slot

    def ours(self, own: Tensor) -> Tensor:
        """A tensor of its shape in fewbit's layout, experts one below the other."""
        return self.slot.ours(own).flatten(0, self.slot.stack)

    def own(self, ours: Tensor) -> Tensor:
        """The inverse of `ours`."""
        shape = self.slot.ours(torch.empty(self.parameter.shape, device="meta")).shape
        return self.slot.own(ours.reshape(shape)).contiguous()


class Gradual:
    """What `finetune` takes as `pruning`: the smallest weights become zero and stay so, as a schedule says.

    Masks are found of the weights as they are when it is time, and of nothing else; processes that have equal weights
    find equal masks. A weight that is zero when the run begins counts as pruned.

    Args:
        points: the weights, of `choose_layers`.
        schedule: when, and how many.
        pattern: which ones together; its share is the schedule's last.
        together: one sparsity over all weights, so that layers with smaller ones lose more; if not, each layer has it.
        regrow: at each change but the last, the share of the weights that are left which are chosen by their gradients,
            pruned ones among them; 0 and what was pruned stays pruned.

    >>> from fewbit.engine.run import view_of
    >>> from fewbit.sparsity.layers import choose_layers
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    >>> pruning = Gradual(choose_layers(view_of(model)).points, Schedule(0.75, updates=2, end=0.5))
    >>> pruning.begin(model, Masks({}))
    >>> [pruning.at(step, 10) for step in (0, 1, 5)]
    [0.0, None, 0.75]
    """

    def __init__(
        self,
        points: Sequence[Point],
        schedule: Schedule,
        pattern: Pattern | None = None,
        *,
        together: bool = False,
        regrow: float = 0.0,
    ):
        self._points, self._schedule, self._together, self._regrow = tuple(points), schedule, together, regrow
        self._pattern = Pattern(schedule.final) if pattern is None else pattern
        self._weights: list[_Weight] = []
        self._masks = Masks({})
        self._wanted: dict[str, Tensor] | None = None

    def facts(self) -> dict[str, Any]:
        """What decides which weights go and when."""
        return {
            "schedule": asdict(self._schedule),
            "pattern": self._pattern.text,
            "together": self._together,
            "regrow": self._regrow,
            "layers": [point.name for point in self._points],
        }

    def begin(self, model: nn.Module, masks: Masks) -> None:
        """Find the weights in the model that learns."""
        parameters = dict(model.named_parameters())
        self._masks, self._weights = masks, []
        for point in self._points:
            slot = slot_of(model, point)
            name = next(user for user in point.users if user in parameters)
            self._weights.append(_Weight(name, parameters[name], slot))

    def see(self, step: int, total: int) -> None:
        """Keep the gradients in a step whose change of the masks goes by them."""
        changes = self._schedule.changes(total)
        if self._regrow and step in changes and step < max(changes):
            self._wanted = {each.name: each.ours(_asked(each.parameter)) for each in self._weights}

    @torch.no_grad()
    def at(self, step: int, total: int) -> float | None:
        """Let the masks grow to what they are after so many steps; the share of zeros, or none if nothing changes."""
        share = self._schedule.changes(total).get(step)
        if share is None:
            return None
        weights = {each.name: each.ours(_whole(each.parameter)) for each in self._weights}
        before = {
            each.name: each.ours(_whole(pruned))
            for each in self._weights
            if (pruned := self._masks.pruned(each.name)) is not None
        }
        more: dict[str, Any] = {"together": self._together, "wanted": self._wanted, "regrow": self._regrow}
        found = grown(weights, before, self._pattern, share, **more)
        self._wanted = None
        for each in self._weights:
            self._masks.prune(each.name, each.parameter, each.own(found[each.name]))
        zeros = sum(int(pruned.sum()) for pruned in found.values())
        return zeros / sum(pruned.numel() for pruned in found.values())

    def is_done(self, step: int, total: int) -> bool:
        """Whether the masks change no more."""
        return step >= max(self._schedule.changes(total))


def slot_of(model: nn.Module, point: Point) -> Slot:
    """Where a weight lies in its module, by the class of the module."""
    return next(slot for slot in slots_of(model.get_submodule(point.layer)) if slot.tensor == point.tensor)


def _asked(parameter: nn.Parameter) -> Tensor:
    """How much the loss asks for each element: the size of its gradient; nothing where there is none."""
    if parameter.grad is None:
        return torch.zeros(parameter.shape, device=parameter.device)
    return _whole(parameter.grad).float().abs().nan_to_num()


def _whole(tensor: Any) -> Tensor:
    """A tensor that several processes hold parts of, put together."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()
