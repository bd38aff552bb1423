# SPDX-License-Identifier: Apache-2.0
"""A tensor of any device, layout and dtype as a numpy array: the one way from a framework's values to numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import DataError

_WIDENED = ("bfloat16", "float8", "float4")


def source_dtype(value: Any) -> str:
    """The dtype a tensor or array has in its own framework, by name."""
    return str(value.dtype).removeprefix("torch.")


def to_array(value: Any, *, bfloat16: str = "float32", name: str = "input", copy: bool = True) -> NDArray[Any]:
    """The values of a tensor on the host, dense and in native byte order.

    Args:
        value: a tensor, an array, a picture, a number, a text or lists of them.
        bfloat16: how to keep the dtype numpy lacks: `"float32"`, exact and readable everywhere, or `"uint16"`, the
            bits as they are.
        name: for messages.
        copy: share no memory with the value; without it, memory is shared where that is possible.

    Raises:
        DataError: the tensor has no values (meta device) or no dense form (nested); a list is ragged; an object is
            none of these.

    >>> to_array([1, 2]).tolist()
    [1, 2]
    """
    try:
        array = _dense(value.detach(), copy) if hasattr(value, "detach") else np.array(value, copy=copy or None)
    except (RuntimeError, TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise _no_array(name, f"is a {type(value).__name__} without an array form: {_first_line(error)}") from error
    if array.dtype.isbuiltin == 2 and array.dtype.name.startswith(_WIDENED):  # ml_dtypes
        array = array.astype(np.float32)
    if array.dtype.kind in "OV" and array.dtype.isbuiltin != 2 and not _holds_text(array):
        raise _no_array(name, f"is a {type(value).__name__} of {array.dtype}, which is not data a model takes")
    if bfloat16 == "uint16" and hasattr(value, "dtype") and source_dtype(value) == "bfloat16":
        return _bits(array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _dense(tensor: Any, copy: bool) -> NDArray[Any]:
    if tensor.is_meta:
        raise ValueError("it is on the meta device and has no values")
    if tensor.is_nested:
        raise ValueError("it is nested and has no single shape")
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    dtype = source_dtype(tensor)
    tensor = tensor.to("cpu", copy=copy).resolve_conj().resolve_neg()
    if dtype.startswith(_WIDENED):
        tensor = tensor.float()
    array: NDArray[Any] = (tensor.cfloat() if dtype == "complex32" else tensor).numpy()
    return array


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """The upper halves of float32 values, which are the bits of bfloat16."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    return (flat >> 16).astype(np.uint16).reshape(array.shape)


def _holds_text(array: NDArray[Any]) -> bool:
    return array.dtype.kind == "O" and array.size > 0 and all(isinstance(text, str) for text in array.flat)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _no_array(name: str, what: str) -> DataError:
    return DataError(
        f"input {name!r} {what}",
        code="dtype-refused",
        expected="numbers, booleans or text of one shape",
        try_="a transform_fn that returns arrays or tensors; pad what differs in length",
    )
