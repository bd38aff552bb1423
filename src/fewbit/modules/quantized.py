# SPDX-License-Identifier: Apache-2.0
"""A module of any class whose weights are kept as codes.

The module stays what it was: its class becomes a subclass of its own class, its parameter becomes buffers with codes
and scales, and a property under the parameter's name gives the float values to whoever asks. So every subclass of
Linear, every convolution, every attention with parameters of its own runs its own `forward`, unchanged, on quantized
weights; a kernel takes the place of that forward only where it computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor, nn

from fewbit.modules.attention import QuantizedAttention
from fewbit.modules.coded import PARTS, Coded, Quantized, first_argument
from fewbit.modules.frozen import thaw_layer
from fewbit.modules.holding import Holding
from fewbit.modules.recurrent import QuantizedRecurrent
from fewbit.numerics.qtensor import QTensor

__all__ = [
    "Coded",
    "Quantized",
    "clear_weight",
    "float_weight",
    "get_weight",
    "is_quantized",
    "make_quantized",
    "quantized_class",
    "set_weight",
]


def is_quantized(module: nn.Module) -> bool:
    """Whether a module's class was made by `make_quantized`."""
    return isinstance(module, Quantized)


def make_quantized(module: nn.Module) -> Quantized:
    """Give a module the class that can keep codes, in place; its forward computes what it did."""
    layer: Any = module
    if not isinstance(module, Quantized):
        vars(layer).pop("_flat_weights", None)  # a recurrent layer's second hold on its parameters
        base: Any = type(layer)
        layer.__class__ = quantized_class(base, ())
        layer.coded = {}
        layer.kernel = None
        layer.input_quantizer = None
        layer.output_quantizer = None
    made: Quantized = layer
    return made


def set_weight(
    module: nn.Module, name: str, qtensor: QTensor, axes: tuple[int, ...] | None = None, groups: int = 1
) -> None:
    """Replace a float parameter by codes, in place.

    Args:
        module: the module that owns the parameter.
        name: the parameter's name.
        qtensor: the codes, in fewbit's layout.
        axes: the permutation from fewbit's layout to the module's own; none where they are the same.
        groups: blocks of the first axis within which `axes` permutes.
    """
    layer: Any = make_quantized(module)
    thaw_layer(layer)
    before = module._parameters.pop(name, None)
    dtype = layer.coded[name].dtype if before is None else before.dtype
    order = axes or tuple(range(len(qtensor.shape)))
    layer.coded = {**layer.coded, name: Coded(qtensor.grid, qtensor.shape, qtensor.block, order, dtype, groups)}
    module.__class__ = quantized_class(layer.float_class, tuple(layer.coded))
    parts = qtensor.tensors()
    for part in PARTS:
        module.register_buffer(f"{name}_{part}", parts.get(part))
    # torch.export counts the buffers of the module it is given and trips over an empty one among them.
    buffers = sorted(module._buffers.items(), key=lambda entry: entry[1] is None)
    module._buffers.clear()
    module._buffers.update(buffers)


def clear_weight(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Put a float parameter back in the place of its codes."""
    layer: Any = module
    thaw_layer(layer)
    layer.coded = {other: coded for other, coded in layer.coded.items() if other != name}
    module.__class__ = quantized_class(layer.float_class, tuple(layer.coded))
    for part in PARTS:
        del module._buffers[f"{name}_{part}"]
    module.register_parameter(name, parameter)


def get_weight(module: nn.Module, name: str) -> QTensor:
    """The codes of a quantized parameter."""
    assert isinstance(module, Quantized)
    return module.codes_of(name)


def float_weight(module: nn.Module, name: str) -> Tensor:
    """The float values of a quantized parameter, in the module's own layout and dtype."""
    assert isinstance(module, Quantized)
    return module.float_parameter(name)


@cache
def quantized_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """The subclass of `base` whose parameters `names` are kept as codes; made once."""
    body: dict[str, Any] = {name: property(_reader(name)) for name in names}
    body |= {"float_class": base, "first_argument": first_argument(base), "__reduce__": _reduce}
    return type(f"Quantized{base.__name__}", (_mixin(base), base), {"__module__": __name__, **body})


def _mixin(base: type[nn.Module]) -> type[Quantized]:
    if issubclass(base, nn.RNNBase):
        return QuantizedRecurrent
    if issubclass(base, nn.MultiheadAttention):
        return QuantizedAttention
    known = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.EmbeddingBag)
    return Quantized if issubclass(base, known) else Holding


def _reader(name: str) -> Callable[[Quantized], Tensor]:
    def read(module: Quantized) -> Tensor:
        return module.float_parameter(name)

    return read


def _reduce(module: Any) -> tuple[Any, ...]:
    return _rebuild, (module.float_class, tuple(module.coded)), module.__getstate__()


def _rebuild(base: Any, names: tuple[str, ...]) -> nn.Module:
    cls = quantized_class(base, names)
    return cls.__new__(cls)
