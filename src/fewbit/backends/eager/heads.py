# SPDX-License-Identifier: Apache-2.0
"""Heads: values that attention mixes over positions, each head in its own way, found by running.

Of the links of a model, those through attention are told by what comes through: if the values of all channels are the
same at each position, so is what attention makes of all channels of a head, and only of these. Then noise is put in the
place of the values, and the same noise with every head turned: what is read has to be turned likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.calling import call
from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.guest import lent_randomness
from fewbit.backends.eager.norms import mirror
from fewbit.backends.eager.running import inputs_of
from fewbit.backends.eager.trials import Setting, close
from fewbit.model.ops import LINEAR
from fewbit.model.streaming import Heads, Turn
from fewbit.model.structure import Link


def find_heads(setting: Setting, links: Sequence[Link]) -> tuple[Heads, ...]:
    """The links that go through attention, with the size of their heads.

    Args:
        setting: the model, traced on an item.
        links: of the model.
    """
    layers = setting.layers
    likely = [x for x in links if layers[x.producer].op is LINEAR and -1 not in x.channels and _is_flat(setting, x)]
    alike = _run(setting, likely, lambda shape: _noise((*shape[:-1], 1)).expand(shape))
    sizes = {link: _size(alike.get(link.producer), link) for link in likely}
    sized = [Heads(link, _common(sizes, link)) for link, size in sizes.items() if size > 1]
    plain = _run(setting, [each.link for each in sized], _noise)
    turns = {each.link.producer: mirror(each.size) for each in sized}
    turned = _run(
        setting, [e.link for e in sized], _noise, {e.link.producer: (e, turns[e.link.producer]) for e in sized}
    )
    found = []
    for each in sized:
        name = each.link.producer
        if name in plain and name in turned and close(turned[name], by_heads(plain[name], each.size, turns[name])):
            found.append(each)
    return tuple(found)


def by_heads(x: Tensor, size: int, turn: Turn) -> Tensor:
    """Turn every head along the last axis."""
    return turn(x.reshape(*x.shape[:-1], -1, size)).reshape(x.shape)


def head_starts(heads: Heads) -> list[int]:
    """Where the heads begin among the producer's channels; each once, however many read it."""
    return sorted(set(heads.link.channels[:: heads.size]))


def turned_outputs(x: Tensor, heads: Heads, turn: Turn) -> Tensor:
    """Turn the heads of a producer's output along the last axis; other channels stay as they are."""
    made = x.clone()
    for start in head_starts(heads):
        made[..., start : start + heads.size] = turn(x[..., start : start + heads.size])
    return made


def _is_flat(setting: Setting, link: Link) -> bool:
    """Whether it was called once, and so were its readers: what comes through belongs to what went in."""
    return all(len(setting.trace.visits[name]) == 1 for name in (link.producer, *link.consumers))


def _run(
    setting: Setting,
    links: Sequence[Link],
    make: Callable[[tuple[int, ...]], Tensor],
    turned: dict[str, tuple[Heads, Turn]] | None = None,
) -> dict[str, Tensor]:
    """What the readers of links read, by producer, with other values in the place of what the producers give.

    Every layer is handed what it had in the first run, so that no link disturbs another.
    """
    if not links:
        return {}
    seen: dict[str, Tensor] = {}
    first = {link.consumers[0]: link.producer for link in links}
    of = {link.producer: link for link in links}

    def before(layer: Layer) -> Callable[..., Any]:
        visits = iter(setting.trace.visits[layer.name])

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if layer.name in first:
                seen[first[layer.name]] = inputs_of(layer, args, kwargs)[0].detach().clone()
            visit = next(visits, None)
            return None if visit is None else visit.call

        return hook

    def after(name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            channels = torch.tensor(sorted(set(of[name].channels)), device=out.device)
            values = out.clone()
            values[..., channels] = make((*out.shape[:-1], len(channels))).to(out)
            if turned is not None:
                heads, turn = turned[name]
                values = turned_outputs(values, heads, turn)
            return values

        return hook

    handles: list[Any] = []
    for name in setting.trace.visits:
        layer = setting.layers[name]
        handles.append(layer.module.register_forward_pre_hook(before(layer), with_kwargs=True))
        if name in of:
            handles.append(layer.module.register_forward_hook(after(name)))
    try:
        with lent_randomness(setting.model):
            call(setting.model, setting.item)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _size(x: Tensor | None, link: Link) -> int:
    """The size of heads, from columns that are the same; 1 where there are none."""
    if x is None or x.shape[-1] != len(link.channels):
        return 1
    rows = x.reshape(-1, x.shape[-1]).float()
    given = _noise((*x.shape[:-1], 1)).reshape(-1, 1).to(rows)
    if close(rows, given.expand_as(rows)) or not bool(rows.any()):  # nothing was mixed: one position, or no attention
        return 1
    tolerance = 2.0**-6 if x.element_size() < 4 else 1e-4
    off = (rows[:, 1:] - rows[:, :-1]).abs().amax(0) > tolerance * rows.abs().amax()
    edges = [0, *(off.nonzero().flatten() + 1).tolist(), rows.shape[1]]
    size = gcd(*(b - a for a, b in pairwise(edges)))
    starts = link.channels[::size]
    whole = tuple(start + place for start in starts for place in range(size)) == tuple(link.channels)
    apart = all((start - min(starts)) % size == 0 for start in starts)
    return size if whole and apart else 1


def _common(sizes: Mapping[Link, int], link: Link) -> int:
    """The size of heads in all attentions as wide: in one of them two heads may look the same way for once."""
    return gcd(*(size for other, size in sizes.items() if size > 1 and len(other.channels) == len(link.channels)))


def _noise(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 0.5
