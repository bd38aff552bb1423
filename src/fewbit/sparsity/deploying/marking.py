# SPDX-License-Identifier: Apache-2.0
"""A quantized module as a float one whose layers leave marks in an ONNX graph: there the codes are put in again.

The exporter of traces writes a node `Mark` wherever a layer reads its weight and its input, under the layer's name. So
nobody has to guess which node was which layer, and nothing is folded into a weight before its codes are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.backends.eager.copying import copied
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.attention import QuantizedAttention
from fewbit.modules.coded import Quantized
from fewbit.modules.freezing import unfreeze
from fewbit.modules.quantized import clear_weight
from fewbit.modules.recurrent import QuantizedRecurrent
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.qtensor import QTensor

DOMAIN, MARK, INPUT = "fewbit.marks", "Mark", "input quantizer"


@dataclass(frozen=True)
class Trained:
    """What a quantized layer is made of.

    Args:
        codes: of its weights, by name.
        quantizer: of its input, if that has fixed scales.
    """

    codes: dict[str, QTensor]
    quantizer: ActivationQuantizer | None


def trained_layers(model: nn.Module) -> dict[str, Trained]:
    """The quantized layers of a model, by name."""
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Quantized) and (layer.coded or layer.input_quantizer is not None):
            quantizer = layer.input_quantizer
            fixed = None if quantizer is None or quantizer.dynamic else quantizer
            found[name] = Trained({weight: _on_cpu(layer.codes_of(weight)) for weight in layer.coded}, fixed)
    return found


def _on_cpu(codes: QTensor) -> QTensor:
    parts = {part: tensor.cpu() for part, tensor in codes.tensors().items()}
    return QTensor.from_tensors(codes.grid, codes.shape, codes.block, parts)


def dynamic_layers(model: nn.Module) -> list[str]:
    """The names of layers whose input gets its scale in each call."""
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, Quantized)]
    return [name for name, each in layers if each.input_quantizer is not None and each.input_quantizer.dynamic]


def unfit_layers(model: nn.Module) -> list[tuple[str, str]]:
    """Quantized layers that an ONNX graph cannot hold as they are, each with the reason."""
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, Quantized)]
    return [(name, reason) for name, layer in layers for reason in _reasons(layer)]


def _reasons(layer: Quantized) -> Iterator[str]:
    if isinstance(layer, QuantizedAttention | QuantizedRecurrent):
        yield f"the products of a {layer.float_class.__name__} are inside of it, and no nodes of a graph"
    if layer.output_quantizer is not None:
        yield "it has a quantizer of its output"
    if any(coded.dtype not in (torch.float32, torch.float16) for coded in layer.coded.values()):
        yield f"it computes in {next(iter(layer.coded.values())).dtype}"
    quantizer = layer.input_quantizer
    if quantizer is None or quantizer.dynamic:
        return
    grid = quantizer.grid
    whole = grid.granularity is QSchemeType.per_tensor and quantizer.super_scale is None
    if not grid.dtype.is_integer or grid.dtype.bits != 8 or not whole or grid.float_zero:
        kind = f"{grid.dtype.name} by {grid.granularity.value}"
        yield f"its input is on a grid of {kind}, and integer kernels read 8 bits with one scale a tensor"
    own: Any = layer
    dtypes = {coded.dtype for coded in layer.coded.values()} or {each.dtype for each in own.parameters()}
    if dtypes - {torch.float32}:
        yield "it does not compute in float32, and codes of activations are made of float32 only"


def marked(model: nn.Module) -> nn.Module:
    """A copy in float, whose weights are what the codes stand for, and whose layers leave marks in an ONNX graph."""
    twin = copied(model).eval()
    unfreeze(twin)
    for name, layer in twin.named_modules():
        if isinstance(layer, Quantized):
            _mark(name, layer)
    return twin.cpu().requires_grad_(False)


def _mark(name: str, layer: Quantized) -> None:
    own: Any = layer
    weights = {weight: layer.float_parameter(weight).clone() for weight in layer.coded}
    for weight, values in weights.items():
        clear_weight(own, weight, nn.Parameter(values, requires_grad=False))
    fixed = layer.input_quantizer is not None and not layer.input_quantizer.dynamic
    own.input_quantizer = _Marker(name, INPUT) if fixed else None
    readers = {weight: property(_reader(name, weight)) for weight in weights}
    own.__class__ = type(f"Marked{type(layer).__name__}", (type(layer),), readers)


def _reader(layer: str, weight: str) -> Callable[[nn.Module], Tensor]:
    def read(module: nn.Module) -> Tensor:
        found: Tensor = _Mark.apply(module._parameters[weight], layer, weight)  # type: ignore[no-untyped-call]
        return found

    return read


class _Marker(nn.Module):
    """In the place of a quantizer."""

    def __init__(self, layer: str, part: str):
        super().__init__()
        self.layer, self.part = layer, part

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = _Mark.apply(x, self.layer, self.part)  # type: ignore[no-untyped-call]
        return found


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: str, part: str) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def symbolic(g: Any, x: Any, layer: str, part: str) -> Any:
        mark = g.op(f"{DOMAIN}::{MARK}", x, layer_s=layer, part_s=part)
        mark.setType(x.type())
        return mark
