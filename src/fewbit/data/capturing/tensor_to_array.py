# SPDX-License-Identifier: Apache-2.0
"""A tensor of any device, layout and dtype as a numpy array of its own, sharing no memory with it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import DataError

_WIDENED = ("bfloat16", "float8", "float4")


def source_dtype(value: Any) -> str:
    """The dtype a tensor or array has in its own framework, by name."""
    return str(value.dtype).removeprefix("torch.")


def to_array(value: Any, *, bfloat16: str = "float32", name: str = "input") -> NDArray[Any]:
    """A copy of a tensor on the host.

    Args:
        value: a tensor, an array or a number.
        bfloat16: how to keep the dtype numpy lacks: `"float32"`, exact and readable everywhere, or `"uint16"`, the
            bits as they are.
        name: for messages.

    Raises:
        DataError: the tensor has no values (meta device), or no dense form (nested).
    """
    if not hasattr(value, "detach"):
        return _checked(np.array(value), name)
    if getattr(value, "is_meta", False) or getattr(value, "is_nested", False):
        kind = "is on the meta device and has no values" if value.is_meta else "is nested and has no single shape"
        raise DataError(f"input {name!r} {kind}", try_="load the weights and inputs, or pad to one shape")
    try:
        return _dense(value.detach(), bfloat16)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise DataError(f"input {name!r} of type {type(value).__name__} has no array form: {error}") from error


def _dense(tensor: Any, bfloat16: str) -> NDArray[Any]:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    dtype = source_dtype(tensor)
    tensor = tensor.to("cpu", copy=True).resolve_conj().resolve_neg()
    if not dtype.startswith(_WIDENED):
        array: NDArray[Any] = (tensor.cfloat() if dtype == "complex32" else tensor).numpy()
        return array
    array = tensor.float().numpy()
    if dtype == "bfloat16" and bfloat16 == "uint16":
        return (array.view(np.uint32) >> 16).astype(np.uint16) if array.ndim else _bits(array)
    return array


def _bits(scalar: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(scalar.reshape(1).view(np.uint32)[0] >> 16, dtype=np.uint16)


def _checked(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.dtype.kind in "OV" and array.dtype.isbuiltin != 2:
        raise DataError(
            f"input {name!r} is an array of {array.dtype}, which is not data a model takes",
            expected="numbers, booleans or text",
        )
    return array
