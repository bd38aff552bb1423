# SPDX-License-Identifier: Apache-2.0
"""A grid: which values a tensor may take. The type, who shares a scale, how the scale is found, kept and rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

import torch

from fewbit.errors import UsageError, nearest
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType, has_sign


@dataclass(frozen=True)
class Grid:
    """Everything about a tensor's values but the scales themselves.

    Args:
        dtype: the type of one element.
        granularity: which elements share a scale.
        axis: the axis that keeps one scale an index; groups divide the other axis.
        group_size: elements of a group; the last one may be shorter. -1 is the whole axis.
        block_size: rows and columns of a rectangle, for `per_block`.
        symmetric: whether zero is in the middle; otherwise a zero point moves it.
        full_range: symmetric, but the scale carries a sign so that the lowest code is used too; for signed integers.
        scale_type: the values a scale may have.
        scale_mode: how an e8m0 scale follows from the block's maximum.
        rounding: how elements are rounded.
        float_zero: keep the zero point unrounded.
        seed: for stochastic rounding.

    >>> Grid(Dtype.int4, QSchemeType.per_group, axis=0, group_size=32).weight_block((8, 64))
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
        if self.signed_scale and not has_sign(self.scale_type):
            raise UsageError(
                f"full_range with {self.scale_type.name} scales",
                where=f"a grid of {self.dtype.name}",
                expected="a scale type with a sign: float32, float16, bfloat16, float8_e4m3fn",
                try_="another scale_type, or full_range=False",
            )

    @property
    def asymmetric(self) -> bool:
        """Whether the zero point follows the data; only integers have one."""
        return self.dtype.is_integer and not self.symmetric

    @property
    def free_zero(self) -> bool:
        """Whether zero need not lie on the grid."""
        return self.asymmetric and self.float_zero

    @property
    def has_zero_point(self) -> bool:
        """Whether codes are shifted: asymmetric integers, and symmetric ones in an unsigned type."""
        return self.dtype.is_integer and not (self.symmetric and self.dtype.signed)

    @property
    def zero_storage(self) -> torch.dtype:
        """The torch dtype a zero point is kept in."""
        return torch.float32 if self.float_zero else self.dtype.storage

    @property
    def signed_scale(self) -> bool:
        """Whether a scale carries a sign: only signed integers reach one code farther on one side."""
        return self.full_range and self.symmetric and self.dtype.is_integer and self.dtype.signed

    @property
    def two_level(self) -> bool:
        """Whether one more float32 scale a tensor stands above the blocks' scales."""
        return self.scale_type is ScaleType.float8_e4m3fn

    def replace(self, **fields: Any) -> Grid:
        """A copy with some fields changed."""
        return replace(self, **fields)

    def weight_block(self, shape: tuple[int, ...], stack: int = 0) -> tuple[int, ...]:
        """The block shape for a weight `[stack…, out, in, kernel…]`; every member of the stack has its own scales.

        `axis` counts without the stack. Groups run along the first other axis and take in the kernel's axes whole.
        """
        inner = shape[stack:]
        axes = len(inner)
        axis = self.axis % axes if axes else 0
        block = list(inner)
        if self.granularity in (QSchemeType.per_channel, QSchemeType.per_token, QSchemeType.per_group) and axes:
            block[axis] = 1
            if self.granularity is QSchemeType.per_group and axes > 1 and self.group_size > 0:
                other = 1 if axis == 0 else 0
                block[other] = min(self.group_size, inner[other])
            elif self.granularity is QSchemeType.per_group and self.group_size > 0:
                block[axis] = min(self.group_size, inner[axis])  # a vector has one axis to divide
        elif self.granularity is QSchemeType.per_block and axes:
            for side, width in enumerate(self.block_size[-axes:]):
                block[side] = min(width, inner[side])
        return (1,) * stack + tuple(max(side, 1) for side in block)

    def activation_block(self, shape: tuple[int, ...], *, features: int = -1, dynamic: bool = True) -> tuple[int, ...]:
        """The block shape for an activation whose feature axis is `features`.

        Found at run time, tokens and groups each have a scale of their own. Found beforehand, scales hold for every
        token, so only the feature axis is divided. `per_block` is groups as long as the rectangle is wide.
        """
        if not shape:
            return ()
        features %= len(shape)
        grouped = self.granularity in (QSchemeType.per_group, QSchemeType.per_block)
        width = self.block_size[1] if self.granularity is QSchemeType.per_block else self.group_size
        alone = dynamic and (grouped or self.granularity is QSchemeType.per_token)
        block = [1 if alone else side for side in shape]
        block[features] = shape[features]
        if grouped and width > 0:
            block[features] = min(width, shape[features])
        elif self.granularity is QSchemeType.per_channel:
            block[features] = 1
        return tuple(max(side, 1) for side in block)

    def to_dict(self) -> dict[str, Any]:
        """The grid as plain JSON values, enum members by name.

        >>> Grid(Dtype.int4, symmetric=False).to_dict()["dtype"]
        'int4'
        """
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Grid:
        """The inverse of `to_dict`; fields that are left out have their defaults."""
        known = {field.name: field.default for field in fields(cls)}
        faults = [f"{name}: {nearest(name, known)}" for name in values if name not in known]
        faults += [] if "dtype" in values else ["dtype is missing"]
        found: dict[str, Any] = {}
        for name in known.keys() & values.keys():
            value, kind = values[name], _ENUMS.get(name)
            if kind is not None and value not in kind.__members__:
                faults.append(f"{name}: {value!r} is unknown; {nearest(str(value), kind.__members__)}")
            elif kind is None and not _alike(value, known[name]):
                faults.append(f"{name}: {value!r} is not like {known[name]!r}")
            else:
                found[name] = kind[value] if kind is not None else tuple(value) if name == "block_size" else value
        if faults:
            raise UsageError("not a grid: " + "; ".join(sorted(faults)), expected="what `Grid.to_dict` gives")
        return cls(**found)


_ENUMS: dict[str, type[Enum]] = {
    "dtype": Dtype,
    "granularity": QSchemeType,
    "scale_type": ScaleType,
    "scale_mode": ScaleMode,
    "rounding": RoundType,
}


def _plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, Enum):
        return value.name
    return list(value) if isinstance(value, tuple) else value


def _alike(value: Any, default: Any) -> bool:
    """Whether a JSON value can stand where a default does: `true` is no number, a pair is two numbers."""
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and len(value) == len(default) and all(map(_alike, value, default))
    return type(value) is type(default)
