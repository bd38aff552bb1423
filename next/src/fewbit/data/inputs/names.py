# SPDX-License-Identifier: Apache-2.0
"""Which array belongs to which input: by its name, by `rename`, by its shape and dtype, in that order."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

LABELS = frozenset(("label", "labels", "target", "targets", "y"))
"""Names of labels, unless the model has an input of that name."""
TARGETS = LABELS | {"boxes", "classes", "mask", "masks", "tags", "answers", "caption", "areas", "difficult"}
"""Labels, and what detectors, taggers and segmenters learn."""

_SUFFIX = re.compile(r":[0-9]+$")
_NUMBERED = re.compile(r"(?:inputs?|args?|arr|tensor|x)?[_.]?([0-9]{1,6})", re.IGNORECASE)


@dataclass(slots=True)
class NameMatch:
    """Arrays and inputs that belong together.

    Args:
        pairs: array name to input name.
        by_shape: arrays of these pairs that only shape and dtype decided.
        similar: array name to the input it resembles; not decided.
        missing: inputs without an array.
        extra: arrays without an input.
        wrong: what is wrong with `rename`.
    """

    pairs: dict[str, str] = field(default_factory=dict)
    by_shape: list[str] = field(default_factory=list)
    similar: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def match_names(
    arrays: Collection[str],
    inputs: Sequence[str],
    *,
    fits: Callable[[str, str], bool],
    required: Collection[str],
    rename: Mapping[str, str] | None = None,
    open_ended: bool = False,
) -> NameMatch:
    """Match the names of arrays with those of inputs.

    Args:
        arrays: names of the arrays of a sample.
        inputs: names of the model's inputs, in order.
        fits: whether an array could be an input, by shape and dtype.
        required: inputs the model cannot run without.
        rename: array name to input name.
        open_ended: the model takes other names too.

    >>> match_names(["arr_0"], ["x"], fits=lambda array, name: True, required=["x"]).pairs
    {'arr_0': 'x'}
    """
    match = NameMatch()
    _apply_rename(match, arrays, inputs, rename or {}, open_ended)
    renamed = set(match.pairs.values())
    exact = {name: name for name in arrays if name in inputs and name not in match.pairs and name not in renamed}
    match.pairs |= exact
    loose = [name for name in arrays if name not in match.pairs]
    free = [name for name in inputs if name not in match.pairs.values()]
    _match_by_shape(match, loose, [name for name in free if name in required], fits)
    match.extra = [name for name in loose if name not in match.pairs]
    match.missing = [name for name in free if name not in match.pairs.values()]
    match.similar = similar_names(match.extra, match.missing, inputs)
    return match


def _apply_rename(
    match: NameMatch, arrays: Collection[str], inputs: Sequence[str], rename: Mapping[str, str], open_ended: bool
) -> None:
    for array, name in rename.items():
        if array not in arrays and name in arrays and name not in rename:
            continue  # this sample has the right name already
        if array not in arrays:
            match.wrong.append(f"there is no array {array!r}, only {', '.join(arrays)}")
        elif name not in inputs and not open_ended:
            match.wrong.append(f"the model has no input {name!r}, only {', '.join(inputs)}")
        elif name in match.pairs.values() or (name in arrays and name not in rename):
            match.wrong.append(f"two arrays would be called {name!r}")
        else:
            match.pairs[array] = name


def _match_by_shape(match: NameMatch, loose: list[str], free: list[str], fits: Callable[[str, str], bool]) -> None:
    """Pairs in which neither side has another candidate."""
    candidates = {array: [name for name in free if fits(array, name)] for array in loose}
    claims = [name for names in candidates.values() for name in names]
    for array, names in candidates.items():
        if len(names) == 1 and claims.count(names[0]) == 1:
            match.pairs[array] = names[0]
            match.by_shape.append(array)


def similar_names(arrays: Sequence[str], free: Sequence[str], inputs: Sequence[str]) -> dict[str, str]:
    """The input that each array probably means: another case, a `:0`, a prefix, its number, a slip of one letter.

    >>> similar_names(["Input_IDs", "mask:0"], ["input_ids", "mask"], ["input_ids", "mask"])
    {'Input_IDs': 'input_ids', 'mask:0': 'mask'}
    >>> similar_names(["input_1", "input_0"], ["a", "b"], ["a", "b"])
    {'input_1': 'b', 'input_0': 'a'}
    """
    similar: dict[str, str] = {}
    for likeness in (_same_letters, _prefixed, _numbered(arrays, inputs), _misspelled):
        for array in arrays:
            names = [name for name in free if name not in similar.values() and likeness(array, name)]
            if array not in similar and len(names) == 1:
                similar[array] = names[0]
    return {array: similar[array] for array in arrays if array in similar}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _SUFFIX.sub("", name).casefold())


def _same_letters(array: str, name: str) -> bool:
    return _letters(array) == _letters(name)


def _prefixed(array: str, name: str) -> bool:
    shorter, longer = sorted((_letters(array), _letters(name)), key=len)
    return len(shorter) > 1 and longer.endswith(shorter)


def _numbered(arrays: Sequence[str], inputs: Sequence[str]) -> Callable[[str, str], bool]:
    numbers = {array: int(match[1]) for array in arrays if (match := _NUMBERED.fullmatch(_SUFFIX.sub("", array)))}
    first = 0 if 0 in numbers.values() else 1

    def likeness(array: str, name: str) -> bool:
        position = numbers.get(array, -1) - first
        return 0 <= position < len(inputs) and inputs[position] == name

    return likeness


def _misspelled(array: str, name: str) -> bool:
    return bool(get_close_matches(_letters(array), [_letters(name)], cutoff=0.8))
