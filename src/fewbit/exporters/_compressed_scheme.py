# SPDX-License-Identifier: Apache-2.0
"""How compressed-tensors names what a layer became: a format, and arguments for its weight and its input.

The words are those of the `quantization_config` in config.json. A format says in which bytes a weight lies:

- `pack-quantized`: integers of 2 to 8 bits, input in float
- `int-quantized`: integers, one a byte, input in integers too
- `float-quantized`: fp8 e4m3 with one scale a tensor, a row or a rectangle
- `nvfp4-pack-quantized`, `mxfp4-pack-quantized`, `mxfp8-quantized`: the block formats of these names
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fewbit.exporters._base import Destined
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType

PACKED, INTEGERS, FLOATS = "pack-quantized", "int-quantized", "float-quantized"
NVFP4, MXFP4, MXFP8 = "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"

_IN_GROUPS = {
    (Dtype.fp4, 16, ScaleType.float8_e4m3fn): NVFP4,
    (Dtype.fp4, 32, ScaleType.float8_e8m0fnu): MXFP4,
    (Dtype.fp8_e4m3, 32, ScaleType.float8_e8m0fnu): MXFP8,
}
_SCALE_DTYPES = {NVFP4: "torch.float8_e4m3fn", MXFP4: "torch.uint8", MXFP8: "torch.uint8"}
_GROUPED = (QSchemeType.per_group, QSchemeType.per_block)


@dataclass(frozen=True)
class Arguments:
    """What a reader has to know of one tensor; the field names are the format's."""

    num_bits: int
    type: str
    symmetric: bool
    strategy: str
    dynamic: bool = False
    group_size: int | None = None
    block_structure: tuple[int, ...] | None = None
    scale_dtype: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As it stands in config.json: what does not apply is left out, and nothing is added."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True)
class Scheme:
    """What a reader has to know of one layer."""

    format: str
    weights: Arguments
    inputs: Arguments | None = None

    def to_dict(self, targets: list[str]) -> dict[str, Any]:
        """A group of config.json."""
        return {
            "targets": targets,
            "weights": self.weights.to_dict(),
            "input_activations": None if self.inputs is None else self.inputs.to_dict(),
            "output_activations": None,
            "format": self.format,
        }


def strategy_of(grid: Grid, shape: tuple[int, ...]) -> str | None:
    """Which elements of a matrix `[out, in]` share a scale, in the format's words; none if it has none for it.

    >>> strategy_of(Grid(Dtype.int4, QSchemeType.per_group, group_size=32), (8, 64))
    'group'
    """
    block = grid.weight_block(shape)
    if grid.granularity is QSchemeType.per_group and block[0] == 1 and 0 < grid.group_size <= shape[1]:
        return "group"
    if block == (1, shape[1]):
        return "channel"
    if block == shape:
        return "tensor"
    return "block" if grid.granularity is QSchemeType.per_block else None


def format_of(grid: Grid, shape: tuple[int, ...], *, float_input: bool) -> str | None:
    """The format for a matrix; none if there is none."""
    strategy = strategy_of(grid, shape)
    if grid.dtype.is_integer:
        fits = grid.dtype.bits <= 8 and strategy in ("group", "channel", "tensor")
        return (PACKED if float_input else INTEGERS) if fits else None
    if strategy == "group":
        return _IN_GROUPS.get((grid.dtype, grid.group_size, grid.scale_type))
    return FLOATS if grid.dtype is Dtype.fp8_e4m3 and strategy is not None else None


def scheme_of(grid: Grid, shape: tuple[int, ...], input: Grid | None, *, dynamic: bool) -> Scheme:
    """The scheme of a layer that `_compressed_rules` has nothing against.

    Args:
        grid: of the weight.
        shape: of the weight, `[out, in]`.
        input: the input's grid, or none.
        dynamic: whether the input's scales are found in each call.
    """
    name, strategy = format_of(grid, shape, float_input=input is None), strategy_of(grid, shape)
    assert name is not None and strategy is not None
    if name == PACKED and strategy == "tensor":
        strategy = "channel"  # runtimes read rows or groups; a scale repeated for every row is the same number
    weights = Arguments(
        grid.dtype.bits,
        "int" if grid.dtype.is_integer else "float",
        not grid.asymmetric,
        "tensor_group" if name == NVFP4 else strategy,
        group_size=grid.group_size if strategy == "group" else None,
        block_structure=grid.weight_block(shape) if strategy == "block" else None,
        scale_dtype=_SCALE_DTYPES.get(name),
    )
    return Scheme(name, weights, None if input is None else _input(input, shape[1], dynamic=dynamic))


def scheme_for(weight: Destined) -> Scheme:
    """The scheme of a weight that nothing speaks against."""
    assert weight.grid is not None
    return scheme_of(weight.grid, weight.shape[-2:], weight.input, dynamic=weight.dynamic)


def input_width(grid: Grid, features: int) -> int | None:
    """How many features of an input share a scale; none if all do."""
    width = grid.block_size[1] if grid.granularity is QSchemeType.per_block else grid.group_size
    return min(width, features) if grid.granularity in _GROUPED and width > 0 else None


def _input(grid: Grid, features: int, *, dynamic: bool) -> Arguments:
    width = input_width(grid, features)
    strategy = "group" if width is not None else "token" if dynamic and _by_token(grid) else "tensor"
    block = _IN_GROUPS.get((grid.dtype, width or 0, grid.scale_type))
    return Arguments(
        grid.dtype.bits,
        "int" if grid.dtype.is_integer else "float",
        not grid.asymmetric,
        strategy,
        dynamic,
        width,
        scale_dtype=None if block is None else _SCALE_DTYPES[block],
    )


def _by_token(grid: Grid) -> bool:
    return grid.granularity in (QSchemeType.per_token, *_GROUPED)
