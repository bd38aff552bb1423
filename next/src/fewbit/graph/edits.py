# SPDX-License-Identifier: Apache-2.0
"""Edits: changes of a model as plain data. A backend applies a list of them in order and decides nothing.

Names are those of the graph that the edits were made from; an edit that names something unknown is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbit.numerics.ops import Array, cast, like

if TYPE_CHECKING:
    from fewbit.numerics.grid import QuantizationGrid
    from fewbit.numerics.qtensor import QTensor

Consumers = tuple[tuple[str, int], ...]
"""Inputs of nodes: (node, index of the input)."""


@dataclass(frozen=True)
class Edit:
    """A change of a model."""


@dataclass(frozen=True, eq=False)
class SetConstant(Edit):
    """Give a constant other values, of the same shape; the backend casts them to the stored dtype."""

    constant: str
    value: Array = field(repr=False)


@dataclass(frozen=True, eq=False)
class ScaleChannels(Edit):
    """Multiply channels of a constant. It holds the factors only, so that models of any size have small edits.

    Args:
        constant: its name.
        factors: broadcast to `view`.
        view: a shape that the constant is reshaped to: `[groups, out / groups, in / groups, …]` of a grouped
            convolution, for example; mostly its own shape.
        offset: the model uses constant + offset, and that sum is multiplied.

    >>> edit = ScaleChannels("norm.weight", np.array([2.0, 1.0]), (2,), offset=1.0)
    >>> edit.scaled(np.array([0.5, 0.5], np.float32)).tolist()
    [2.0, 0.5]
    """

    constant: str
    factors: np.ndarray = field(repr=False)
    view: tuple[int, ...]
    offset: float = 0.0

    def scaled(self, values: Array) -> Array:
        """The constant after the edit, in its own library and dtype; computed in at least float32."""
        wide = values if str(values.dtype).removeprefix("torch.") == "float64" else cast(values, "float32")
        factors = like(self.factors, wide, str(wide.dtype).removeprefix("torch."))
        product = (wide.reshape(self.view) + self.offset) * factors - self.offset
        return cast(product.reshape(values.shape), values.dtype)


@dataclass(frozen=True, eq=False)
class EncodeWeight(Edit):
    """Store a weight as quantized values with scales; the backend knows how its format spells that.

    Args:
        constant: its name.
        tensor: of the stored shape.
    """

    constant: str
    tensor: QTensor = field(repr=False)


@dataclass(frozen=True, eq=False)
class InsertQDQ(Edit):
    """Quantize and dequantize a value with fixed scales.

    Args:
        value: its name.
        grid: the values it may take.
        scale: one, or one per channel.
        zero_point: shaped like `scale`; `None` if the grid has none.
        axis: of the channels; `None` for one scale.
        consumers: who reads the quantized value; `None` for all of them.
    """

    value: str
    grid: QuantizationGrid
    scale: Array = field(repr=False)
    zero_point: Array | None = field(default=None, repr=False)
    axis: int | None = None
    consumers: Consumers | None = None


@dataclass(frozen=True)
class DynamicQuantize(Edit):
    """Quantize a value with scales computed at run time, once for all of the consumers.

    Args:
        value: its name.
        grid: type and granularity.
        consumers: who reads the quantized value; `None` for all of them.
    """

    value: str
    grid: QuantizationGrid
    consumers: Consumers | None = None


@dataclass(frozen=True)
class KeepFloat(Edit):
    """Keep the runtime from quantizing a node that the plan leaves in float."""

    node: str


@dataclass(frozen=True)
class StoreAs(Edit):
    """Store a constant in another float type; the model computes in the type it had."""

    constant: str
    dtype: str


@dataclass(frozen=True, eq=False)
class AddBias(Edit):
    """Add to the bias of a layer, or give it one.

    Args:
        node: a convolution or product with a weight.
        bias: one number per output channel.
    """

    node: str
    bias: Array = field(repr=False)


@dataclass(frozen=True, eq=False)
class RemoveChannels(Edit):
    """Remove channels. The analysis computes all that changes; the backend only writes it.

    Args:
        keep: for each (constant, axis) the indices that stay.
        shapes: the new example shape of each value that becomes smaller.
        attrs: the attributes that change, by node.
    """

    keep: Mapping[tuple[str, int], np.ndarray] = field(repr=False)
    shapes: Mapping[str, tuple[int, ...]] = field(repr=False)
    attrs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplaceNode(Edit):
    """Replace a node by another operator with the same outputs.

    Args:
        node: its name.
        op: a neutral operator; `identity` passes the first input on.
        inputs: names of values or constants.
        attrs: of the new operator.
    """

    node: str
    op: str
    inputs: tuple[str | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
