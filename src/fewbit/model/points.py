# SPDX-License-Identifier: Apache-2.0
"""Points: the places in a model that can be observed or changed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fewbit.model.ops import Op


class Role(Enum):
    """What lies at a point."""

    weight = "weight"
    bias = "bias"
    input = "input"
    output = "output"
    key = "key"
    value = "value"


@dataclass(frozen=True)
class Point:
    """One place in a model.

    Weights are always seen in one layout, `[stack…, out, in, kernel…]`, whatever the framework's own; `read` and
    `write` translate. So a scheme means the same for a Linear, a transposed convolution or GPT-2's `Conv1D`.

    Args:
        layer: the layer's name in the model.
        role: what lies there.
        op: the kind of layer.
        tensor: the name of the parameter within the layer; empty for activations.
        shape: of a weight or bias in fewbit's layout; empty where only a run can tell.
        dtype: the tensor's dtype by name, such as `float32`.
        stack: leading axes that number independent weights (experts).
        groups: of a grouped convolution: `out` block i contracts with block i of the input features.
        users: every `layer.tensor` that shares this very tensor, itself included, in model order.
        feeds: of an input, the weights of its layer that it is multiplied with.
    """

    layer: str
    role: Role
    op: Op
    tensor: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    stack: int = 0
    groups: int = 1
    users: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The full name: `layer.tensor`, or `layer:role` for an activation."""
        return f"{self.layer}.{self.tensor}".lstrip(".") if self.tensor else f"{self.layer}:{self.role.value}"

    @property
    def elements(self) -> int:
        """Number of elements of a weight."""
        count = 1
        for side in self.shape:
            count *= side
        return count if self.shape else 0
