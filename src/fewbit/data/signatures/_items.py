# SPDX-License-Identifier: Apache-2.0
"""Reading what a user's loader yields: what of it is for the model, and what are labels?"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

from fewbit.data.arrays.input_names import ANSWERS
from fewbit.data.signature import Signature
from fewbit.errors import DataError, nearest

_SLIP = 0.87
"""How alike two names are that differ in a letter: `imge` and `image`, but not `input_ids` and `inputs`."""


def take_labels(item: Any, signature: Signature) -> tuple[Any, Any]:
    """An item as what is for the model, and the labels that are not; `None` where there are none.

    Labels are the second of a pair `(x, y)` when the model takes one input, or when it needs one at most and `y`
    looks like labels: a number, a text, a list, or integers with one axis at most. In a mapping they are what goes by
    the name of an answer and is no input; one with other names unknown to the model is left whole.

    >>> import numpy as np
    >>> from fewbit.data.signature import InputSpec
    >>> take_labels((np.zeros((2, 3)), [0, 1]), Signature("torch", (InputSpec("x"),)))[1]
    [0, 1]
    """
    if isinstance(item, Mapping):
        unknown = [name for name in item if name not in signature.names]
        labels = {name: item[name] for name in unknown if name in ANSWERS}
        if not labels or signature.open_ended or len(labels) != len(unknown) or len(labels) == len(item):
            return item, None
        return {name: value for name, value in item.items() if name not in labels}, labels
    return (item[0], item[1]) if _is_labelled_pair(item, signature) else (item, None)


def is_call(item: Any) -> bool:
    """Whether an item is the call itself: `(args, kwargs)`."""
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], tuple) and isinstance(item[1], dict)


def is_data(item: Any) -> bool:
    """Whether a list is the values themselves (numbers, texts, nested numbers) and not several inputs."""
    return isinstance(item, list) and bool(item) and all(isinstance(v, bool | int | float | str | list) for v in item)


def _is_labelled_pair(item: Any, signature: Signature) -> bool:
    takes_any_place = signature.positional > len(signature.inputs)  # forward(*tensors)
    if not isinstance(item, list | tuple) or len(item) != 2 or takes_any_place or is_call(item) or is_data(item):
        return False
    first, second = item
    if len(signature.inputs) == 1:
        pictures = isinstance(item, list) and _rank(first) == _rank(second) == 3
        return not (pictures and signature.framework == "torch")  # a list of images is one input for a detector
    if isinstance(first, Mapping):
        return not (isinstance(second, Mapping) and set(second) & set(signature.names))
    return sum(spec.required for spec in signature.inputs) <= 1 and _looks_like_labels(second)


def _rank(value: Any) -> int | None:
    """The number of axes of a tensor, an array or a number; `None` for anything else."""
    if isinstance(value, bool | int | float):
        return 0
    return len(value.shape) if hasattr(value, "shape") and hasattr(value, "dtype") else None


def _looks_like_labels(value: Any) -> bool:
    axes = _rank(value)
    if axes is None:
        return isinstance(value, str | list | tuple)
    kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    return axes == 0 or (axes == 1 and kind.startswith(("int", "uint", "bool", "long")))


def goes_whole(item: Mapping[str, Any], signature: Signature) -> bool:
    """Whether a mapping is itself the one thing a model takes, and not its inputs by name.

    It is where the model needs one input at most, and no name in the mapping is that of an input, or one letter off.

    >>> from fewbit.data.signature import InputSpec
    >>> model = Signature("torch", (InputSpec("image"), InputSpec("meta", required=False)))
    >>> goes_whole({"pixels": 1, "size": 2}, model), goes_whole({"imagee": 1}, model), goes_whole({"meta": 1}, model)
    (True, False, False)
    """
    if not item or not _takes_one_thing(signature):
        return False
    return not any(_is_slip(str(name), known) for name in item for known in signature.names)


def _takes_one_thing(signature: Signature) -> bool:
    needs_one = len(signature.inputs) == 1 or sum(spec.required for spec in signature.inputs) == 1
    return needs_one and not signature.open_ended and signature.framework == "torch"


def _is_slip(name: str, known: str) -> bool:
    """Whether a name is the known one, or what a slip of the finger makes of it."""
    name, known = name.casefold(), known.casefold()
    return sorted(name) == sorted(known) or SequenceMatcher(None, name, known).ratio() > _SLIP


def refuse_unknown(item: Mapping[str, Any], signature: Signature) -> None:
    """Raise for names in a mapping that the model does not have.

    Raises:
        DataError: all of them, with near matches.
    """
    strange = [name for name in item if name not in signature.names and name not in ANSWERS]
    if strange and not signature.open_ended:
        whole = "; a tuple with the dict in it, if the dict itself is the input" if _takes_one_thing(signature) else ""
        raise DataError(
            f"the model takes no input called {', '.join(map(repr, strange))}",
            code="input-extra",
            where=signature.source,
            expected="; ".join(dict.fromkeys(nearest(str(name), signature.names) for name in strange)),
            try_=f"a transform_fn that returns the model's inputs under their names{whole}",
        )


def too_many(count: int, signature: Signature) -> DataError:
    """The error for an item with more values than the model has inputs."""
    return DataError(
        f"an item has {count} values, the model takes {len(signature.inputs)}",
        code="input-extra",
        where=signature.source,
        expected=", ".join(signature.names) or "no input at all",
        try_="a transform_fn that returns only what the model takes, such as `lambda item: item[0]`",
    )
