# SPDX-License-Identifier: Apache-2.0
"""The arrays in the arguments of a call: tensors of any kind and numbers, at any depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.errors import DataError

Array = NDArray[Any]
_WIDENED = ("bfloat16", "float8", "float4")
"""Types that numpy lacks; every value of them is a float32."""


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The innermost values of an argument, with dotted names.

    >>> list(leaves("past", [{"key": 1, "value": 2}]))
    [('past.0.key', 1), ('past.0.value', 2)]
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(f"{name}.{key}", item)
    elif isinstance(value, list | tuple) and not hasattr(value, "batch_sizes"):  # of a PackedSequence
        for position, item in enumerate(value):
            yield from leaves(f"{name}.{position}", item)
    else:
        yield name, value


def is_array(value: Any) -> bool:
    """Whether a value is a tensor, an array or a number; flags, text and other objects are none."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float | complex | np.ndarray | np.generic) or hasattr(value, "detach")


def to_array(name: str, value: Any) -> Array:
    """A copy of a tensor, array or number on the host, dense, in a type that numpy has.

    Raises:
        DataError: it has no values or no single shape.
    """
    try:
        array = _tensor_to_array(value.detach()) if hasattr(value, "detach") else np.array(value)
        if array.dtype.kind == "O":
            raise ValueError("it holds Python objects")
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise DataError(
            f"the input {name!r} cannot be stored as an array: {reason}", code="dtype-refused", where=name,
            expected="a tensor with values and one shape", hint="convert it before it is given to the model",
        ) from error  # fmt: skip
    return array


def _tensor_to_array(tensor: Any) -> Array:
    if tensor.is_meta:
        raise ValueError("it is on the meta device and has no values")
    if tensor.is_nested:
        raise ValueError("it is nested and has no single shape")
    if getattr(tensor, "is_quantized", False):  # PyTorch will remove these types
        tensor = tensor.dequantize()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    tensor = tensor.to("cpu", copy=True).resolve_conj().resolve_neg()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype.startswith(_WIDENED):
        tensor = tensor.float()
    elif dtype == "complex32":
        tensor = tensor.cfloat()
    return np.asarray(tensor.numpy())
