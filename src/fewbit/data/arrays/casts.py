# SPDX-License-Identifier: Apache-2.0
"""From the dtype that was found to the dtype a model takes: which ways are safe, which are not, and the step itself.

bfloat16 has no numpy type of its own: such values are held as float32, and the model's framework narrows them
when it is fed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import DataError

Array = NDArray[Any]

_FLOAT = re.compile(r"b?float([0-9]+)")


@dataclass(frozen=True, slots=True)
class Cast:
    """What becomes of one array's dtype.

    Args:
        wanted: the dtype of the model's input.
        code: the finding this cast amounts to, or `None` when nothing is worth saying.
        reason: the finding in words.
    """

    wanted: str
    code: str | None = None
    reason: str = ""

    @property
    def refused(self) -> bool:
        """Whether there is no safe way."""
        return self.code == "dtype-refused"


def plan_cast(found: str, wanted: str | None, *, image: bool = False) -> Cast | None:
    """How to come from one dtype to another, or `None` when nothing needs doing.

    Args:
        found: numpy's name of what is there.
        wanted: numpy's name of what the model takes; `None` takes anything.
        image: whether the array looks like pixels.

    >>> plan_cast("int32", "int64").code is None
    True
    >>> plan_cast("float32", "int64").code
    'dtype-refused'
    """
    if wanted is None or found == wanted or {found, wanted} <= {"str", "object"}:
        return None
    kinds = (_kind(found), _kind(wanted))
    if kinds == ("float", "float"):
        if _bits(found) < _bits(wanted):
            return Cast(wanted)
        return Cast(wanted, "dtype-narrowed", f"{found} is narrowed to {wanted}")
    if kinds == ("int", "int"):
        if np.can_cast(found, wanted, "safe"):
            return Cast(wanted)
        return Cast(wanted, "dtype-checked", f"{found} is stored as {wanted}; each value is checked to fit")
    if kinds in (("bool", "int"), ("bool", "float"), ("bytes", "str")):
        return Cast(wanted)
    if kinds == ("int", "bool"):
        return Cast(wanted, "dtype-checked", f"{found} is stored as bool; each value is checked to be 0 or 1")
    if kinds == ("int", "float"):
        return _integers(found, wanted, image)
    if found == "object":
        return Cast(wanted, "dtype-refused", f"a ragged list or an object cannot become {wanted}")
    return Cast(wanted, "dtype-refused", f"{found} cannot become {wanted} without losing values")


def _integers(found: str, wanted: str, image: bool) -> Cast:
    if found == "uint16" and wanted == "bfloat16":
        return Cast(wanted, "bfloat16-bits", "uint16 is read as the bits of bfloat16")
    if found == "uint8" and image:
        return Cast(wanted, "dtype-unscaled", f"uint8 pixels go to a {wanted} input: did you forget to divide by 255?")
    return Cast(wanted, "dtype-integers", f"{found} values go to a {wanted} input")


def _kind(dtype: str) -> str:
    """What casts tell apart. int4 and its like are kinds of their own: numpy cannot hold them."""
    if re.fullmatch(r"u?int(8|16|32|64)", dtype):
        return "int"
    return "float" if is_float(dtype) else dtype


def is_float(dtype: str) -> bool:
    """Whether a dtype holds real numbers: float16, bfloat16, float32, float64 and their like."""
    return _FLOAT.match(dtype) is not None


def _bits(dtype: str) -> int:
    match = _FLOAT.match(dtype)
    return int(match[1]) if match else 0


def apply_cast(array: Array, cast: Cast, name: str) -> Array:
    """The array in the dtype its input takes.

    Raises:
        DataError: a value does not survive; the message names the first one.
    """
    if cast.code == "bfloat16-bits":
        return np.asarray((array.astype(np.uint32) << 16).view(np.float32))
    try:
        if array.dtype.kind == "S" and cast.wanted == "str":
            return np.asarray(np.char.decode(array, "utf-8"))
        with np.errstate(over="ignore", invalid="ignore"):
            result: Array = array.astype("float32" if cast.wanted == "bfloat16" else cast.wanted)
            changed = None
            if cast.code == "dtype-checked":
                changed = (result.astype(array.dtype) != array) | (
                    (result < 0) != (array < 0)
                )  # -1 comes back from uint
            elif cast.code == "dtype-narrowed":
                changed = np.isfinite(array) & ~np.isfinite(result)
    except (UnicodeError, ValueError, TypeError) as error:
        raise _lost(name, array.dtype, cast.wanted, str(error)) from error
    if changed is not None and changed.any():
        where = tuple(int(axis) for axis in np.argwhere(changed)[0])
        raise _lost(name, array.dtype, cast.wanted, f"{array[where]} at {list(where)} does not fit")
    return result


def _lost(name: str, found: object, wanted: str, detail: str) -> DataError:
    return DataError(
        f"input {name!r}: {found} cannot become {wanted}: {detail}",
        code="dtype-refused",
        expected=f"values that {wanted} can hold",
        try_="save the array in the dtype of the model's input",
    )
