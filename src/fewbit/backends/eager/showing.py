# SPDX-License-Identifier: Apache-2.0
"""One activation of one item, and what was asked about it so far: layers that read the same tensor share the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fewbit.backends.eager.catalogue import Layer
from fewbit.backends.eager.padding import Positions
from fewbit.backends.eager.windows import computes_as_torch, products_of, taps_of
from fewbit.model.ops import CONV, CONV_TRANSPOSE
from fewbit.model.watch import COUNT, PRODUCTS, SAMPLE, SUM, TAPS, WINDOWS, reductions


@dataclass(frozen=True)
class Reader:
    """A layer that reads an activation.

    Args:
        layer: the one.
        output_size: what a transposed convolution was told its output's size is.
    """

    layer: Layer
    output_size: Sequence[int] | None = None

    def meets(self, x: Tensor, needs: frozenset[str]) -> dict[str, Tensor]:
        """What the kernel of a convolution meets; nothing where only its own forward knows."""
        module = self.layer.module
        if not computes_as_torch(module):
            return {}
        found = taps_of(module, x, self.output_size) if needs - {PRODUCTS} else {}
        return found | (products_of(module, x, self.output_size) if PRODUCTS in needs else {})


class Shown:
    """An activation as it stands; it is not looked at again once it changed.

    Args:
        x: the activation.
        features: its feature axis.
        positions: takes the padding of this item out.
    """

    def __init__(self, x: Tensor, features: int, positions: Positions):
        self._x, self._key = x, (features, x._version)
        self._kept, self._features, self.matched = x, features, True
        if positions.has_padding:
            self._kept, self.matched = positions.select(x, features)
            self._features = -1
        self._found: dict[str, Tensor] = {}
        self._sample = 0

    def shows(self, x: Tensor, features: int) -> bool:
        """Whether this is that activation, unchanged."""
        return self._x is x and self._key == (features, x._version)

    @property
    def empty(self) -> bool:
        """Whether nothing but padding is there."""
        return not self._kept.numel()

    def tell(self, needs: frozenset[str], sample: int, reader: Reader | None = None) -> dict[str, Tensor]:
        """Everything that was asked.

        Args:
            needs: what.
            sample: how many values a sample is to hold.
            reader: the layer that reads it; without one `taps` and `products` are not known.
        """
        own = needs & {TAPS, WINDOWS, PRODUCTS}
        if reader is None or not own:
            return self._reduced(needs - own, sample)
        if reader.layer.op in (CONV, CONV_TRANSPOSE):
            return self._reduced(needs - own, sample) | reader.meets(self._x, own)
        found = self._reduced(needs - own | {SUM, COUNT}, sample)
        return found | {TAPS: found[SUM], WINDOWS: found[COUNT]}

    def _reduced(self, needs: frozenset[str], sample: int) -> dict[str, Tensor]:
        if SAMPLE in needs and self._sample < sample:
            self._found.pop(SAMPLE, None)
            self._sample = sample
        new = needs - self._found.keys()
        if new:
            self._found |= reductions(self._kept, new, self._sample, self._features)
        return {name: tensor for name, tensor in self._found.items() if name in needs}
