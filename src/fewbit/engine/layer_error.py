# SPDX-License-Identifier: Apache-2.0
"""One layer in two models: what is off in what it reads and gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.data.tree import flatten, map_leaves
from fewbit.modules.quantized import Quantized


@dataclass
class Share:
    """An energy, and how much of it is off.

    >>> found = Share()
    >>> found.add(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0]))
    >>> found.value
    0.04
    """

    off: float = 0.0
    energy: float = 0.0

    def add(self, wanted: Tensor, found: Tensor) -> None:
        """Take one more tensor in."""
        a, b = wanted.float(), found.to(wanted.device).float()
        self.off += float((b - a).square().sum(dtype=torch.float64))
        self.energy += float(a.square().sum(dtype=torch.float64))

    @property
    def value(self) -> float | None:
        """Off, as a part of the energy; none where nothing came."""
        return self.off / self.energy if self.energy else None


@dataclass
class PairedLayer:
    """What is found at one layer.

    Args:
        name: of the layer in both models.
        ours: the original's.
        theirs: the other's.
        order: the number of its first call.
        local: what is off in its output, given the original's input.
        rounding: what is off in that input once the layer's own quantizer has rounded it.
        arriving: what is off in its input, in the run of the whole model.
        fault: why it could not be measured.
        arrived: some of what it read in the compressed model, one entry a call.
    """

    name: str
    ours: nn.Module
    theirs: nn.Module
    order: int | None = None
    local: Share = field(default_factory=Share)
    rounding: Share = field(default_factory=Share)
    arriving: Share = field(default_factory=Share)
    fault: str | None = None
    arrived: list[Tensor | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changed = not _alike(self.ours, self.theirs)

    def beside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Tensor | None]:
        """What the other layer gives for a call of this one, and what it reads once that is rounded, if it is."""
        args, kwargs = self._fitted((args, kwargs))
        quantizer = getattr(self.theirs, "input_quantizer", None) if isinstance(self.theirs, Quantized) else None
        x = first_float((args, kwargs))
        return self.theirs(*args, **kwargs), None if quantizer is None or x is None else quantizer(x)

    def _fitted(self, call: tuple[Any, Any]) -> tuple[Any, Any]:
        """A call on the other layer's device and in its dtype."""
        own = next(chain(self.theirs.parameters(), self.theirs.buffers()), None)
        coded = next(iter(self.theirs.coded.values()), None) if isinstance(self.theirs, Quantized) else None
        dtype = coded.dtype if coded is not None else own.dtype if own is not None and own.is_floating_point() else None
        device = None if own is None else own.device

        def fit(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return leaf.to(device=device, dtype=dtype if leaf.is_floating_point() else None)

        fitted: tuple[Any, Any] = map_leaves(fit, call)
        return fitted


def first_float(value: Any) -> Tensor | None:
    """The first floating tensor of the arguments of a layer, or of what it returned."""
    leaves = (leaf for _, leaf in flatten(value))
    return next((leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()), None)


def _alike(ours: nn.Module, theirs: nn.Module) -> bool:
    """Whether two layers are the same, tensor for tensor."""
    if type(ours) is not type(theirs) or isinstance(theirs, Quantized):
        return False
    a, b = (dict(chain(layer.named_parameters(), layer.named_buffers())) for layer in (ours, theirs))
    return a.keys() == b.keys() and all(_equal(a[name], b[name]) for name in a)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype is b.dtype and a.device == b.device and torch.equal(a, b)
