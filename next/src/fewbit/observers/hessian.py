# SPDX-License-Identifier: Apache-2.0
"""The uncentered covariance of features: what GPTQ calls the Hessian of a layer's squared output error."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.numerics.ops import Array, cast, like, on_cpu
from fewbit.observers._base import Observer, State

_CPU_PIECE, _GPU_PIECE = 1 << 18, 1 << 24
"""Elements that are widened to float64 at a time."""


@dataclass(kw_only=True, eq=False)
class HessianObserver(Observer):
    """E[x xᵀ] of features x, whose rows are `[features, tokens]`, summed in float64; it chooses no range.

    >>> import numpy as np
    >>> observer = HessianObserver()
    >>> observer.update(np.array([[1.0, 2.0], [0.0, 3.0]], np.float32))
    >>> observer.mean_product.tolist()
    [[2.5, 3.0], [3.0, 4.5]]
    """

    name = "hessian"
    state_names = ("products", "count")

    def measure(self, rows: Array) -> dict[str, Array]:
        features, tokens = rows.shape
        step = max((_CPU_PIECE if on_cpu(rows) else _GPU_PIECE) // features, 1)
        products = None
        for start in range(0, tokens, step):
            piece = cast(rows[:, start : start + step], "float64")
            products = piece @ piece.T if products is None else products + piece @ piece.T
        return {"products": products, "count": like(tokens, rows, "int64")}

    def combine(self, first: State, second: State) -> dict[str, Array]:
        return {name: first[name] + second[name] for name in self.state_names}

    @property
    def mean_product(self) -> Array:
        """E[x xᵀ], float64 `[features, features]`."""
        return self.observed["products"] / int(self.observed["count"])

    @property
    def mean_square(self) -> Array:
        """E[x²] of each feature, float32."""
        return cast(self.mean_product.diagonal(), "float32")


OBSERVER = HessianObserver
