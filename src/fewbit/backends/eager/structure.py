# SPDX-License-Identifier: Apache-2.0
"""The structure of a model, from one item."""

from __future__ import annotations

from torch import nn

from fewbit.backends.eager.affine import Affine
from fewbit.backends.eager.calling import Item, on_device, small
from fewbit.backends.eager.catalogue import Catalogue, Layer
from fewbit.backends.eager.guest import guest
from fewbit.backends.eager.linking import find_links
from fewbit.backends.eager.padding import masks_of
from fewbit.backends.eager.ties import sharing
from fewbit.backends.eager.tracing import Trace, steps, trace
from fewbit.backends.eager.trials import Setting
from fewbit.errors import DataError
from fewbit.model.structure import Structure


def discover(model: nn.Module, found: Catalogue, item: Item) -> tuple[Structure, dict[str, Affine]]:
    """What one item shows of a model, and how its norms scale their output.

    Args:
        model: the model.
        found: its catalogue.
        item: what it is called with.
    """
    layers = steps(found)
    with guest(model):
        used, seen = traced(model, layers, on_device(model, item))
        links = find_links(Setting(model, layers, used, seen), sharing(model))
    order = tuple(seen.visits)
    idle = tuple(name for name in layers if name not in seen.visits)
    return Structure(order, _shared_inputs(layers, seen), tuple(links), idle), seen.affine


def traced(model: nn.Module, layers: dict[str, Layer], item: Item, *, every: bool = False) -> tuple[Item, Trace]:
    """The trace of a small part of an item, or of the whole if the model does not take the part; see `trace`."""
    masks = masks_of(model, item)
    part = small(item, masks[0] if masks else None)
    try:
        return part, trace(model, layers, part, every=every)
    except DataError:
        return item, trace(model, layers, item, every=every)


def _shared_inputs(layers: dict[str, Layer], seen: Trace) -> tuple[tuple[str, ...], ...]:
    """Layers with weights that read the same tensor each time they ran."""
    groups: dict[tuple[tuple[int, ...], ...], list[str]] = {}
    for name, visits in seen.visits.items():
        if any(slot.fed for slot in layers[name].slots) and all(visit.single for visit in visits):
            groups.setdefault(tuple(visit.identity for visit in visits), []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)
