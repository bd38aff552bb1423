# SPDX-License-Identifier: Apache-2.0
"""What makes a module tree a quantized one, as plain data.

A description names every quantized layer with the grid, shape and layout of each of its weights, and every quantizer of
an activation or a cache. It holds no tensor and no code: the architecture comes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fewbit.errors import DataError, FewbitError
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.quantized import Coded, Quantized
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.grid import Grid
from fewbit.numerics.packing import is_packed
from fewbit.numerics.qparams import QParams
from fewbit.numerics.qtensor import QTensor

T = TypeVar("T")


@dataclass(frozen=True)
class Layer:
    """A quantized layer: the name of its float class, and how each of its quantized parameters is kept."""

    float_class: str
    weights: Mapping[str, Coded]


@dataclass(frozen=True)
class Quantizer:
    """A quantizer of an activation; `dynamic` ones find their scales in each call."""

    grid: Grid
    features: int
    dynamic: bool


@dataclass(frozen=True)
class Description:
    """A model's quantized layers and quantizers, by path."""

    layers: Mapping[str, Layer]
    quantizers: Mapping[str, Quantizer]

    @classmethod
    def of(cls, model: nn.Module) -> Description:
        """The description of a model; of one without quantized layers, an empty one."""
        layers, quantizers = {}, {}
        for path, module in model.named_modules():
            if isinstance(module, Quantized):
                layers[path] = Layer(module.float_class.__name__, dict(module.coded))
            elif isinstance(module, ActivationQuantizer):
                quantizers[path] = Quantizer(module.grid, module.features, module.dynamic)
        return cls(layers, quantizers)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "layers": {
                path: {
                    "class": layer.float_class,
                    "weights": {name: _weight_to_dict(coded) for name, coded in layer.weights.items()},
                }
                for path, layer in self.layers.items()
            },
            "quantizers": {
                path: {"grid": how.grid.to_dict(), "features": how.features, "dynamic": how.dynamic}
                for path, how in self.quantizers.items()
            },
        }

    @classmethod
    def from_dict(cls, content: Any) -> Description:
        """The inverse of `to_dict`.

        Raises:
            DataError: what is not a description, with the place.
        """
        layers = {path: _layer(path, layer) for path, layer in table(content, "layers").items()}
        given = table(content, "quantizers")
        return cls(layers, {path: _sound(_quantizer, how, path) for path, how in given.items()})

    def parts(self) -> dict[str, Tensor]:
        """The tensors that the weights' codes and scales are, by full name: dtypes and shapes, without values."""
        return {
            f"{path}.{name}_{part}".lstrip("."): tensor
            for path, layer in self.layers.items()
            for name, coded in layer.weights.items()
            for part, tensor in parts_of(coded).items()
        }


def parts_of(coded: Coded) -> dict[str, Tensor]:
    """The parts of one quantized weight on the meta device; their dtypes and shapes follow from its grid."""
    kind, shape = coded.grid.dtype, coded.shape or (1,)
    width = -(-shape[-1] * kind.bits // 8) if is_packed(kind) else shape[-1]
    counts = Blocks(coded.shape, coded.block).counts
    shapes = {"packed": (*shape[:-1], width), "scale": counts, "zero_point": counts, "super_scale": ()}
    return {
        part: torch.empty(shapes[part], dtype=dtype, device="meta") for part, dtype in _part_dtypes(coded.grid).items()
    }


@cache
def _part_dtypes(grid: Grid) -> dict[str, torch.dtype]:
    """What the parts of any tensor on a grid are kept in, seen from one of a single element."""
    one = torch.ones(1)
    qparams = QParams(
        grid, (1,), one, one if grid.has_zero_point else None, torch.tensor(1.0) if grid.two_level else None
    )
    parts = QTensor.from_codes(torch.zeros(1, dtype=grid.dtype.storage), qparams).tensors()
    return {part: tensor.dtype for part, tensor in parts.items()}


def table(content: Any, key: str, where: str = "") -> Mapping[str, Any]:
    """A mapping inside a JSON object.

    Raises:
        DataError: there is none.
    """
    value = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(value, Mapping):
        raise DataError(
            f"no table {key!r}",
            code="manifest",
            where=f"fewbit.json: {where}".rstrip(": "),
            expected="fewbit.json as it was exported",
        )
    return value


def read_dtype(name: object) -> torch.dtype:
    """A dtype by its name.

    >>> read_dtype("bfloat16")
    torch.bfloat16
    """
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return found


def read_sides(value: object) -> tuple[int, ...]:
    """A shape: a list of numbers from 0."""
    if not isinstance(value, list) or not all(type(side) is int and side >= 0 for side in value):
        raise ValueError(f"{value!r} is no shape")
    return tuple(value)


def _weight_to_dict(coded: Coded) -> dict[str, Any]:
    return {
        "grid": coded.grid.to_dict(),
        "shape": list(coded.shape),
        "block": list(coded.block),
        "axes": list(coded.axes),
        "groups": coded.groups,
        "dtype": str(coded.dtype).removeprefix("torch."),
    }


def _layer(path: str, content: Any) -> Layer:
    weights = table(content, "weights", path)
    coded = {name: _sound(_weight, how, f"{path}.{name}") for name, how in weights.items()}
    return Layer(str(content.get("class")), coded)


def _weight(how: Mapping[str, Any]) -> Coded:
    shape, block, axes = (read_sides(how[key]) for key in ("shape", "block", "axes"))
    if len(shape) != len(block) or sorted(axes) != list(range(len(shape))) or 0 in block:
        raise ValueError(f"shape {shape}, block {block} and axes {axes} do not go together")
    groups = how["groups"]
    if type(groups) is not int or groups < 1 or (groups > 1 and shape[0] % groups):
        raise ValueError(f"{groups!r} groups of the first axis of {shape}")
    coded = Coded(Grid.from_dict(how["grid"]), shape, block, axes, read_dtype(how["dtype"]), groups)
    parts_of(coded), coded.own_shape  # sizes that no tensor has fail here
    return coded


def _quantizer(how: Mapping[str, Any]) -> Quantizer:
    if type(how["features"]) is not int or type(how["dynamic"]) is not bool:
        raise ValueError("features is a number, dynamic is true or false")
    return Quantizer(Grid.from_dict(how["grid"]), how["features"], how["dynamic"])


def _sound(make: Callable[[Any], T], content: Any, where: str) -> T:
    try:
        return make(content)
    except (FewbitError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise DataError(
            f"this does not describe a quantized tensor: {type(error).__name__}: {str(error)[:200]}",
            code="manifest",
            where=f"fewbit.json: {where}",
            expected="fewbit.json as it was exported",
        ) from error
