# SPDX-License-Identifier: Apache-2.0
"""The view: the few verbs that algorithms and the engine need of a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fewbit.model.points import Point
from fewbit.model.structure import Structure
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor

# Called with the values of a point as [positions, features], padding taken out, and the index of the item they came from.
Watcher = Callable[[Tensor, int], None]


class ModelView(Protocol):
    """A backend's face of one loaded model. `can` names the optional verbs a backend has."""

    can: frozenset[str]

    def points(self, match: Callable[[Point], bool] | None = None) -> list[Point]:
        """Every point that matches, in model order; the same tensor appears once for each layer that uses it."""

    def types(self, layer: str) -> tuple[str, ...]:
        """The names a layer's type answers to, most special first: `("MyLinear", "Linear", "Module")`."""

    def read(self, point: Point) -> Tensor:
        """A weight or bias in fewbit's layout; not to be changed."""

    def write(self, point: Point, tensor: Tensor) -> None:
        """Replace a weight or bias."""

    def run(self, items: Iterable[tuple[tuple[Any, ...], dict[str, Any]]], watch: Mapping[Point, Watcher]) -> int:
        """Run the model over items `(args, kwargs)`, hand each watched activation over, return the number of items."""

    def structure(self, item: tuple[tuple[Any, ...], dict[str, Any]]) -> Structure:
        """What one item shows of who feeds whom."""

    def rescale(self, producer: str, consumers: Sequence[str], channels: Sequence[int], factors: Tensor) -> None:
        """Divide the producer's output channels by `factors` and multiply the consumers' inputs by them."""

    def quantize(self, point: Point, how: QTensor | QParams | Grid) -> None:
        """Weights: keep these codes. Activations: with these fixed scales, or on this grid with scales found at run time."""

    def prune(self, point: Point, mask: Tensor) -> None:
        """Set what the mask does not keep to zero, for good."""

    def cut(self, start: str, end: str) -> ModelView:
        """The part of the model from one layer to another."""

    def copy(self) -> ModelView:
        """A view of a copy: changing it leaves this one's model alone. Tensors that are not changed are shared."""

    def native(self) -> Any:
        """The framework's own model object."""
