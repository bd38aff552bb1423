# SPDX-License-Identifier: Apache-2.0
"""Which array belongs to which input: by its name, else by its shape and dtype; similar names are suggested."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

LABELS = frozenset(("label", "labels", "target", "targets", "y"))
"""Names of labels, unless the model has an input of that name."""
TARGETS = LABELS | {"boxes", "classes", "mask", "masks", "tags", "answers", "caption", "areas", "difficult"}
"""Labels, and what detectors, taggers and segmenters learn."""
_NUMBERED = re.compile(r"(?:inputs?|args?|arr|tensor|x)?[_.]?([0-9]{1,6})(?::[0-9]+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NameMatch:
    """Arrays and inputs that belong together: array name to input name.

    Args:
        exact: of the same name.
        by_shape: that only shape and dtype decided.
        similar: whose names resemble each other; not decided.
        missing: inputs without an array.
        extra: arrays without an input.
    """

    exact: dict[str, str]
    by_shape: dict[str, str]
    similar: dict[str, str]
    missing: list[str]
    extra: list[str]


def match_names(
    arrays: Collection[str], inputs: Sequence[str], *, fits: Callable[[str, str], bool], required: Collection[str]
) -> NameMatch:
    """Match the names of arrays with those of inputs.

    Args:
        arrays: names of the arrays of a sample.
        inputs: names of the model's inputs, in order.
        fits: whether an array could be an input, by shape and dtype.
        required: inputs the model cannot run without.

    >>> match_names(["arr_0"], ["x"], fits=lambda array, name: True, required=["x"]).by_shape
    {'arr_0': 'x'}
    """
    exact = {name: name for name in arrays if name in inputs}
    loose, free = [name for name in arrays if name not in exact], [name for name in inputs if name not in exact]
    candidates = {array: [name for name in free if name in required and fits(array, name)] for array in loose}
    claims = [name for names in candidates.values() for name in names]
    # Only pairs in which neither side has another candidate.
    by_shape = {
        array: names[0] for array, names in candidates.items() if len(names) == 1 and claims.count(names[0]) == 1
    }
    extra = [name for name in loose if name not in by_shape]
    missing = [name for name in free if name not in by_shape.values()]
    similar = similar_names(extra, missing, inputs)
    return NameMatch(
        exact, by_shape, similar, [name for name in missing if name not in similar.values()],
        [name for name in extra if name not in similar],
    )  # fmt: skip


def similar_names(arrays: Sequence[str], free: Sequence[str], inputs: Sequence[str]) -> dict[str, str]:
    """The input that each array probably means: another case, a `:0`, a prefix, its number, a slip of one letter.

    >>> similar_names(["Input_IDs", "mask:0"], ["input_ids", "mask"], ["input_ids", "mask"])
    {'Input_IDs': 'input_ids', 'mask:0': 'mask'}
    >>> similar_names(["input_1", "input_0"], ["a", "b"], ["a", "b"])
    {'input_1': 'b', 'input_0': 'a'}
    """
    numbers = {array: int(match[1]) for array in arrays if (match := _NUMBERED.fullmatch(array))}
    first = 0 if 0 in numbers.values() else 1
    likenesses: tuple[Callable[[str, str], bool], ...] = (
        lambda array, name: _letters(array) == _letters(name),
        lambda array, name: (
            min(len(_letters(array)), len(_letters(name))) > 1
            and (_letters(array).endswith(_letters(name)) or _letters(name).endswith(_letters(array)))
        ),
        lambda array, name: numbers.get(array) == inputs.index(name) + first,
        lambda array, name: SequenceMatcher(None, _letters(name), _letters(array)).ratio() >= 0.8,
    )
    similar: dict[str, str] = {}
    for alike in likenesses:
        for array in arrays:
            names = [name for name in free if name not in similar.values() and alike(array, name)]
            if array not in similar and len(names) == 1:
                similar[array] = names[0]
    return {array: similar[array] for array in arrays if array in similar}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", re.sub(r":[0-9]+$", "", name).casefold())
