# SPDX-License-Identifier: Apache-2.0
"""Values of a graph that somebody watches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import onnx_ir as ir
from torch import Tensor

from fewbit.backends.graph.adding import values_of
from fewbit.backends.graph.kernel_axes import Axis, axes_of
from fewbit.backends.graph.layers import Layer
from fewbit.backends.graph.padding import without_padding
from fewbit.backends.graph.tapping import Dims
from fewbit.errors import UsageError, nearest
from fewbit.model.ops import CONV, CONV_TRANSPOSE
from fewbit.model.watch import PRODUCTS, TAPS, VALUES, WINDOWS, Watch, whole
from fewbit.model.windows import window_products


@dataclass(frozen=True)
class Sight:
    """A value of a graph that somebody watches.

    Args:
        value: its name.
        features: the axis that holds features; none where the whole counts as one.
        watch: who wants to know what.
        layer: the layer that reads it, for `taps` and `windows`.
    """

    value: str
    features: int | None
    watch: Watch
    layer: Layer | None = None

    @cached_property
    def wants_taps(self) -> bool:
        """Whether it is asked what a layer meets."""
        return bool(self.watch.needs & ({TAPS} if self.wants_products else {TAPS, WINDOWS}))

    @cached_property
    def wants_products(self) -> bool:
        """Whether it is asked for products of what a convolution meets, which the values themselves are needed for."""
        return PRODUCTS in self.watch.needs and self.axes is not None

    def shown(self, found: Mapping[str, Tensor], real: Tensor | None = None) -> dict[str, Tensor]:
        """What is shown of a value that `found` holds as it is: by feature, without padding, in products.

        Args:
            found: what is known, with the value itself.
            real: positions that are no padding, of `real_positions`; nothing is shown where there is none.
        """
        if VALUES not in found or self.features is None:
            return dict(found)
        value = found[VALUES]
        rows = value.movedim(self.features, -1)
        if real is not None and VALUES in self.watch.needs and rows.ndim == 3 and rows.shape[:2] == real.shape:
            return without_padding(found, rows, real, self.watch.needs, self.watch.sample)
        width = rows.shape[-1] if rows.ndim else 1
        more = {VALUES: rows.reshape(-1, width)} if VALUES in self.watch.needs else {}
        if self.wants_products:
            meets = [axis.meets(length) for axis, length in zip(self.axes or (), value.shape[2:])]
            more[PRODUCTS] = window_products(value, meets)
            more[WINDOWS] = whole(len(value) * prod(map(len, meets)), value.device)
        return {**{name: x for name, x in found.items() if name != VALUES}, **more}

    @cached_property
    def needs(self) -> frozenset[str]:
        """What the graph is asked."""
        return self.watch.needs | {VALUES} if self.wants_products else self.watch.needs

    @cached_property
    def axes(self) -> tuple[Axis, ...] | None:
        """How the layer's kernel reads the value; none for a layer without one."""
        return axes_of(self.layer) if self.layer is not None and self.layer.op in (CONV, CONV_TRANSPOSE) else None


def check_sights(sights: Iterable[Sight], graph: ir.Graph, shapes: Mapping[str, Dims]) -> None:
    """Refuse what cannot be watched.

    Args:
        sights: what is asked.
        graph: the model's main graph.
        shapes: of its float values.

    Raises:
        UsageError: a value that is not there, lies inside a branch or loop, or is of another kind than was asked for.
    """
    values = values_of(graph)
    for sight in sights:
        _check(sight, values, graph, shapes)


def _check(sight: Sight, values: Collection[str], graph: ir.Graph, shapes: Mapping[str, Dims]) -> None:
    name = sight.value
    if name not in values:
        inside = {value.name for part in graph.subgraphs() for node in part for value in node.outputs}
        if name in inside:
            raise UsageError(
                f"{name!r} is a value inside a branch or a loop, which cannot be watched",
                expected="a value of the main graph",
                try_="leave the layers that read it as they are",
            )
        raise UsageError(f"the model has no value {name!r}", expected=nearest(name, values)[:300])
    if name not in shapes:
        raise UsageError(f"{name!r} does not hold real numbers", expected="a float value")
    rank = len(shapes[name])
    if sight.features is not None and not -rank <= sight.features < max(1, rank):
        raise UsageError(f"{name!r} has {rank} axes, none is {sight.features}", expected="an axis of features")
    if sight.wants_taps and (sight.layer is None or sight.features is None):
        raise UsageError(
            f"taps of {name!r}, but no layer that reads it", expected="a layer, and the axis of its features"
        )


def grouped(sights: Sequence[Sight], shapes: Mapping[str, Dims]) -> dict[tuple[str, int | None], list[Sight]]:
    """Sights by value and axis; those of whole values with any that are by feature."""
    axes = {s.value: s.features % max(1, len(shapes[s.value])) for s in sights if s.features is not None}
    groups: dict[tuple[str, int | None], list[Sight]] = {}
    for sight in sights:
        rank = max(1, len(shapes[sight.value]))
        axis = axes.get(sight.value) if sight.features is None else sight.features % rank
        groups.setdefault((sight.value, axis), []).append(sight)
    return groups
