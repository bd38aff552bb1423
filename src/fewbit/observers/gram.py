# SPDX-License-Identifier: Apache-2.0
"""The whole second moment: sums of products of every two rows; no range.

Of a layer's inputs it says what errors in several weights cost together; algorithms that round weights against one
another ask for it by this name. It has the square of the number of features as many entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewbit.observers._base import Observer, State

# Elements of a piece, which is made float64: two of them lie in the cache of a processor beside the sums.
_HOST, _DEVICE = 1 << 18, 1 << 24


@dataclass(kw_only=True, eq=False)
class GramObserver(Observer):
    """Sums in float64: products of float32 are exact in it, so the order of the batches shows in the last bits only.

    >>> observer = GramObserver()
    >>> observer.observe(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    >>> observer.mean_product
    tensor([[2.5000, 3.0000],
            [3.0000, 4.5000]], dtype=torch.float64)
    """

    name = "gram"
    keeps = ("gram", "count")

    def measure(self, rows: Tensor) -> dict[str, Tensor]:
        gram = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
        size = _HOST if rows.device.type == "cpu" else _DEVICE
        for piece in torch.split(rows, max(1, size // len(rows)), dim=1):
            wide = piece.double()
            gram.addmm_(wide, wide.T)
        return {"gram": gram, "count": torch.full((), rows.shape[1], dtype=torch.int64, device=rows.device)}

    def combine(self, first: State, second: State) -> dict[str, Tensor]:
        return {name: first[name] + second[name] for name in self.keeps}

    @property
    def mean_product(self) -> Tensor:
        """E[x xᵀ]: float64 `[R, R]`."""
        return self.seen["gram"] / self.seen["count"]

    @property
    def mean_square(self) -> Tensor:
        """E[x²] of each row: float32 `[R]`."""
        return self.mean_product.diagonal().float()


OBSERVER = GramObserver
