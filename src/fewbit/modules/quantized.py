# SPDX-License-Identifier: Apache-2.0
"""A module of any class whose weights are kept as codes.

The module stays what it was: its class becomes a subclass of its own class, its parameter becomes buffers with codes and
scales, and a property under the parameter's name gives the float values to whoever asks. So every subclass of Linear, every
convolution, every attention with parameters of its own runs its own `forward`, unchanged, on quantized weights; a kernel
takes the place of that forward only where it computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.modules.activation import ActivationQuantizer
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor

_PARTS = ("packed", "scale", "zero_point", "super_scale")


@dataclass(frozen=True)
class Coded:
    """How one parameter is kept.

    Args:
        grid: what the codes mean.
        shape: in fewbit's layout.
        block: of the scales, in fewbit's layout.
        axes: where fewbit's axes lie in the module's own layout: `own = ours.permute(axes)`.
        dtype: of the float parameter.
    """

    grid: Grid
    shape: tuple[int, ...]
    block: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: torch.dtype


class Quantized:
    """Mixed in front of a module's own class.

    Attributes:
        float_class: the class it was.
        coded: how each quantized parameter is kept, by name.
        input_quantizer: for the first argument of `forward`, or none.
        output_quantizer: for what `forward` returns, or none.
        kernel: the kernel that runs instead of the class's own forward, or none: weights are then dequantized.
    """

    float_class: type[nn.Module]
    coded: dict[str, Coded]
    input_quantizer: ActivationQuantizer | None
    output_quantizer: ActivationQuantizer | None
    kernel: Any

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.kernel is not None:
            out = self.kernel.run(self, *args, **kwargs)
        else:
            if self.input_quantizer is not None:
                args, kwargs = _first_replaced(self.input_quantizer, args, kwargs)
            out = super().forward(*args, **kwargs)  # type: ignore[misc]
        return out if self.output_quantizer is None else self.output_quantizer(out)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.float_class, tuple(self.coded)), self.__dict__


def is_quantized(module: nn.Module) -> bool:
    """Whether a module's class was made by `make_quantized`."""
    return isinstance(module, Quantized)


def make_quantized(module: nn.Module) -> Quantized:
    """Give a module the class that can keep codes, in place; its forward computes what it did."""
    if not isinstance(module, Quantized):
        base = type(module)
        module.__class__ = quantized_class(base, ())
        module.coded = {}
        module.kernel = None
        module.input_quantizer = None
        module.output_quantizer = None
    return module  # type: ignore[return-value]


def set_weight(module: nn.Module, name: str, qtensor: QTensor, axes: tuple[int, ...] | None = None) -> None:
    """Replace a float parameter by codes, in place.

    Args:
        module: the module that owns the parameter.
        name: the parameter's name.
        qtensor: the codes, in fewbit's layout.
        axes: the permutation from fewbit's layout to the module's own; none where they are the same.
    """
    layer: Any = make_quantized(module)
    before = module._parameters.pop(name, None)
    dtype = layer.coded[name].dtype if before is None else before.dtype
    order = axes or tuple(range(len(qtensor.shape)))
    layer.coded = {**layer.coded, name: Coded(qtensor.grid, qtensor.shape, qtensor.block, order, dtype)}
    module.__class__ = quantized_class(layer.float_class, tuple(layer.coded))
    parts = qtensor.tensors()
    for part in _PARTS:
        module.register_buffer(f"{name}_{part}", parts.get(part))


def get_weight(module: nn.Module, name: str) -> QTensor:
    """The codes of a quantized parameter."""
    coded: Coded = module.coded[name]  # type: ignore[index, union-attr, assignment]
    parts = {part: getattr(module, f"{name}_{part}") for part in _PARTS}
    return QTensor.from_tensors(coded.grid, coded.shape, coded.block, {k: v for k, v in parts.items() if v is not None})


def float_weight(module: nn.Module, name: str) -> Tensor:
    """The float values of a quantized parameter, in the module's own layout and dtype."""
    coded: Coded = module.coded[name]  # type: ignore[index, union-attr, assignment]
    return get_weight(module, name).dequantize(coded.dtype).permute(coded.axes)


@cache
def quantized_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The subclass of `base` whose parameters `names` are kept as codes; made once."""
    body: dict[str, Any] = {name: property(_reader(name)) for name in names}
    return type(f"Quantized{base.__name__}", (Quantized, base), {"float_class": base, "__module__": __name__, **body})


def _reader(name: str) -> Callable[[nn.Module], Tensor]:
    def read(module: nn.Module) -> Tensor:
        return float_weight(module, name)

    return read


def _rebuild(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    cls = quantized_class(base, names)
    return cls.__new__(cls)


def _first_replaced(
    change: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (change(args[0]), *args[1:]), kwargs
    first = next(iter(kwargs))
    return args, {**kwargs, first: change(kwargs[first])}
