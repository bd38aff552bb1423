# SPDX-License-Identifier: Apache-2.0
"""A quantized model that learns, and the same model with codes again.

Each weight that is kept as codes gets a float parameter under its old name, in float32. Whoever reads the weight, the
layer's own forward above all, gets that parameter on its grid: exactly what its codes would stand for. The parameter
begins with values that round to these codes (`starting`), so the first forward is that of the quantized model, bit by
bit, whatever algorithm found its codes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.errors import UsageError
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.coded import Quantized
from fewbit.modules.frozen import device_of, freeze_layer, thaw_layer
from fewbit.modules.layout import to_ours, to_own
from fewbit.modules.quantized import set_weight
from fewbit.numerics.qtensor import QTensor
from fewbit.tuning.dressing import dress
from fewbit.tuning.learning_layers import STRETCH, Learning, LearningQuantizer
from fewbit.tuning.pruned_codes import pruned_codes
from fewbit.tuning.starting import starting_values

Made = dict[int, tuple[nn.Parameter, nn.Parameter | None, tuple[int, ...], object]]
"""By the `id` of a buffer of codes, the parameters that stand for it, their layout, and the buffer, to keep its id."""


def learn_quantized(
    model: nn.Module,
    *,
    learn_scales: bool = False,
    original: nn.Module | None = None,
    hold_zeros: bool = True,
    seed: int = 0,
) -> nn.Module:
    """Make a quantized model learn, in place: float parameters for its weights, gradients through its activations.

    Args:
        model: with quantized layers; kernels are taken off for the time being.
        learn_scales: learn scales too, those of weights and fixed ones of activations; zero points stay.
        original: the float model it was made from, for what lies between two codes; layers go by name.
        hold_zeros: find out which weights were pruned, for `Masks`.
        seed: of where weights begin whose originals nobody knows.

    Raises:
        UsageError: no quantized layers, or layers that share codes in different layouts.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Quantized)}
    if not layers:
        raise UsageError(
            f"{type(model).__name__} has no quantized layers",
            expected="a model from fewbit.quantize, compress_weights or ModelQuantizer",
            try_="quantize it first, or give preset=…",
        )
    before = {} if original is None else dict(original.named_modules())
    way = _Way(learn_scales, hold_zeros, seed)
    for name, layer in layers.items():
        _learn_layer(name, layer, before.get(name), way)
    return model


def settle_quantized(model: nn.Module) -> nn.Module:
    """Keep the weights of a model as codes again, in place, on the grids they had; kernels come back."""
    made: dict[int, QTensor] = {}
    for module in list(model.modules()):
        if isinstance(module, Learning):
            _settle_layer(module, made)
    for module in model.modules():
        if isinstance(module, LearningQuantizer):
            _settle_quantizer(module)
    for module in model.modules():
        terms = vars(module).pop("terms_before", None)
        if terms is not None:
            freeze_layer(module, replace(terms, device=device_of(module)))
    return model


def is_learning(model: nn.Module) -> bool:
    """Whether `learn_quantized` was done to a model."""
    return any(isinstance(module, Learning | LearningQuantizer) for module in model.modules())


def stretches(model: nn.Module) -> Iterator[nn.Parameter]:
    """Every scale that learns, each once."""
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2].endswith(STRETCH):
            yield parameter


@dataclass
class _Way:
    """How a model is made to learn, and what was made of it so far."""

    learn_scales: bool
    hold_zeros: bool
    seed: int
    made: Made = field(default_factory=dict)


def _learn_layer(name: str, layer: Quantized, before: nn.Module | None, way: _Way) -> None:
    own: Any = layer
    terms = layer.frozen_terms
    thaw_layer(layer)
    own.terms_before = terms
    for quantizer in (layer.input_quantizer, layer.output_quantizer):
        if quantizer is not None:
            _learn_quantizer(quantizer, way.learn_scales)
    if not layer.coded:
        return
    known = {weight: _original(layer, weight, before) for weight in layer.coded}
    masters = {weight: _master(name, layer, weight, known[weight], way) for weight in layer.coded}
    zeros = {weight: pruned_codes(layer, weight, known[weight]) for weight in layer.coded if way.hold_zeros}
    dress(own, Learning)
    own.pruned = {weight: where for weight, where in zeros.items() if where is not None}
    for weight, (master, stretch) in masters.items():
        own._buffers[f"{weight}_packed"] = None
        own._parameters[weight] = master
        if stretch is not None:
            own._parameters[f"{weight}_{STRETCH}"] = stretch


def _master(
    name: str, layer: Quantized, weight: str, original: Tensor | None, way: _Way
) -> tuple[nn.Parameter, nn.Parameter | None]:
    """The float parameter of a weight, and that of its scales; one for all layers that share the codes."""
    coded = layer.coded[weight]
    place = layer._buffers[f"{weight}_packed"]
    if id(place) in way.made:
        master, stretch, axes, _ = way.made[id(place)]
        if axes != coded.axes:
            raise UsageError(f"{name} shares its codes with a layer that keeps them in another layout", where=name)
        return master, stretch
    codes = layer.codes_of(weight)
    known = None if original is None else to_ours(original, coded.axes, coded.groups)
    values = starting_values(codes, known, zlib.crc32(f"{way.seed} {name}.{weight}".encode()))
    master = nn.Parameter(to_own(values, coded.axes, coded.groups).contiguous())
    stretch = nn.Parameter(torch.zeros_like(codes.qparams.scale)) if way.learn_scales else None
    way.made[id(place)] = master, stretch, coded.axes, place
    return master, stretch


def _original(layer: Quantized, weight: str, before: nn.Module | None) -> Tensor | None:
    """The weight of a layer before it was codes, in the layer's own layout, if it is there and of the same shape."""
    given = None if before is None else before._parameters.get(weight)
    fits = given is not None and tuple(given.shape) == layer.coded[weight].own_shape
    return given.detach() if given is not None and fits else None


def _learn_quantizer(quantizer: ActivationQuantizer, learn_scales: bool) -> None:
    own: Any = quantizer
    own.__class__ = LearningQuantizer
    learns = learn_scales and quantizer.scale is not None
    own.register_parameter(STRETCH, nn.Parameter(torch.zeros_like(own.scale)) if learns else None)


def _settle_layer(layer: Any, made: dict[int, QTensor]) -> None:
    before = dict(layer.coded)
    for weight in before:
        master = layer._parameters[weight]
        if id(master) not in made:
            made[id(master)] = layer.codes_of(weight)
    found = {weight: made[id(layer._parameters[weight])] for weight in before}
    for weight, coded in before.items():
        set_weight(layer, weight, found[weight], coded.axes, coded.groups)
        layer._parameters.pop(f"{weight}_{STRETCH}", None)
    del layer.pruned
    layer.coded = before  # parameters were float32; what reads them is not


def _settle_quantizer(quantizer: Any) -> None:
    learned = quantizer.learned()
    if learned is not None:
        quantizer.scale = learned.detach()
    del quantizer._parameters[STRETCH]
    quantizer.__class__ = ActivationQuantizer
