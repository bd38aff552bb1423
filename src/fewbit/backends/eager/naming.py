# SPDX-License-Identifier: Apache-2.0
"""The names a configuration can use: each module of a model under all its names, and the types it answers to."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from fewbit.modules.quantized import Quantized


def named_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module of a model, in model order, a shared one under each name; without what fewbit put in."""
    added = {id(part) for module in model.modules() for inner in _added(module) for part in inner.modules()}
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) not in added:
            yield name, module


def types_of(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's class and its base classes, without those that quantizing brings in.

    >>> types_of(nn.Linear(1, 1))
    ('Linear', 'Module')
    """
    cls = module.float_class if isinstance(module, Quantized) else type(module)
    return tuple(base.__name__ for base in cls.__mro__ if base is not object)


def _added(module: nn.Module) -> Iterator[nn.Module]:
    """What quantizing made parts of a module: quantizers of activations, codecs of a cache."""
    names = ("fewbit_cache", *(("input_quantizer", "output_quantizer") if isinstance(module, Quantized) else ()))
    for name in names:
        part = module._modules.get(name)
        if part is not None:
            yield part
