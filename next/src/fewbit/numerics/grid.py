# SPDX-License-Identifier: Apache-2.0
"""A quantization grid: which values a tensor may take, all but the scales themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from fewbit.errors import UsageError, nearest
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.ops import Array
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType


@dataclass(frozen=True)
class QuantizationGrid:
    """Element type, granularity, symmetry, and how scales are chosen, rounded and stored.

    Args:
        dtype: the type of one element.
        granularity: which elements share a scale.
        axis: the axis with one scale per index; groups divide the other axis.
        group_size: elements per group, the last one may be shorter; -1 is the complete axis.
        block_size: rows and columns of a rectangle, for `per_block`.
        symmetric: zero lies in the middle; otherwise a zero point moves it.
        full_range: symmetric, but the scale has a sign so that the lowest integer is used too; for signed integers.
        scale_type: the values a scale may have.
        scale_mode: how an e8m0 scale follows from the block's maximum.
        rounding: how elements are rounded.
        float_zero: do not round the zero point.
        seed: of stochastic rounding.

    >>> QuantizationGrid(Dtype.int4, QSchemeType.per_group, group_size=32).weight_block((8, 64))
    (1, 32)
    """

    dtype: Dtype
    granularity: QSchemeType = QSchemeType.per_tensor
    axis: int = 0
    group_size: int = -1
    block_size: tuple[int, int] = (128, 128)
    symmetric: bool = True
    full_range: bool = False
    scale_type: ScaleType = ScaleType.float32
    scale_mode: ScaleMode = ScaleMode.even
    rounding: RoundType = RoundType.half_even
    float_zero: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.signed_scale and not self.scale_type.signed:
            raise UsageError(
                f"full_range needs scales with a sign, and {self.scale_type.name} has none",
                code="grid-scale-type",
                where=f"a grid of {self.dtype.name}",
                expected="a scale type with a sign: float32, float16, bfloat16 or float8_e4m3fn",
                hint="another scale type, or full_range off",
            )

    @property
    def asymmetric(self) -> bool:
        """Whether the zero point follows the data; only integers have one."""
        return self.dtype.is_integer and not self.symmetric

    @property
    def free_zero(self) -> bool:
        """Whether zero need not be a value of the grid."""
        return self.asymmetric and self.float_zero

    @property
    def has_zero_point(self) -> bool:
        """Asymmetric integers have one, and symmetric ones in an unsigned type."""
        return self.dtype.is_integer and not (self.symmetric and self.dtype.signed)

    @property
    def zero_storage(self) -> str:
        """The dtype that stores a zero point."""
        return "float32" if self.float_zero else self.dtype.storage

    @property
    def signed_scale(self) -> bool:
        """Whether a scale has a sign: only signed integers reach one step farther on one side."""
        return self.full_range and self.symmetric and self.dtype.is_integer and self.dtype.signed

    @property
    def two_level(self) -> bool:
        """Whether one float32 scale per tensor multiplies the scales of the blocks."""
        return self.scale_type is ScaleType.float8_e4m3fn

    def replace(self, **changes: Any) -> QuantizationGrid:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def weight_block(self, shape: tuple[int, ...], stack: int = 0) -> tuple[int, ...]:
        """The block shape for a weight `[stack…, out, in, kernel…]`; every member of a stack has its own scales.

        `axis` counts without the stack. Groups run along the first other axis and contain the axes of the kernel.
        """
        inner = shape[stack:]
        axes = len(inner)
        axis = self.axis % axes if axes else 0
        block = list(inner)
        if self.granularity in (QSchemeType.per_channel, QSchemeType.per_token, QSchemeType.per_group) and axes:
            block[axis] = 1
            if self.granularity is QSchemeType.per_group and self.group_size > 0:
                other = axis if axes == 1 else int(axis == 0)  # a vector has only one axis to divide
                block[other] = min(self.group_size, inner[other])
        elif self.granularity is QSchemeType.per_block and axes:
            for side, width in enumerate(self.block_size[-axes:]):
                block[side] = min(width, inner[side])
        return (1,) * stack + tuple(max(side, 1) for side in block)

    def activation_block(self, shape: tuple[int, ...], *, features: int = -1, dynamic: bool = True) -> tuple[int, ...]:
        """The block shape for an activation whose feature axis is `features`.

        Computed at run time, tokens and groups have their own scales. Computed beforehand, scales hold for every
        token, so only the feature axis is divided. `per_block` is groups as long as the rectangle is wide.
        """
        if not shape:
            return ()
        features %= len(shape)
        grouped = self.granularity in (QSchemeType.per_group, QSchemeType.per_block)
        width = self.block_size[1] if self.granularity is QSchemeType.per_block else self.group_size
        by_token = dynamic and (grouped or self.granularity is QSchemeType.per_token)
        block = [1 if by_token else side for side in shape]
        block[features] = shape[features]
        if grouped and width > 0:
            block[features] = min(width, shape[features])
        elif self.granularity is QSchemeType.per_channel:
            block[features] = 1
        return tuple(max(side, 1) for side in block)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values.

        >>> QuantizationGrid(Dtype.int4, symmetric=False).to_dict()["dtype"]
        'int4'
        """
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> QuantizationGrid:
        """The inverse of `to_dict`; missing fields have their defaults.

        Raises:
            UsageError: every field that is wrong.
        """
        known = {field.name: field.default for field in fields(cls)}
        problems = [f"unknown field {name!r}" for name in values if name not in known]
        problems += [] if "dtype" in values else ["no dtype"]
        settings: dict[str, Any] = {}
        for name in [name for name in known if name in values]:
            value, kind = values[name], _ENUMS.get(name)
            if kind is not None and value not in kind.__members__:
                similar = ", ".join(nearest(str(value), kind.__members__) or kind.__members__)
                problems.append(f"{name}: unknown {value!r}; known: {similar}")
            elif kind is None and not _is_like(value, known[name]):
                problems.append(f"{name}: {value!r} is not like {known[name]!r}")
            else:
                settings[name] = kind[value] if kind else tuple(value) if name == "block_size" else value
        if problems:
            raise UsageError(
                f"not a quantization grid: {'; '.join(problems)}", code="grid-fields",
                expected="what `QuantizationGrid.to_dict` gives", hint="write the file again with this version",
            )  # fmt: skip
        return cls(**settings)


