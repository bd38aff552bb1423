# SPDX-License-Identifier: Apache-2.0
"""What the layers of a graph read, over the data: means, mean squares, and how channels vary together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewbit.backends.graph.view import GraphView
from fewbit.model.points import Role
from fewbit.model.watch import COUNT, SQUARE, SUM, TAPS, VALUES, WINDOWS, Watch, stride

Array = NDArray[np.float64]
_WIDE = 4096  # features; above, how they vary together is not kept
_ROWS = 1024  # positions of an item that tell it


@dataclass
class Seen:
    """What one layer read.

    Args:
        count: positions.
        total: sums by feature.
        square: sums of squares by feature.
        windows: positions of the layer's output.
        taps: sums of what each element of its kernel met, `[features, kernel…]`.
        rows: positions of the sample that `moments` and `means` are of.
        means: sums by feature, over the sample.
        moments: sums of products of features, over the sample; none where there are too many.
    """

    count: int = 0
    total: Array | float = 0.0
    square: Array | float = 0.0
    windows: int = 0
    taps: Array | float = 0.0
    rows: int = 0
    means: Array | float = 0.0
    moments: Array | None = None

    def variance(self) -> Array:
        """How each feature varies."""
        return np.maximum(np.asarray(self.square) / self.count - np.square(np.asarray(self.total) / self.count), 0)

    def covariance(self) -> Array:
        """How features vary together."""
        assert self.moments is not None
        mean = np.asarray(self.means) / self.rows
        found: Array = self.moments / self.rows - np.outer(mean, mean)
        return found


def look(view: GraphView, items: Iterable[Mapping[str, Any]], layers: Iterable[str]) -> dict[str, Seen]:
    """Run a model over items and gather what layers read.

    Args:
        view: of the model, probed.
        items: arrays by input.
        layers: by name.
    """
    wanted, seen = set(layers), {}
    watches = {}
    for point in view.points(lambda point: point.role is Role.input and point.layer in wanted):
        seen[point.layer] = Seen()
        shape = view.layer(point).weight_value.shape
        wide = shape is not None and shape.numpy()[view.layer(point).axes[1]] * point.groups > _WIDE
        needs = frozenset({COUNT, SUM, SQUARE, TAPS, WINDOWS} | (set() if wide else {VALUES}))
        watches[point] = Watch(needs, _adder(seen[point.layer]))
    view.run(items, watches)
    return {name: one for name, one in seen.items() if one.count}


def _adder(seen: Seen) -> Callable[[Mapping[str, Tensor], int], None]:
    def take(shown: Mapping[str, Tensor], index: int) -> None:
        seen.count += int(shown[COUNT])
        seen.windows += int(shown[WINDOWS])
        seen.total = seen.total + shown[SUM].double().numpy()
        seen.square = seen.square + shown[SQUARE].double().numpy()
        seen.taps = seen.taps + shown[TAPS].double().numpy()
        if VALUES in shown:
            values = shown[VALUES][:: stride(len(shown[VALUES]), _ROWS)].to(torch.float64).numpy()
            seen.rows += len(values)
            seen.means = seen.means + values.sum(0)
            seen.moments = (0.0 if seen.moments is None else seen.moments) + values.T @ values

    return take
