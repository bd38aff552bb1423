# SPDX-License-Identifier: Apache-2.0
"""Reading what a user's loader yields: is the second of a pair a label, and which names are answers?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.data.signature import Signature
from fewbit.errors import DataError, nearest

ANSWERS = frozenset({"label", "labels", "target", "targets", "y"})


def rank(value: Any) -> int | None:
    """The number of axes of a tensor, an array or a number; `None` for anything else."""
    if isinstance(value, bool | int | float):
        return 0
    return len(value.shape) if hasattr(value, "shape") and hasattr(value, "dtype") else None


def drops_labels(item: Any, signature: Signature) -> bool:
    """Whether an item is a pair `(x, y)` whose `y` is not for the model.

    That is so when the model takes one input, or when it needs one and `y` looks like labels: a number, a text, a
    list, or integers with one axis at most.

    >>> import numpy as np
    >>> from fewbit.data.signature import InputSpec
    >>> drops_labels((np.zeros((2, 3)), np.array([0, 1])), Signature("torch", (InputSpec("x"),)))
    True
    """
    if not isinstance(item, list | tuple) or len(item) != 2 or signature.open_ended:
        return False
    first, second = item
    if isinstance(first, tuple) and isinstance(second, dict):
        return False  # the call itself: (args, kwargs)
    required = sum(spec.required for spec in signature.inputs)
    if len(signature.inputs) == 1:
        pictures = isinstance(item, list) and rank(first) == rank(second) == 3
        return not (pictures and signature.framework == "torch")  # a list of images is one input for a detector
    if isinstance(first, Mapping):
        return not isinstance(second, Mapping)
    return required == 1 and _looks_like_labels(second)


def _looks_like_labels(value: Any) -> bool:
    axes = rank(value)
    if axes is None:
        return isinstance(value, str | list | tuple)
    kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    return axes == 0 or (axes == 1 and kind.startswith(("int", "uint", "bool", "long")))


def without_answers(item: Mapping[str, Any], signature: Signature) -> dict[str, Any]:
    """The entries of a mapping that the model takes; names of answers are left out unless the model knows them.

    Raises:
        DataError: a name the model does not have and that is no answer.
    """
    known = set(signature.names)
    unknown = [name for name in item if name not in known and not signature.open_ended]
    strange = [name for name in unknown if name not in ANSWERS]
    if strange:
        raise DataError(
            f"the model takes no input called {', '.join(map(repr, strange))}",
            code="input-extra",
            where=signature.source,
            expected="; ".join(nearest(str(name), signature.names) for name in strange),
            try_="a transform_fn that returns the model's inputs under their names",
        )
    return {name: value for name, value in item.items() if name not in unknown}


def too_many(count: int, signature: Signature) -> DataError:
    """The error for an item with more values than the model has inputs."""
    return DataError(
        f"an item has {count} values, the model takes {len(signature.inputs)}",
        code="input-extra",
        where=signature.source,
        expected=", ".join(signature.names) or "no input at all",
        try_="a transform_fn that returns only what the model takes, such as `lambda item: item[0]`",
    )
