# SPDX-License-Identifier: Apache-2.0
"""The view: the few verbs that algorithms and the engine need of a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from fewbit.model.points import Point
from fewbit.model.structure import Structure
from fewbit.model.watch import Watch
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor
from fewbit.record import Record
from fewbit.schemes.config import Config

Item = Any
"""What `Dataset.inputs` makes for a model of its kind: `(args, kwargs)` for modules, a dict of arrays for graphs."""


class ModelView(Protocol):
    """A backend's face of one loaded model.

    Attributes:
        can: the optional verbs this backend has, of `structure`, `rescale`, `shift`; `place` for those of
            `fewbit.model.placing`, `walk` for that of `fewbit.model.walking`, `rotate` for those of
            `fewbit.model.streaming`, `gradients` for those of `fewbit.model.sensing`. Verbs that no backend has yet
            (cutting a part out of a model) will be optional in the same way.
    """

    can: frozenset[str]

    @property
    def notes(self) -> list[tuple[str, str]]:
        """What runs showed that is worth a line in the record, as `(where, what)`, each once."""

    def points(self, match: Callable[[Point], bool] | None = None) -> list[Point]:
        """Every point that matches, in model order; the same tensor appears once for each layer that uses it."""

    def skipped(self) -> list[tuple[str, str]]:
        """Layers with matrices that cannot be quantized, each with the reason; norms and the like are not listed."""

    def quantized(self) -> list[str]:
        """Layers that are quantized already."""

    def probe(self, item: Item) -> None:
        """Learn from one item what the model's text does not say, such as how experts kept in one tensor are used.

        `points` and `skipped` know it from then on; call it before planning when there is data.
        """

    def size(self) -> int:
        """Bytes of all parameters, shared ones once."""

    def layers(self) -> dict[str, tuple[str, ...]]:
        """Every layer a configuration can name, with points or without, by each of its names, and its `types`."""

    def types(self, layer: str) -> tuple[str, ...]:
        """The names the type of one of `layers` answers to, most special first: `("MyLinear", "Linear", "Module")`."""

    def read(self, point: Point) -> Tensor:
        """A weight or bias in fewbit's layout; not to be changed."""

    def write(self, point: Point, tensor: Tensor) -> None:
        """Replace a weight or bias, for every layer that uses it."""

    def run(self, items: Iterable[Item], watch: Mapping[Point, Watch]) -> int:
        """Run the model over items, show what is asked about each watched activation, return the number of items."""

    def answers(self, items: Iterable[Item]) -> Iterator[list[Tensor]]:
        """What the model answers to each item: its outputs, in order."""

    def structure(self, item: Item) -> Structure:
        """What one item shows of who feeds whom."""

    def rescale(self, producer: str, consumers: Sequence[str], channels: Sequence[int], factors: Tensor) -> None:
        """Divide the producer's output channels by `factors` and multiply the consumers' inputs by them.

        Args:
            producer: of a link that `structure` found; so are the consumers and channels.
            consumers: all of the link's.
            channels: the link's.
            factors: one for each output channel of the producer, up to the last one linked; 1 where there is no link.

        Raises:
            UsageError: a factor that is not a finite number above zero, or a layer that is quantized already.
        """

    def shift(self, layer: str, amount: Tensor) -> None:
        """Add an amount `[out]` to the output channels of a layer: to its bias, which is made where there is none."""

    def quantize(self, point: Point, how: QTensor | QParams | Grid) -> None:
        """Weights: keep these codes, for every layer that uses the tensor. Activations: with these fixed scales, or on
        this grid with scales found at run time."""

    def signature(self) -> Any:
        """What says which inputs the model takes, as `Dataset.inputs` reads it."""

    def copy(self) -> ModelView:
        """A view of a copy: changing it leaves this one's model alone. Large tensors share memory until changed."""

    def sign(self, config: Config, record: Record) -> None:
        """Leave with the model what was done to it."""

    def native(self) -> Any:
        """The framework's own model object."""