@dataclass(frozen=True, eq=False)
class QParams:
    """The scales that place a grid on a tensor.

    Args:
        grid: the values that a scaled element may take.
        block: the block shape; scales have the tensor's shape divided by it, rounded up.
        scale: float32, values of `grid.scale_type`.
        zero_point: float32 with integers (any number with `float_zero`), shaped like `scale`, or `None`.
        global_scale: float32 `[]`, multiplies every scale of a two-level grid, or `None`.
    """

    grid: QuantizationGrid
    block: tuple[int, ...]
    scale: Array
    zero_point: Array | None = None
    global_scale: Array | None = None

    @property
    def step(self) -> Array:
        """The distance between neighboring integers, per block."""
        return self.scale if self.global_scale is None else self.scale * self.global_scale

    def reshape(self, block: tuple[int, ...], counts: tuple[int, ...]) -> QParams:
        """The same scales for blocks of another shape in the same order."""
        zero = None if self.zero_point is None else self.zero_point.reshape(counts)
        return QParams(self.grid, block, self.scale.reshape(counts), zero, self.global_scale)

    def part(self, blocks: slice, block: tuple[int, ...] | None = None) -> QParams:
        """The scales of some blocks along the first axis."""
        zero = None if self.zero_point is None else self.zero_point[blocks]
        return QParams(self.grid, block or self.block, self.scale[blocks], zero, self.global_scale)


@dataclass(frozen=True)
class BlockFormat:
    """A format whose name says everything: element type, elements per group, scale type."""

    element: Dtype
    group_size: int
    scale_type: ScaleType


BLOCK_FORMATS = {
    # OCP Microscaling Formats (MX) v1.0, table 1.
    "mxfp4": BlockFormat(Dtype.fp4, 32, ScaleType.float8_e8m0fnu),
    "mxfp6_e2m3": BlockFormat(Dtype.fp6_e2m3, 32, ScaleType.float8_e8m0fnu),
    "mxfp6_e3m2": BlockFormat(Dtype.fp6_e3m2, 32, ScaleType.float8_e8m0fnu),
    "mxfp8_e4m3": BlockFormat(Dtype.fp8_e4m3, 32, ScaleType.float8_e8m0fnu),
    "mxfp8_e5m2": BlockFormat(Dtype.fp8_e5m2, 32, ScaleType.float8_e8m0fnu),
    "mxint8": BlockFormat(Dtype.int8, 32, ScaleType.float8_e8m0fnu),
    "nvfp4": BlockFormat(Dtype.fp4, 16, ScaleType.float8_e4m3fn),
    # Eight values share an exponent; `ScaleMode.even` steps it up exactly if an element would round to 128.
    "bfp16": BlockFormat(Dtype.int8, 8, ScaleType.float8_e8m0fnu),
}

_ENUMS: dict[str, type[Enum]] = {
    "dtype": Dtype,
    "granularity": QSchemeType,
    "scale_type": ScaleType,
    "scale_mode": ScaleMode,
    "rounding": RoundType,
}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    return list(value) if isinstance(value, tuple) else value


def _is_like(value: Any, default: Any) -> bool:
    """Whether a JSON value has the type of a default: `true` is no number, a pair is two numbers."""
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and len(value) == len(default) and all(map(_is_like, value, default))
    return type(value) is type(default)
