# SPDX-License-Identifier: Apache-2.0
"""What one item shows of a part of a model: which layers read the same tensor, and which write to the state.

A layer writes to the state if what some module reads later, or what the part returns, is the state and its output added
up, bit by bit. Where something is between (a norm behind the layer), it does not count as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.experts import stages_of
from fewbit.backends.eager.running import inputs_of
from fewbit.backends.eager.terrain import ENTRY, Terrain
from fewbit.data.tree import flatten
from fewbit.model.ops import EXPERTS


@dataclass
class _Events:
    reads: list[tuple[str, Tensor]] = field(default_factory=list)
    writes: list[tuple[str, Tensor, int]] = field(default_factory=list)  # with how many reads there were before
    inputs: dict[str, Any] = field(default_factory=dict)  # by object: who reads the same one is of one stage
    stacks: dict[str, tuple[str, str]] = field(default_factory=dict)
    experts: set[str] = field(default_factory=set)


def survey(
    layers: Mapping[str, Layer], modules: Mapping[str, nn.Module], run: Callable[[], Any], state: Tensor | None
) -> Terrain:
    """Run one item and look.

    Args:
        layers: of this part of the model.
        modules: all its modules, by name, as they run.
        run: runs it.
        state: what it is called with; none if nothing goes through it.
    """
    events = _Events()
    handles = [modules[name].register_forward_pre_hook(_reading(events, layer), with_kwargs=True)
               for name, layer in layers.items()]  # fmt: skip
    if state is not None:
        for name, module in modules.items():
            handles.append(module.register_forward_pre_hook(_passing(events, name, state.shape), with_kwargs=True))
        handles += [modules[name].register_forward_hook(_writing(events, name, state.shape)) for name in layers]
    try:
        out = run()
    finally:
        for handle in handles:
            handle.remove()
    groups: dict[int, list[str]] = {}
    for name, x in events.inputs.items():
        groups.setdefault(id(x), []).append(name)
    found = Terrain([tuple(names) for names in groups.values()], stacks=events.stacks)
    if state is not None:
        ends = [(ENTRY, x) for _, x in flatten(out) if isinstance(x, Tensor) and x.shape == state.shape]
        found.states = _states(events, state, ends)
    return found


def _states(events: _Events, state: Tensor, ends: list[tuple[str, Tensor]]) -> dict[str, str]:
    found: dict[str, str] = {}
    place = ENTRY
    for layer, out, before in events.writes:
        total = state + out
        after = [*events.reads[before:], *ends]
        met = next(((name, x) for name, x in after if x.dtype == total.dtype and torch.equal(x, total)), None)
        if met is not None:
            found[layer] = place
            place, state = met
    return found


def _reading(events: _Events, layer: Layer) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if layer.op is EXPERTS and layer.name not in events.experts:
            events.experts.add(layer.name)
            for stacks in stages_of(layer, module, (args, kwargs)):
                names = {f"{layer.name}.{stack}".lstrip("."): (layer.name, stack) for stack in stacks}
                events.stacks |= names
                events.inputs |= dict.fromkeys(names, stacks)
        inputs = inputs_of(layer, args, kwargs)
        if inputs and all(owner != layer.name for owner, _ in events.stacks.values()):
            events.inputs.setdefault(layer.name, inputs[0])

    return hook


def _passing(events: _Events, name: str, shape: torch.Size) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_tensor(args, kwargs)
        if x is not None and x.shape == shape:
            events.reads.append((name, x))

    return hook


def _writing(events: _Events, name: str, shape: torch.Size) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.shape == shape:
            events.writes.append((name, out, len(events.reads)))

    return hook


def first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first tensor a module is called with."""
    return next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
