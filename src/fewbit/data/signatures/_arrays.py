# SPDX-License-Identifier: Apache-2.0
"""Inputs for the runtimes that take a dict of numpy arrays under input names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.signature import InputSpec, Signature
from fewbit.data.signatures._items import drops_labels, too_many, without_answers
from fewbit.errors import DataError


def to_numpy(value: Any, spec: InputSpec) -> NDArray[Any]:
    """A tensor, array or number as a numpy array, sharing memory where it can.

    bfloat16 becomes float32, unless the input itself is bfloat16 and `ml_dtypes` knows that type.
    """
    if hasattr(value, "detach"):
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        value = tensor.float().numpy() if str(tensor.dtype) == "torch.bfloat16" else tensor.numpy()
    array: NDArray[Any] = np.asarray(value)
    if array.dtype.kind == "O" and spec.dtype != "str":
        raise DataError(
            f"input {spec.name!r} is given a {type(value).__name__}, which is no array",
            code="input-shape",
            expected=str(spec),
            try_="a transform_fn that returns arrays or tensors",
        )
    if spec.dtype == "bfloat16" and array.dtype == np.float32:
        return _as_bfloat16(array)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" and spec.dtype != "bfloat16" else array


def _as_bfloat16(array: NDArray[Any]) -> NDArray[Any]:
    try:
        import ml_dtypes
    except ImportError:
        return array
    return array.astype(ml_dtypes.bfloat16)


def feed_arrays(named: Mapping[str, Any], signature: Signature) -> dict[str, NDArray[Any]]:
    """A batch under input names, in the model's order; names the model does not have are left out."""
    specs = {spec.name: spec for spec in signature.inputs}
    return {name: to_numpy(named[name], spec) for name, spec in specs.items() if named.get(name) is not None}


def feed_array_item(item: Any, signature: Signature) -> dict[str, NDArray[Any]]:
    """A user's own model input under input names.

    Raises:
        DataError: more values than inputs, or names the model does not have.
    """
    if drops_labels(item, signature):
        item = item[0]
    if isinstance(item, Mapping):
        if len(item) == 1 and len(signature.inputs) == 1:
            item = {signature.names[0]: next(iter(item.values()))}  # one value, one input: the name cannot matter
        return feed_arrays(without_answers(item, signature), signature)
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], tuple) and isinstance(item[1], dict):
        args, kwargs = item
        return feed_array_item(args, signature) | feed_array_item(kwargs, signature)
    values = list(item) if isinstance(item, list | tuple) and not _is_data(item) else [item]
    if len(values) > len(signature.inputs):
        raise too_many(len(values), signature)
    return feed_arrays(dict(zip(signature.names, values)), signature)


def _is_data(item: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list is the values themselves (numbers, nested numbers) and not several inputs."""
    return bool(item) and all(isinstance(value, bool | int | float | list) for value in item)
