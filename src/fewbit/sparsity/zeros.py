# SPDX-License-Identifier: Apache-2.0
"""How many elements of each weight are zero, counted one by one; of codes those that stand for zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.modules.coded import Quantized
from fewbit.modules.inventory import named_modules, slots
from fewbit.modules.quantized import get_weight
from fewbit.sparsity.zeros_graph import zeros_of_graph


@dataclass(frozen=True)
class Zeros:
    """What was counted in one weight.

    >>> Zeros("0", 3, (2, 3)).share
    0.5
    """

    layer: str
    zeros: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many there are."""
        return prod(self.shape)

    @property
    def share(self) -> float:
        """Of the zeros; none of nothing."""
        return self.zeros / self.elements if self.elements else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"zeros": self.zeros, "elements": self.elements, "share": self.share, "shape": list(self.shape)}


def zeros_of(model: Any) -> list[Zeros]:
    """Every weight of at least two axes, in model order, one that several layers use once.

    Args:
        model: an `nn.Module`, quantized or not, or an ONNX `ModelProto`.

    >>> [(each.layer, each.zeros) for each in zeros_of(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))]
    [('0', 0)]
    """
    found = _of_module(model) if isinstance(model, nn.Module) else zeros_of_graph(model)
    return [Zeros(layer, zeros, shape) for layer, zeros, shape in found]


def facts(counted: Sequence[Zeros]) -> dict[str, Any]:
    """The counts as JSON values: `zeros`, `elements` and `share` of all, and the same of each in `layers`."""
    zeros, elements = sum(each.zeros for each in counted), sum(each.elements for each in counted)
    layers = {each.layer: each.to_dict() for each in counted}
    return {"zeros": zeros, "elements": elements, "share": zeros / elements if elements else 0.0, "layers": layers}


def _of_module(model: nn.Module) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    seen: set[Any] = set()
    for path, module in named_modules(model):
        for name, weight in _weights(module, seen):
            layer = path if name == "weight" else f"{path}.{name}".lstrip(".")
            yield layer, int(weight.numel() - torch.count_nonzero(weight)), tuple(weight.shape)


def _weights(module: nn.Module, seen: set[Any]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(module, Quantized) and id(module) not in seen:
        seen.add(id(module))
        for name in module.coded:
            codes = get_weight(module, name)
            if len(codes.shape) > 1 and _first(module._buffers.get(f"{name}_packed"), seen):
                yield name, codes.dequantize()
    for name, (kind, tensor) in slots(module).items():
        if kind == "parameter" and tensor.ndim > 1 and _first(tensor, seen):
            yield name, tensor.detach()


def _first(tensor: Tensor | None, seen: set[Any]) -> bool:
    """Whether a tensor was not met before; codes that a kernel keeps to itself never were."""
    if tensor is None or not tensor.numel():
        return True
    key = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
    known = key in seen
    seen.add(key)
    return not known
