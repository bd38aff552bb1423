# SPDX-License-Identifier: Apache-2.0
"""Links: whose output channels can be scaled, and who has to scale them back.

The flow of one forward says who reads a layer's output. Trials say whether a channel's scale comes through to them
unchanged: past a ReLU, an attention, a product with a gate, a flattening. Last, the layers' own parameters are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fewbit.backends.eager.affine import along
from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.rescaling import divided_outputs, multiplied_inputs, output_channels, spread
from fewbit.backends.eager.running import inputs_of
from fewbit.backends.eager.trial import Call, forward, swapped
from fewbit.backends.eager.trials import Candidate, Channels, Setting, Trial, close
from fewbit.data.tree import flatten, map_leaves
from fewbit.model.structure import Link


def find_links(setting: Setting, shared: set[str]) -> list[Link]:
    """Every link, in the order the producers ran.

    Args:
        setting: the model, traced on an item.
        shared: layers with a parameter that others use too; scaling it would change them.
    """
    found = [link for together in _apart(_candidates(setting, shared)) for link in _try(setting, together)]
    order = {name: place for place, name in enumerate(setting.trace.visits)}
    return sorted(found, key=lambda link: (order[link.producer], link.channels))


def _candidates(setting: Setting, shared: set[str]) -> list[Candidate]:
    """Pieces all of whose readers could scale them back, as far as the flow can tell."""
    found = []
    pieces, visits = setting.trace.flow.pieces, setting.trace.visits
    for piece in pieces:
        marks = sum(1 << place for place, other in enumerate(pieces) if piece.meets(other))
        readers = tuple(name for name, calls in visits.items() if any(visit.reads & marks for visit in calls))
        besides = any(visit.reads_besides & marks for calls in visits.values() for visit in calls)
        if not readers or besides or marks & setting.trace.escaped or not shared.isdisjoint({piece.source, *readers}):
            continue
        if _is_divisible(setting, piece.source) and all(_is_multiplicable(setting, name) for name in readers):
            found.append(Candidate(piece.source, piece.channels, readers))
    return found


def _is_divisible(setting: Setting, name: str) -> bool:
    return name in setting.trace.affine or _all_floats(setting.layers[name], weights=False)


def _is_multiplicable(setting: Setting, name: str) -> bool:
    layer = setting.layers[name]
    single = all(visit.single for visit in setting.trace.visits[name])
    return single and any(slot.fed for slot in layer.slots) and _all_floats(layer, weights=True)


def _all_floats(layer: Layer, *, weights: bool) -> bool:
    """Whether a layer's parameters (or only the weights its input meets) are floats, not codes."""
    return all(layer.module._parameters.get(slot.tensor) is not None for slot in layer.slots if slot.fed or not weights)


def _apart(candidates: list[Candidate]) -> list[list[Candidate]]:
    """Candidates in groups whose members have no layer in common."""
    groups: list[tuple[set[str], list[Candidate]]] = []
    for candidate in candidates:
        names = {candidate.producer, *candidate.readers}
        for taken, group in groups:
            if names.isdisjoint(taken):
                taken |= names
                group.append(candidate)
                break
        else:
            groups.append((names, [candidate]))
    return [group for _, group in groups]


def _try(setting: Setting, together: Sequence[Candidate]) -> list[Link]:
    """The links among candidates that have no layer in common."""
    trial = Trial(setting, together, 1.0)
    if not trial.quiet:  # somebody else was disturbed, and it is not clear by whom
        return [link for alone in together for link in _try(setting, [alone])] if len(together) > 1 else []
    maps = {c: [trial.channels(c, reader) for reader in c.readers] for c in together}
    if any(found is not None and None in found for each in maps.values() for found in each):
        again = Trial(setting, together, -1.0)  # what a ReLU held back in the first trial comes through now
        maps = {c: [*each, *(again.channels(c, reader) for reader in c.readers)] for c, each in maps.items()}
    found = []
    for candidate, each in maps.items():
        channels = _agreed(each)
        if channels is not None and max(channels) >= 0:
            found.append(Link(candidate.producer, candidate.readers, channels))
    return [link for link in found if _holds(setting, link)]


def _agreed(maps: Sequence[Channels]) -> tuple[int, ...] | None:
    """The one channel map that all readers and trials agree on; what was zero in one may be known from another."""
    known = [found for found in maps if found is not None]
    if len(known) < len(maps) or len({len(found) for found in known}) != 1:
        return None
    agreed = []
    for entries in zip(*known):
        named = {entry for entry in entries if entry is not None}
        if len(named) > 1:
            return None
        agreed.append(named.pop() if named else -1)
    return tuple(agreed)


def _holds(setting: Setting, link: Link) -> bool:
    """Whether the layers' own parameters can do it: each layer by itself, on what it was called with."""
    producer, affine = setting.layers[link.producer], setting.trace.affine.get(link.producer)
    factors = torch.ones(output_channels(producer, affine))
    for channel in set(link.channels) - {-1}:
        factors[channel] = 2.0 ** (channel % 5 - 2)
    axis = setting.trace.features(producer)
    made = divided_outputs(producer, affine, factors)
    held = [
        _same(producer, made, visit.call, visit.call, lambda out: out * along(factors.to(out), axis, out))
        for visit in setting.trace.visits[link.producer]
    ]
    by = spread(link.channels, factors)
    for name in link.consumers:
        layer = setting.layers[name]
        made = multiplied_inputs(layer, by)
        calls = [visit.call for visit in setting.trace.visits[name]]
        held += [_same(layer, made, given, _divided(layer, given, by)) for given in calls]
    return all(held)


def _same(
    layer: Layer, made: dict[str, Tensor], before: Call, after: Call, back: Callable[[Tensor], Tensor] = lambda out: out
) -> bool:
    """Whether a layer with other parameters, called another way, gives what it gave."""
    wanted = _floats(forward(layer.module, before))
    with swapped(layer.module, made):
        given = _floats(forward(layer.module, after))
    return all(close(back(a), b) for a, b in zip(given, wanted))


def _divided(layer: Layer, given: Call, by: Tensor) -> Call:
    """A call with the layer's input divided channel by channel, wherever among the arguments it stands."""
    axis = layer.features()
    changed = {id(x): x / along(by.to(x), axis, x) for x in inputs_of(layer, *given)}
    made: Call = map_leaves(lambda leaf: changed.get(id(leaf), leaf), given)
    return made


def _floats(out: Any) -> list[Tensor]:
    return [leaf for _, leaf in flatten(out) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
