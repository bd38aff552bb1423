# SPDX-License-Identifier: Apache-2.0
"""From the arguments of a call to samples: tensors and numbers at any depth as arrays, cut along the batch axis."""

from __future__ import annotations

from collections import Counter
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
    items: Any = None
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple) and not hasattr(value, "batch_sizes"):  # of a PackedSequence
        items = enumerate(value)
    if items is None:
        yield name, value
    else:
        for key, item in items:
            yield from leaves(f"{name}.{key}", item)


def is_array(value: Any) -> bool:
    """Whether a value is a tensor, an array or a number; flags, text and other objects are none."""
    numeric = isinstance(value, int | float | complex | np.ndarray | np.generic) and not isinstance(value, bool)
    return numeric or hasattr(value, "detach")


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
    if tensor.is_meta or tensor.is_nested:
        raise ValueError("it is on the meta device" if tensor.is_meta else "it is nested and has no single shape")
    if getattr(tensor, "is_quantized", False):  # PyTorch will remove these types
        tensor = tensor.dequantize()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    tensor = tensor.to("cpu", copy=True).resolve_conj().resolve_neg()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype.startswith(_WIDENED):
        tensor = tensor.float()
    return np.asarray((tensor.cfloat() if dtype == "complex32" else tensor).numpy())


class BatchAxis:
    """Which inputs of a module have the batch as their first axis, learned from calls.

    The batch size is what most inputs of two or more axes have in common. An axis of 1 next to a larger batch is
    broadcast. Any other size is no batch: the input is copied into every sample. A role once learned holds, so that a
    batch that happens to be as long as a sequence changes nothing.

    >>> samples = BatchAxis().split({"x": np.zeros((8, 3, 4)), "mask": np.zeros((1, 4)), "scale": np.array(2.0)})
    >>> len(samples), {name: array.shape for name, array in samples[0].items()}
    (8, {'x': (3, 4), 'mask': (4,), 'scale': ()})
    """

    def __init__(self) -> None:
        self._batched: set[str] = set()
        self._shared: set[str] = set()

    def split(self, arrays: Mapping[str, Array]) -> list[dict[str, Array]]:
        """The samples of one call, without batch axis.

        Raises:
            DataError: inputs that were batched before disagree about the batch size.
        """
        sizes = {name: len(array) for name, array in arrays.items() if array.ndim and name not in self._shared}
        batch = self._batch_size(arrays, sizes)
        disagree = {size for name, size in sizes.items() if name in self._batched} - {1, batch}
        if batch is None or disagree:
            raise DataError(
                "the inputs of a call disagree about the batch size", code="batch-mismatch",
                where=", ".join(f"{name}: {size}" for name, size in sizes.items()),
                expected="the same first axis as in earlier calls, or 1", hint="record calls of one kind at a time",
            )  # fmt: skip
        self._batched |= {name for name, size in sizes.items() if size == batch > 1}
        self._shared |= {name for name, size in sizes.items() if size not in (1, batch)}
        whole = {name: array for name, array in arrays.items() if name in self._shared or not array.ndim}
        return [
            {name: array if name in whole else array[index if len(array) > 1 else 0] for name, array in arrays.items()}
            for index in range(batch)
        ]

    def _batch_size(self, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> int | None:
        """`None` if inputs that were batched before have several sizes."""
        known = {size for name, size in sizes.items() if name in self._batched}
        if known:
            larger = known - {1}
            return None if len(larger) > 1 else max(known)
        votes = [size for name, size in sizes.items() if arrays[name].ndim > 1] or list(sizes.values())
        size, count = next(iter(Counter(size for size in votes if size != 1).most_common(1)), (1, 0))
        return 1 if votes[0] == 1 and votes.count(1) > count else size
