# SPDX-License-Identifier: Apache-2.0
"""What a look at a module tree tells, looked up once for all layers and not once for each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from torch import nn

from fewbit.backends.eager.caches import cache_points, has_cache
from fewbit.backends.eager.catalogue import Catalogue, catalogue, points
from fewbit.backends.eager.naming import named_layers
from fewbit.backends.eager.slots import Slot, float_shape
from fewbit.backends.eager.ties import Ties, ties
from fewbit.model.points import Point
from fewbit.modules.fast_paths import fast_paths_around
from fewbit.modules.kv_cache import cache_layers


class Survey:
    """A model as it stands.

    Putting other values, codes or quantizers into a model changes nothing in here: layers, points, names and ties stay
    what they are. A run may (a lazy module gets its weights), and a probe does: then a new survey is due.

    Args:
        model: the module tree.
        seen: what runs showed of parameters in modules of unknown class, by layer and parameter.
    """

    def __init__(self, model: nn.Module, seen: Mapping[tuple[str, str], Slot | str]):
        self._model = model
        self._seen = seen

    @cached_property
    def found(self) -> Catalogue:
        """The catalogue of layers."""
        return catalogue(self._model, self._seen)

    @cached_property
    def has_unknown_stacks(self) -> bool:
        """Whether there may be experts in one tensor that only a run can explain."""
        layers = self.found.layers
        return any(len(float_shape(layers[layer].module, tensor)[0]) > 2 for layer, tensor in self.found.unknown)

    @cached_property
    def points(self) -> list[Point]:
        """Every point, in model order."""
        return [*points(self.found, self.ties), *cache_points(self.cache.values())]

    @cached_property
    def named(self) -> dict[str, nn.Module]:
        """Every module by each of its names; the model itself only where it is a layer."""
        return {name: module for name, module in named_layers(self._model) if name or "" in self.found.layers}

    @cached_property
    def ties(self) -> Ties:
        """Who shares which tensor."""
        return ties(self._model)

    @cached_property
    def cache(self) -> dict[int, str]:
        """The attention that fills each layer of the key-value cache; empty for a model without one."""
        return cache_layers(self._model) if has_cache(self._model) else {}

    @cached_property
    def fast_paths(self) -> dict[int, list[nn.Module]]:
        """By the `id` of a module, the modules around it with a short cut that passes it by."""
        return fast_paths_around(self._model)
