# SPDX-License-Identifier: Apache-2.0
"""Keys and values of a Hugging Face model's cache as points: found, watched, quantized."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from fewbit.model.ops import CACHE
from fewbit.model.points import Point, Role
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.kv_cache import CacheCodec, KeyValueCodecs, Watching, attach_cache, cache_layers, detach_cache
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams


def has_cache(model: nn.Module) -> bool:
    """Whether a model's forward takes a cache and its configuration says how to make one."""
    return "past_key_values" in inspect.signature(model.forward).parameters and hasattr(model, "config")


def cache_points(layers: Iterable[str]) -> list[Point]:
    """The keys and values of every attention that fills the cache, in its order."""
    return [Point(name, role, CACHE) for name in layers for role in (Role.key, Role.value)]


@contextmanager
def watched(model: nn.Module, watch: Mapping[Point, Callable[[Point, Tensor], None]]) -> Iterator[None]:
    """While it lasts, what enters the cache at a watched point is shown as `[batch, positions, heads, features]`."""
    before = dict(getattr(model, "fewbit_cache", {}))
    if not watch:
        yield
        return
    codecs = {}
    for index, name in cache_layers(model).items():
        shown = {point.role: (point, show) for point, show in watch.items() if point.layer == name}
        codecs[index] = KeyValueCodecs(*(_watching(shown.get(role)) for role in (Role.key, Role.value)))
    attach_cache(model, codecs)
    try:
        yield
    finally:
        detach_cache(model)
        if before:
            attach_cache(model, {int(index): pair for index, pair in before.items()})


def keep_as_codes(model: nn.Module, index: int, point: Point, how: QParams | Grid) -> None:
    """Quantize the keys or the values of one attention from now on, in place.

    Args:
        model: the model that makes the cache.
        index: the layer of the cache that this attention fills.
        point: its keys or its values.
        how: fixed scales, or a grid whose scales are found at run time.
    """
    codecs = {int(i): pair for i, pair in getattr(model, "fewbit_cache", {}).items()}
    pair = codecs.setdefault(index, KeyValueCodecs(None, None))
    fixed = how if isinstance(how, QParams) else None
    codec = CacheCodec(ActivationQuantizer(how.grid if isinstance(how, QParams) else how, -1, fixed))
    setattr(pair, point.role.value, codec)
    attach_cache(model, codecs)


def _watching(entry: tuple[Point, Callable[[Point, Tensor], None]] | None) -> Watching | None:
    if entry is None:
        return None
    point, show = entry
    return Watching(lambda states: show(point, states.transpose(1, 2)))
