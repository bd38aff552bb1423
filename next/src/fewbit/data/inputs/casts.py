# SPDX-License-Identifier: Apache-2.0
"""From the dtype of an array to that of an input: which casts are safe, and the cast itself, checked by value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewbit.data.types import IssueType, Severity

_SAVE = "save the array in the dtype of the input"
DTYPE_NARROWED = IssueType("dtype-narrowed", Severity.NOTE, "floats narrowed to the model's dtype", _SAVE, "repair")
DTYPE_CHECKED = IssueType(
    "dtype-checked", Severity.WARNING, "integers in a wider type than the input, each value checked", _SAVE, "repair",
)  # fmt: skip
DTYPE_INTEGERS = IssueType("dtype-integers", Severity.WARNING, "integers for a float input", _SAVE, "repair")
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
ISSUES = (DTYPE_NARROWED, DTYPE_CHECKED, DTYPE_INTEGERS, DTYPE_UNSCALED, DTYPE_REFUSED, BFLOAT16_BITS)

_FLOAT = re.compile(r"b?float([0-9]+)")
_INTEGER = re.compile(r"u?int(8|16|32|64)")


@dataclass(frozen=True, slots=True)
class Cast:
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
    if kinds == ("float", "float"):
        if _bits(dtype) < _bits(target):
            return Cast(target)
        return Cast(target, DTYPE_NARROWED, f"{dtype} is narrowed to {target}")
    if kinds == ("integer", "integer"):
        if np.can_cast(dtype, target, "safe"):
            return Cast(target)
        return Cast(target, DTYPE_CHECKED, f"{dtype} becomes {target}; each value is checked")
    if kinds in (("bool", "integer"), ("bool", "float"), ("bytes", "str")):
        return Cast(target)
    if kinds == ("integer", "bool"):
        return Cast(target, DTYPE_CHECKED, f"{dtype} becomes bool; each value is checked to be 0 or 1")
    if kinds == ("integer", "float"):
        if dtype == "uint16" and target == "bfloat16":
            return Cast(target, BFLOAT16_BITS, "uint16 is read as the bits of bfloat16")
        if dtype == "uint8" and image:
            return Cast(target, DTYPE_UNSCALED, f"uint8 pixels for a {target} input: divide by 255?")
        return Cast(target, DTYPE_INTEGERS, f"{dtype} values for a {target} input")
    if dtype == "object":
        return Cast(target, DTYPE_REFUSED, f"a ragged list or an object cannot become {target}")
    return Cast(target, DTYPE_REFUSED, f"{dtype} cannot become {target} without losing values")


def apply_cast(array: np.ndarray, cast: Cast) -> np.ndarray:
    """The array in the dtype of its input.

    bfloat16 needs `ml_dtypes`, which comes with onnx; without it the values stay float32.

    Raises:
        ValueError: a value does not survive; the message names the first one.
    """
    if cast.issue is BFLOAT16_BITS:
        return _as_bfloat16((array.astype(np.uint32) << 16).view(np.float32))
    if cast.dtype == "str":
        return np.char.decode(array, "utf-8").astype(object)
    narrow_first = cast.dtype == "bfloat16"
    with np.errstate(over="ignore", invalid="ignore"):
        result: np.ndarray = array.astype("float32" if narrow_first else cast.dtype)
        if cast.issue is DTYPE_CHECKED:
            # Casting back shows what was cut off; -1 comes back from an unsigned type, so the sign is compared too.
            lost = (result.astype(array.dtype) != array) | ((result < 0) != (array < 0))
        elif cast.issue is not None:
            finite = np.isfinite(array)
            result = _as_bfloat16(result) if narrow_first else result
            lost = finite & ~np.isfinite(result.astype(np.float32) if narrow_first else result)
        else:
            return _as_bfloat16(result) if narrow_first else result
    if lost.any():
        position = tuple(int(axis) for axis in np.argwhere(lost)[0])
        raise ValueError(
            f"{array.dtype} cannot become {cast.dtype}: {array[position]} at {list(position)} does not fit"
        )
    return result


def is_float(dtype: str | None) -> bool:
    """Whether a dtype holds real numbers: float16, bfloat16, float32, float64 and the like."""
    return dtype is not None and _FLOAT.match(dtype) is not None


def _as_bfloat16(array: Any) -> np.ndarray:
    try:
        import ml_dtypes
    except ImportError:
        return np.asarray(array, np.float32)
    return np.asarray(array, np.float32).astype(ml_dtypes.bfloat16)


def _kind(dtype: str) -> str:
    """What casts distinguish; int4 and the like are separate kinds, since numpy cannot hold them."""
    if _INTEGER.fullmatch(dtype):
        return "integer"
    return "float" if is_float(dtype) else dtype


def _bits(dtype: str) -> int:
    match = _FLOAT.match(dtype)
    return int(match[1]) if match else 0
