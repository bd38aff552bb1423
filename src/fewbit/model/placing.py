# SPDX-License-Identifier: Apache-2.0
"""Placing: views of graphs that choose, for a runtime, what computes in integers.

A module quantizes the input of each layer. In a graph the activations between layers can stay codes all along, and what
that is worth depends on the runtime: which operators it has in integers, what they cost, what lies between them. So
such a view, which has `place` in `can`, offers the values that may become codes (`sites`), measures what rounding each
does to the model's answers (`harm`), and chooses (`place`) before anything is changed (`settle`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fewbit.model.points import Point
from fewbit.model.view import ModelView
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor


@dataclass(frozen=True)
class Rounding:
    """What rounding one activation does.

    Args:
        noise: the energy of the error in the activation, over its own.
        harm: the energy of the error in the model's answers that comes of it, over theirs.
    """

    noise: float
    harm: float


@dataclass(frozen=True)
class Placed:
    """What computes in integers.

    Args:
        target: the runtime.
        layers: layers whose weight becomes codes, by name.
        sites: activations that become codes.
        integer: how many nodes of each operator compute in integers.
        kept: nodes that could and do not, by name, each with the reason.
        saved: by layer in integers, the share of the float model's time that this saves.
        time_before: what the float model costs, in a target's own units.
        time_after: what this costs.
        harm: the share of error in the answers that is expected.
        weight_harm: the share that rounding its weight alone brings, by layer, in integers or not, where it is known.
        own: the backend's own description.
    """

    target: str | None
    layers: frozenset[str]
    sites: frozenset[Point]
    integer: Mapping[str, int]
    kept: Mapping[str, str]
    saved: Mapping[str, float]
    time_before: float
    time_after: float
    harm: float
    weight_harm: Mapping[str, float]
    own: Any = None


class PlacingView(ModelView, Protocol):
    """The verbs of a view with `place` in `can`: of a graph, kept in a file of its own."""

    def edges(self) -> list[tuple[str, str]]:
        """Who gives to whom, as pairs of the names in `layers`."""

    def save(self, path: Path, *, overwrite: bool = False) -> Path:
        """Write the model to a file, whole or not at all."""

    def aim(self, target: str | None, accuracy_level: int = 0) -> None:
        """Say for which runtime the model will be written.

        Args:
            target: its name; the backend's first choice if not said.
            accuracy_level: how products with narrow weights may round activations, where the runtime has such levels.

        Raises:
            UsageError: a target that the backend does not know.
        """

    def leave(self, nodes: Collection[str]) -> None:
        """Say which nodes stay in float, before `sites`.

        Units that would be computed as one with such a node, as a layer with the function that clips it, are then made
        without it.

        Args:
            nodes: by name.
        """

    def hidden(self) -> dict[str, str]:
        """Layers whose activations cannot be watched, each with the reason."""

    def limits(self, target: str | None) -> dict[Point, tuple[float, float]]:
        """Of activations whose readers do not tell apart what lies beyond two ends: the ends."""

    def sites(self, target: str | None) -> list[Point]:
        """Activations that may become codes, in order; after `probe`."""

    def harm(
        self,
        target: str | None,
        grids: Mapping[Point, QParams],
        items: Sequence[Any],
        noise: Mapping[Point, float] | None = None,
        allowed: float = 0.0,
    ) -> dict[Point, float]:
        """The energy of the error in the model's answers, over theirs, that rounding each activation brings.

        Args:
            target: the runtime.
            grids: scale and zero point of each.
            items: what is run.
            noise: of each, the energy of rounding over its own; if given, those that do little are measured together.
            allowed: the error of all together that would be worth while.
        """

    def place(
        self,
        target: str | None,
        *,
        rounding: Mapping[Point, Rounding],
        weights: Mapping[str, float],
        price: float,
        forbidden: Mapping[str, str],
    ) -> Placed:
        """What computes in integers.

        Args:
            target: the runtime.
            rounding: of the activations.
            weights: the noise that rounding its weight puts on the output of each layer, by its name.
            price: the error that is worth the time of the whole float model; infinite if only time counts.
            forbidden: nodes that stay in float, by name, each with the reason.
        """

    def settle(
        self, placed: Placed, activations: Mapping[Point, tuple[float, float]], weights: Mapping[str, QTensor]
    ) -> None:
        """Make it so.

        Args:
            placed: the choice.
            activations: the range of each activation, low and high.
            weights: the codes of each layer's weight, by the layer's name.
        """

    def store(self, point: Point, codes: QTensor, target: str | None) -> None:
        """Keep the weight of a layer that computes in float as codes in the file; in memory it is float again."""

    def executed(self) -> dict[str, Any]:
        """What the runtime really runs of the model: operators in integers and in float, as plain data."""
