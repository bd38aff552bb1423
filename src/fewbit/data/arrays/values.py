# SPDX-License-Identifier: Apache-2.0
"""What is odd about an array's values: not numbers, all the same, ids outside the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.findings import Code, Severity

Array = NDArray[Any]

VALUE_CODES = {
    "array-nan": Code(
        Severity.ERROR,
        "an array holds NaN, which spoils every statistic it touches",
        "find the step that makes it (0/0, log of 0) or drop the sample",
        "keep",
        ("raise", "drop"),
    ),
    "array-inf": Code(
        Severity.WARN,
        "an array holds infinities",
        "right for an attention mask, a fault anywhere else; use a large finite number",
        "keep",
        ("raise", "drop"),
    ),
    "array-zero": Code(
        Severity.WARN, "an array is all zeros", "drop the sample if it is not meant", "keep", ("raise", "drop")
    ),
    "array-constant": Code(
        Severity.WARN, "an array has one value throughout", "drop the sample if not meant", "keep", ("raise", "drop")
    ),
    "array-empty": Code(
        Severity.WARN, "an array has no values at all", "drop the sample if it is not meant", "keep", ("raise", "drop")
    ),
    "id-range": Code(
        Severity.ERROR,
        "a token id lies outside the model's vocabulary",
        "use the tokenizer that belongs to the model",
        "keep",
        ("raise", "drop"),
    ),
}
"""What `value_faults` can find."""


@dataclass(frozen=True, slots=True)
class ValueFault:
    """One array whose values look wrong."""

    code: str
    message: str
    name: str


def value_faults(arrays: Mapping[str, Array], *, vocab_size: int | None = None) -> list[ValueFault]:
    """What is odd about the values of a sample's arrays.

    Args:
        arrays: by name. Integers may well be constant (a mask, a segment), so only floats and pixels are called so.
        vocab_size: how many token ids the model knows; arrays called `…ids` are held against it, types and positions
            aside.

    >>> [fault.code for fault in value_faults({"x": np.zeros((2, 2), np.float32)})]
    ['array-zero']
    """
    faults = []
    for name, array in arrays.items():
        code, message = _look(array)
        if code is None and vocab_size is not None and array.dtype.kind in "iu" and _holds_ids(name):
            code, message = _ids(array, vocab_size)
        if code is not None:
            faults.append(ValueFault(code, f"array {name!r} {message}", name))
    return faults


def _look(array: Array) -> tuple[str | None, str]:
    if array.size == 0:
        return "array-empty", f"has the shape {list(array.shape)} and no values"
    if array.dtype.kind not in "fc" and not (array.dtype == np.uint8 and array.ndim >= 2):
        return None, ""
    with np.errstate(all="ignore"):
        low, high = array.min(), array.max()
        if not (np.isfinite(low) and np.isfinite(high)):
            return _not_finite(array)
    if array.size > 1 and low == high:
        return ("array-constant", f"is {low} throughout") if low else ("array-zero", "is all zeros")
    return None, ""


def _not_finite(array: Array) -> tuple[str, str]:
    for code, word, odd in (("array-nan", "NaN", np.isnan(array)), ("array-inf", "infinite", np.isinf(array))):
        count = int(odd.sum())
        if count:
            first = [int(axis) for axis in np.argwhere(odd)[0]]
            return code, f"has {count:,} {word} of {array.size:,} values, the first at {first}"
    raise AssertionError("a value that is not finite is NaN or infinite")


def _holds_ids(name: str) -> bool:
    lower = name.lower()
    return lower.endswith("ids") and not any(word in lower for word in ("type", "position", "segment"))


def _ids(array: Array, vocab_size: int) -> tuple[str | None, str]:
    low, high = int(array.min()), int(array.max())
    if low >= 0 and high < vocab_size:
        return None, ""
    return "id-range", f"has the id {low if low < 0 else high}; the vocabulary has ids 0 to {vocab_size - 1}"
