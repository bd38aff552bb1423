# SPDX-License-Identifier: Apache-2.0
"""From the dtype of an array to that of an input: which casts are safe, and the cast itself, checked by value."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from fewbit.data.types import IssueType, Severity

_SAVE = "save the array in the dtype of the input"
DTYPE_NARROWED = IssueType("dtype-narrowed", Severity.NOTE, "floats narrowed to the model's dtype", _SAVE, "repair")
DTYPE_CHECKED = IssueType(
    "dtype-checked", Severity.WARNING, "integers in another type than the input, each value checked", _SAVE, "repair",
    aliases=("dtype-integers",),
)  # fmt: skip
DTYPE_UNSCALED = IssueType(
    "dtype-unscaled", Severity.WARNING, "uint8 pixels for a float input, probably not scaled",
    "save (array / 255 - mean) / std, or give {mean} and {std} with images", "repair",
)  # fmt: skip
DTYPE_REFUSED = IssueType(
    "dtype-refused", Severity.ERROR, "array that cannot take the input's dtype without loss", _SAVE, "raise", ("drop",),
)  # fmt: skip
BFLOAT16_BITS = IssueType(
    "bfloat16-bits", Severity.WARNING, "uint16 values read as the bits of bfloat16",
    "save bfloat16 tensors as float32: tensor.float().numpy()", "repair",
)  # fmt: skip
ISSUES = (DTYPE_NARROWED, DTYPE_CHECKED, DTYPE_UNSCALED, DTYPE_REFUSED, BFLOAT16_BITS)

_FLOAT = re.compile(r"b?float([0-9]+)")
_SAFE = {("bool", "integer"), ("bool", "float"), ("bytes", "str")}


class Cast(NamedTuple):
    """What happens to the dtype of one array; `issue` is `None` if it is not worth reporting."""

    dtype: str
    issue: IssueType | None = None
    message: str = ""


def plan_cast(dtype: str, target: str | None, *, image: bool = False) -> Cast | None:
    """How to get from one dtype to another; `None` if there is nothing to do.

    Args:
        dtype: numpy's name of what is there; `str` and `object` for text and for what is no array.
        target: numpy's name of what the model takes; `None` takes anything.
        image: whether the array looks like pixels.

    >>> plan_cast("int32", "int64").issue is None, plan_cast("float32", "int64").issue.code
    (True, 'dtype-refused')
    """
    if target is None or dtype == target:
        return None
    kinds = (_kind(dtype), _kind(target))
    if kinds in _SAFE or (kinds == ("integer", "integer") and np.can_cast(dtype, target, "safe")):
        return Cast(target)
    if kinds == ("float", "float"):
        narrowed = Cast(target, DTYPE_NARROWED, f"{dtype} is narrowed to {target}")
        return Cast(target) if _float_bits(dtype) < _float_bits(target) else narrowed
    if (dtype, target) == ("uint16", "bfloat16"):
        return Cast(target, BFLOAT16_BITS, "uint16 is read as the bits of bfloat16")
    if kinds == ("integer", "float") and dtype == "uint8" and image:
        return Cast(target, DTYPE_UNSCALED, f"uint8 pixels for a {target} input: divide by 255?")
    if kinds in (("integer", "integer"), ("integer", "bool"), ("integer", "float")):
        return Cast(target, DTYPE_CHECKED, f"{dtype} becomes {target}; each value is checked")
    what = "a ragged list or an object" if dtype == "object" else dtype
    return Cast(target, DTYPE_REFUSED, f"{what} cannot become {target} without losing values")


def apply_cast(array: np.ndarray, cast: Cast) -> np.ndarray:
    """The array in the dtype of its input.

    bfloat16 needs `ml_dtypes`, which comes with onnx; without it the values stay float32.

    Raises:
        ValueError: a value does not survive; the message names the first one.
    """
    if cast.dtype == "str":
        return np.char.decode(array, "utf-8").astype(object)
    if cast.issue is BFLOAT16_BITS:
        return _as_bfloat16((array.astype(np.uint32) << 16).view(np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        result = _as_bfloat16(array) if cast.dtype == "bfloat16" else array.astype(cast.dtype)
        if cast.issue is None:
            return result
        if is_float(cast.dtype):
            lost = np.isfinite(array) & ~np.isfinite(result.astype(np.float64))
        else:
            # Casting back shows what was cut off; -1 comes back from an unsigned type, so the sign is compared too.
            lost = (result.astype(array.dtype) != array) | ((result < 0) != (array < 0))
    if lost.any():
        position = tuple(int(axis) for axis in np.argwhere(lost)[0])
        value = f"{array[position]} at {list(position)}"
        raise ValueError(f"{array.dtype} cannot become {cast.dtype}: {value} does not fit")
    return result


def is_float(dtype: str | None) -> bool:
    """Whether a dtype holds real numbers: float16, bfloat16, float32, float64 and the like."""
    return dtype is not None and _FLOAT.match(dtype) is not None


def _as_bfloat16(array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, np.float32)
    try:
        import ml_dtypes
    except ImportError:
        return array
    return array.astype(ml_dtypes.bfloat16)


def _kind(dtype: str) -> str:
    """What casts distinguish; int4 and the like are separate kinds, since numpy cannot hold them."""
    if re.fullmatch(r"u?int(8|16|32|64)", dtype):
        return "integer"
    return "float" if is_float(dtype) else dtype


def _float_bits(dtype: str) -> int:
    match = _FLOAT.match(dtype)
    return int(match[1]) if match else 0
