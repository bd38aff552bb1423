# SPDX-License-Identifier: Apache-2.0
"""What a quantized module is: a parameter kept as codes and scales, and read as floats by its old name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.frozen import Freezable, Kernel, run_frozen, thawed
from fewbit.modules.keeping import KeepsDtypes, dtype_after
from fewbit.modules.layout import own_shape, to_own
from fewbit.numerics.grid import Grid
from fewbit.numerics.qtensor import QTensor

PARTS = ("packed", "scale", "zero_point", "super_scale")


@dataclass(frozen=True)
class Coded:
    """How one parameter is kept.

    Args:
        grid: what the codes mean.
        shape: in fewbit's layout.
        block: of the scales, in fewbit's layout.
        axes: where fewbit's axes lie in the module's own layout: `own = ours.permute(axes)`.
        dtype: of the float parameter; follows when the model is cast.
        groups: blocks of the first axis within which `axes` permutes; above 1 for grouped transposed convolutions.
    """

    grid: Grid
    shape: tuple[int, ...]
    block: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: torch.dtype
    groups: int = 1

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The parameter's shape as the module knows it."""
        return own_shape(self.shape, self.axes, self.groups)


class Quantized(Freezable, KeepsDtypes):
    """Mixed in front of a module's own class.

    Attributes:
        float_class: the class it was.
        first_argument: the name of the first parameter of its forward, if it has one.
        coded: how each quantized parameter is kept, by name.
        input_quantizer: for the first argument of `forward`, or none.
        output_quantizer: for what `forward` returns, or none.
        kernel: the kernel that runs instead of the class's own forward, or none: weights are then dequantized.
    """

    float_class: ClassVar[type[nn.Module]]
    first_argument: ClassVar[str | None]
    coded: dict[str, Coded]
    input_quantizer: ActivationQuantizer | None
    output_quantizer: ActivationQuantizer | None
    kernel: Kernel | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = self.own_forward(*args, **kwargs) if self.kernel is None else run_frozen(self, *args, **kwargs)
        return out if self.output_quantizer is None else with_first(self.output_quantizer, out)

    def own_forward(self, *args: Any, **kwargs: Any) -> Any:
        """The forward of the layer's own class, on a quantized input and dequantized weights."""
        if self.input_quantizer is not None:
            args, kwargs = self.with_quantized_input(self.input_quantizer, args, kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def with_quantized_input(
        self, quantizer: ActivationQuantizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with the first one on its grid."""
        if args:
            return (with_tensor(quantizer, args[0]), *args[1:]), kwargs
        first = self.first_argument if self.first_argument in kwargs else next(iter(kwargs))
        return args, {**kwargs, first: with_tensor(quantizer, kwargs[first])}

    def float_parameter(self, name: str) -> Tensor:
        """The float values of a quantized parameter, in the module's own layout and dtype."""
        if self.kernel is not None and self.kernel.stand_in is not None and name == "weight":
            return self.kernel.stand_in
        coded = self.coded[name]
        return to_own(self.codes_of(name).dequantize(coded.dtype), coded.axes, coded.groups)

    def codes_of(self, name: str) -> QTensor:
        """The codes of a quantized parameter; from the kernel, if that keeps them in a layout of its own."""
        parts = {part: getattr(self, f"{name}_{part}") for part in PARTS}
        if parts["packed"] is None and self.kernel is not None and name == "weight":
            return self.kernel.restore(self)
        coded = self.coded[name]
        there = {part: tensor for part, tensor in parts.items() if tensor is not None}
        return QTensor.from_tensors(coded.grid, coded.shape, coded.block, there)

    def kept_buffers(self) -> tuple[str, ...]:
        """Codes and scales belong to the scheme: `model.half()` casts what the codes stand for, not them."""
        return tuple(f"{name}_{part}" for name in self.coded for part in PARTS)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        with thawed(self):
            places = {name: self._buffers[f"{name}_packed"] for name in self.coded}
            dtypes = {name: dtype_after(fn, places[name], coded.dtype) for name, coded in self.coded.items()}
            super()._apply(fn, recurse)
            self.coded = {name: replace(coded, dtype=dtypes[name]) for name, coded in self.coded.items()}
        return self


def with_tensor(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """An activation changed: a tensor, or the data of a packed sequence."""
    if isinstance(value, nn.utils.rnn.PackedSequence):
        return value._replace(data=change(value.data))
    return change(value)


def with_first(change: Callable[[Tensor], Tensor], out: Any) -> Any:
    """What a layer returned, changed: the tensor, or the first of several, as of recurrent layers and attention."""
    return (with_tensor(change, out[0]), *out[1:]) if type(out) is tuple else with_tensor(change, out)


def first_argument(cls: type[nn.Module]) -> str | None:
    """The name of the first parameter of a class's forward, if it has one.

    >>> first_argument(nn.Linear)
    'input'
    """
    cls = getattr(cls, "float_class", cls)
    names = [p.name for p in inspect.signature(cls.forward).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return names[1] if len(names) > 1 else None
