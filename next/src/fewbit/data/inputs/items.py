# SPDX-License-Identifier: Apache-2.0
"""What users yield, by input name: mappings, tuples, `(x, y)` pairs, `(args, kwargs)` calls, single arrays."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from fewbit.data.inputs.modules import ALL_POSITIONAL
from fewbit.data.inputs.names import LABELS
from fewbit.data.types import Issue, IssueType, SampleError, Severity
from fewbit.model_info import ModelInfo

INPUT_SURPLUS = IssueType(
    "input-surplus", Severity.ERROR, "more values than the model has inputs",
    "{transform=FILE.py:FN} that returns only what the model takes", "raise", ("drop",),
)  # fmt: skip
ISSUES = (INPUT_SURPLUS,)

_SLIP = 0.87
"""How similar two names are that differ in one letter: `imge` and `image`, but not `input_ids` and `inputs`."""


def named_values(item: Any, info: ModelInfo, *, batched: bool = False) -> tuple[dict[str, Any], Any]:
    """An item as values by input name, and the labels that were separated; `None` if there are none.

    Args:
        item: what a loader, a transform or a source yields.
        info: the model.
        batched: whether it is a complete input; only then a dict can be the one input of `forward(batch)`.

    Raises:
        SampleError: more values than the model has inputs.

    >>> from fewbit.model_info import TensorInfo
    >>> named_values((np.zeros((2, 3)), [0, 1]), ModelInfo("m", "ONNX", "onnx", inputs=(TensorInfo("x"),)))[1]
    [0, 1]
    """
    item, labels = take_labels(item, info)
    keywords: Mapping[str, Any] = {}
    if isinstance(item, Mapping) and not (batched and _is_one_input(item, info)):
        item, keywords = (), {str(name): value for name, value in item.items()}
    elif _is_call(item):
        item, keywords = item
    elif isinstance(item, Mapping) or not _is_several(item, info, labels is not None):
        item = (item,)
    names = [tensor.name for tensor in info.inputs]
    if len(item) > len(names) and not info.facts.get("open_ended"):
        message = f"{len(item)} values for a model that takes {', '.join(names) or 'nothing'}"
        raise SampleError(Issue(INPUT_SURPLUS, message))
    names += [f"input_{position}" for position in range(len(names), len(item))]
    values = dict(zip(names, item)) | dict(keywords)
    return {name: value for name, value in values.items() if value is not None}, labels


def take_labels(item: Any, info: ModelInfo) -> tuple[Any, Any]:
    """What of an item is for the model, and the labels that are not.

    Labels are the second of a pair `(x, y)` if the model takes one input, or if it needs at most one and `y` looks like
    labels: a number, a text, a list, or integers with at most one axis. In a mapping they go by name.
    """
    names = {tensor.name for tensor in info.inputs}
    if not isinstance(item, Mapping):
        return (item[0], item[1]) if _is_labelled_pair(item, info, names) else (item, None)
    labels = {name: item[name] for name in item if name in LABELS and name not in names}
    if not labels or info.facts.get("open_ended") or len(labels) == len(item):
        return item, None
    rest = {name: value for name, value in item.items() if name not in labels}
    return rest, next(iter(labels.values())) if len(labels) == 1 else labels


def to_array(value: Any) -> np.ndarray:
    """An array of a tensor, a number, a text or a list; shares memory where it can.

    Raises:
        ValueError: there is no array in it.
    """
    try:
        if hasattr(value, "detach"):
            tensor = value.detach().cpu().resolve_conj().resolve_neg()
            value = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"no array: {error}") from error
    if array.dtype.kind == "O":
        raise ValueError(f"a {type(value).__name__} is no array of numbers")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def dtype_name(value: Any, array: np.ndarray) -> str:
    """numpy's name of the dtype that a value had before it became an array; `str` and `bytes` for text."""
    if array.dtype.kind in "US":
        return "str" if array.dtype.kind == "U" else "bytes"
    return str(value.dtype).removeprefix("torch.") if hasattr(value, "detach") else array.dtype.name


def is_nested(value: Any) -> bool:
    """Whether a value is a structure of tensors, not one array, number, text, or list of numbers."""
    if isinstance(value, list | tuple):
        return any(hasattr(item, "shape") or isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _is_call(item: Any) -> bool:
    """Whether an item is the call itself: `(args, kwargs)`."""
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], tuple) and isinstance(item[1], dict)


def _is_data(item: Any) -> bool:
    """Whether a list is values (numbers, texts, nested lists), not several inputs."""
    return isinstance(item, list) and bool(item) and all(isinstance(v, bool | int | float | str | list) for v in item)


def _is_several(item: Any, info: ModelInfo, from_pair: bool) -> bool:
    """Whether a list or tuple is inputs in order; a list of images of different sizes is one input of a detector."""
    if not isinstance(item, list | tuple) or _is_data(item):
        return False
    if isinstance(item, tuple) or not info.takes_objects or len(_required(info)) > 1:
        return True
    if len(info.inputs) == 1 and len(item) != 1:
        return False
    return not ((from_pair or len(item) > 1) and all(_rank(value) == 3 for value in item))


def _is_labelled_pair(item: Any, info: ModelInfo, names: set[str]) -> bool:
    any_number = info.facts.get("positional", 0) >= ALL_POSITIONAL  # forward(*tensors)
    if not isinstance(item, list | tuple) or len(item) != 2 or any_number or _is_call(item) or _is_data(item):
        return False
    first, second = item
    if isinstance(item, list) and info.takes_objects and _rank(first) == _rank(second) == 3:
        return False  # two images for a detector
    if len(info.inputs) == 1:
        return True
    if isinstance(first, Mapping):
        return not (isinstance(second, Mapping) and set(second) & names)
    return len(_required(info)) <= 1 and _looks_like_labels(second)


def _required(info: ModelInfo) -> list[str]:
    return [tensor.name for tensor in info.inputs if tensor.required]


def _rank(value: Any) -> int | None:
    if isinstance(value, bool | int | float):
        return 0
    return len(value.shape) if hasattr(value, "shape") and hasattr(value, "dtype") else None


def _looks_like_labels(value: Any) -> bool:
    rank = _rank(value)
    if rank is None:
        return isinstance(value, str | list | tuple)
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return rank == 0 or (rank == 1 and kind.startswith(("int", "uint", "bool")))


def _is_one_input(item: Mapping[str, Any], info: ModelInfo) -> bool:
    """Whether a mapping is itself the only input of a module, `forward(batch)`, and not its inputs by name."""
    if not item or not info.takes_objects or info.facts.get("open_ended") or len(_required(info)) != 1:
        return False
    return not any(_is_slip(str(name), tensor.name) for name in item for tensor in info.inputs)


def _is_slip(name: str, expected: str) -> bool:
    """Whether a name is a known one, or what a slip of the finger makes of it."""
    name, expected = name.casefold(), expected.casefold()
    return sorted(name) == sorted(expected) or SequenceMatcher(None, name, expected).ratio() > _SLIP
