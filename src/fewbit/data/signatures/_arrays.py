# SPDX-License-Identifier: Apache-2.0
"""`feed` and `feed_item` of the runtimes that take a dict of numpy arrays under input names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.data.arrays.tensor_to_array import to_array
from fewbit.data.signature import InputSpec, Signature
from fewbit.data.signatures._items import is_call, is_data, refuse_unknown, too_many


def _for_input(value: Any, spec: InputSpec) -> NDArray[Any]:
    """An array, sharing memory where it can; bfloat16 as float32, unless the input is so and `ml_dtypes` knows it."""
    array = to_array(value, name=spec.name, copy=False)
    if spec.dtype == "bfloat16" and array.dtype == np.float32:
        try:
            import ml_dtypes
        except ImportError:
            return array
        return array.astype(ml_dtypes.bfloat16)
    return array


def feed(named: Mapping[str, Any], signature: Signature) -> dict[str, NDArray[Any]]:
    """A batch under input names, in the model's order; names the model does not have are left out."""
    specs = {spec.name: spec for spec in signature.inputs}
    return {name: _for_input(named[name], spec) for name, spec in specs.items() if named.get(name) is not None}


def feed_item(item: Any, signature: Signature) -> dict[str, NDArray[Any]]:
    """A user's own model input under input names.

    Raises:
        DataError: more values than inputs, names the model does not have, or what is no array.
    """
    if isinstance(item, Mapping):
        if len(item) == 1 and len(signature.inputs) == 1:
            item = {signature.names[0]: next(iter(item.values()))}  # one value, one input: the name cannot matter
        refuse_unknown(item, signature)
        return feed(item, signature)
    if is_call(item):
        args, kwargs = item
        return feed_item(args, signature) | feed_item(kwargs, signature)
    values = list(item) if isinstance(item, list | tuple) and not is_data(item) else [item]
    if len(values) > len(signature.inputs):
        raise too_many(len(values), signature)
    return feed(dict(zip(signature.names, values)), signature)
