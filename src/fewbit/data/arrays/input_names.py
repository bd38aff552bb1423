# SPDX-License-Identifier: Apache-2.0
"""Which array belongs to which input of a model: by its name, by what the user says, by its looks, in that order."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

ANSWERS = frozenset({"label", "labels", "target", "targets", "y"})
"""Names that are taken for answers unless the model has an input of that name."""

_SUFFIX = re.compile(r":[0-9]+$")
_PLACE = re.compile(r"(?:inputs?|args?|arr|tensor|x)?[_.]?([0-9]+)", re.IGNORECASE)


@dataclass(slots=True)
class Matching:
    """Who belongs to whom.

    Args:
        pairs: array name to input name, where it is settled.
        by_looks: those of the pairs that only shape and dtype settled.
        suggestions: array name to the input it resembles, where nothing is settled.
        missing: inputs left without an array.
        extra: arrays left without an input.
        wrong: sentences about a `rename` that cannot be followed.
    """

    pairs: dict[str, str] = field(default_factory=dict)
    by_looks: list[str] = field(default_factory=list)
    suggestions: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def match_names(
    keys: Collection[str],
    inputs: Sequence[str],
    *,
    rename: Mapping[str, str],
    alike: Callable[[str, str], bool],
    required: Collection[str],
    open_ended: bool = False,
) -> Matching:
    """Match array names with input names.

    Args:
        keys: the arrays' names.
        inputs: the model's input names, in order.
        rename: what the user says, array name to input name.
        alike: whether an array could be an input by its shape and dtype.
        required: the inputs the model does not run without.
        open_ended: the model takes other names too, so an unknown one is no reason to guess.

    >>> match_names(["arr_0"], ["x"], rename={}, alike=lambda key, name: True, required=["x"]).pairs
    {'arr_0': 'x'}
    """
    found = Matching()
    for key, name in rename.items():
        if key not in keys and name in keys and name not in rename:
            continue  # this file has the right name already
        if key not in keys:
            found.wrong.append(f"rename speaks of an array {key!r}; there are: {', '.join(keys)}")
        elif name not in inputs and not open_ended:
            found.wrong.append(f"rename speaks of an input {name!r}; the model has: {', '.join(inputs)}")
        elif name in found.pairs.values() or (name in keys and name not in rename):
            found.wrong.append(f"rename makes two arrays of the name {name!r}")
        else:
            found.pairs[key] = name
    taken = set(found.pairs.values())
    own = {key: key for key in keys if key in inputs and key not in found.pairs and key not in taken}
    found.pairs |= own
    taken |= own.keys()
    loose = [key for key in keys if key not in found.pairs]
    free = [name for name in inputs if name not in taken]
    _by_looks(found, loose, [name for name in free if name in required], alike)
    taken = set(found.pairs.values())
    found.extra = [key for key in loose if key not in found.pairs]
    found.missing = [name for name in free if name not in taken]
    found.suggestions = suggest(found.extra, found.missing, inputs)
    return found


def _by_looks(found: Matching, loose: list[str], free: list[str], alike: Callable[[str, str], bool]) -> None:
    """Settle the pairs in which either side has no other candidate."""
    candidates = {key: [name for name in free if alike(key, name)] for key in loose}
    wanted = [name for names in candidates.values() for name in names]
    for key, names in candidates.items():
        if len(names) == 1 and wanted.count(names[0]) == 1:
            found.pairs[key] = names[0]
            found.by_looks.append(key)


def suggest(keys: Sequence[str], free: Sequence[str], inputs: Sequence[str]) -> dict[str, str]:
    """The input each array probably means: same but for case, a `:0`, a prefix, or a number for its place.

    >>> suggest(["Input_IDs", "mask:0"], ["input_ids", "mask"], ["input_ids", "mask"])
    {'Input_IDs': 'input_ids', 'mask:0': 'mask'}
    >>> suggest(["input_1", "input_0"], ["a", "b"], ["a", "b"])
    {'input_1': 'b', 'input_0': 'a'}
    """
    found: dict[str, str] = {}
    for likeness in (_same_core, _prefixed, _by_place(keys, inputs), _spelled):
        for key in keys:
            names = [name for name in free if name not in found.values() and likeness(key, name)]
            if key not in found and len(names) == 1:
                found[key] = names[0]
    return {key: found[key] for key in keys if key in found}


def _core(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _SUFFIX.sub("", name).casefold())


def _same_core(key: str, name: str) -> bool:
    return _core(key) == _core(name)


def _prefixed(key: str, name: str) -> bool:
    one, other = _core(key), _core(name)
    shorter = min(one, other, key=len)
    return len(shorter) > 1 and (one.endswith(other) or other.endswith(one))


def _by_place(keys: Sequence[str], inputs: Sequence[str]) -> Callable[[str, str], bool]:
    numbers = {
        key: int(match[1]) for key in keys if len(key) < 32 and (match := _PLACE.fullmatch(_SUFFIX.sub("", key)))
    }
    first = 0 if 0 in numbers.values() else 1

    def likeness(key: str, name: str) -> bool:
        place = numbers.get(key, -1) - first
        return 0 <= place < len(inputs) and inputs[place] == name

    return likeness


def _spelled(key: str, name: str) -> bool:
    return bool(get_close_matches(_core(key), [_core(name)], cutoff=0.8))
