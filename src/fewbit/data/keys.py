# SPDX-License-Identifier: Apache-2.0
"""Keys of a configuration: what each may be, what it is if nobody says, and all faults of a mapping at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fewbit.errors import nearest


@dataclass(frozen=True)
class Key:
    """One key.

    Args:
        name: as a user writes it.
        default: what it is if nobody says.
        expected: what it may be, in words.
        fits: whether a value may be what it is; anything, if none is given.
        doc: what it is for, in one sentence.

    >>> Key("max_length", 512, "a whole number from 1 up", lambda x: isinstance(x, int) and x > 0).fits(0)
    False
    """

    name: str
    default: Any
    expected: str
    fits: Callable[[Any], bool] = lambda value: True
    doc: str = ""


def faults(given: Mapping[str, Any], keys: Iterable[Key]) -> list[str]:
    """What is wrong with a mapping, one line each: keys that nobody knows, values that do not fit.

    >>> faults({"max_lenght": 5}, [Key("max_length", 512, "a whole number")])
    ["max_lenght: no such key; did you mean 'max_length'?"]
    """
    known = {key.name: key for key in keys}
    found = []
    for name, value in given.items():
        if name not in known:
            found.append(f"{name}: no such key; {nearest(name, known).split(' Known:')[0]}")
        elif not known[name].fits(value):
            found.append(f"{name}={value!r}: expected {known[name].expected}")
    return found


def filled(given: Mapping[str, Any], keys: Iterable[Key]) -> dict[str, Any]:
    """A mapping with the defaults of all keys it does not say."""
    return {key.name: key.default for key in keys} | dict(given)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number from 1 up."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_share(value: Any) -> bool:
    """Whether a value is a number from 0 to 1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def is_text(value: Any) -> bool:
    """Whether a value is a text, or left out."""
    return value is None or isinstance(value, str)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number from 0 up."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_mapping(value: Any) -> bool:
    """Whether a value is a mapping under names, or left out."""
    return value is None or (isinstance(value, Mapping) and all(isinstance(name, str) for name in value))


def is_flag(value: Any) -> bool:
    """Whether a value is true or false."""
    return isinstance(value, bool)


def one_of(*choices: Any) -> Callable[[Any], bool]:
    """Whether a value is one of these, and of the same type: `True` is not 1."""
    return lambda value: any(value == choice and type(value) is type(choice) for choice in choices)


def optional(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value fits, or is left out."""
    return lambda value: value is None or fits(value)


TASKS = (
    "causal_lm",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "image_classification",
    "object_detection",
    "segmentation",
)

GENERAL: tuple[Key, ...] = (
    Key("path", None, "a file or folder", is_text, "where the rows lie, if not on the hub"),
    Key("format", None, "a format, or 'file.py:function'", is_text, "how the files are read, if not as they look"),
    Key("reading", None, "options of the format", is_mapping, "such as {'delimiter': ';'} for a CSV"),
    Key("policy", None, "'drop' or {code: action}", lambda value: is_text(value) or is_mapping(value), "for faults"),
    Key("columns", None, "{field: column}", is_mapping, "which column is the prompt, answer, text, label, messages …"),
    Key("task", None, f"one of {', '.join(TASKS)}", optional(one_of(*TASKS)), "what the samples are for"),
    Key("train_split", None, "a name", is_text, "what the files call the split to learn from"),
    Key("validation_split", None, "a name", is_text, "what the files call the split to judge by"),
    Key("validation_ratio", 0.1, "a number from 0 to 1", is_share, "how much of train is cut off where there is none"),
    Key("seed", 0, "a whole number", is_whole, "of everything that is drawn"),
    Key("tokenizer", None, "a folder, a hub name, 'bytes', or a tokenizer", doc="turns texts into numbers"),
    Key("max_length", None, "a whole number from 1 up", optional(is_count), "the most tokens a sample may have"),
    Key("batch_size", None, "a whole number from 1 up", optional(is_count), "how many samples a batch holds"),
    Key("shuffle", None, "true or false", optional(is_flag), "another order each epoch; only train, if not said"),
    Key("drop_last", False, "true or false", is_flag, "leave out a last batch that is not full"),
    Key("workers", None, "a whole number", optional(is_whole), "processes that prepare; measured, if not said"),
    Key("require_device", False, "true or false", is_flag, "no other device than the one asked for will do"),
)
"""The keys of every configuration; presets and steps add theirs."""
