# SPDX-License-Identifier: Apache-2.0
"""The settings of a stage from plain values and back, with every fault at once."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fewbit.errors import UsageError, nearest
from fewbit.schemes.faults import Fault, FaultsError

_EXPRESSION = re.compile(r"\b(calc|eval|exec|lambda)\b\s*[(:]|\$\{|\{\{|__\w+__")
_NOTHING: tuple[Any, ...] = (None, (), {})


def expressions(value: Any, path: str = "") -> list[Fault]:
    """Texts that look like something to be computed: nothing in a recipe is.

    >>> len(expressions({"stages": [{"prune": {"sparsity": "calc(0.5 + 0.1)"}}]}))
    1
    """
    if isinstance(value, str) and _EXPRESSION.search(value):
        return [Fault(path, f"{value!r} is an expression", "a plain value: nothing in a recipe is computed")]
    inside: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, Mapping):
        inside = ((f"{path}.{name}".lstrip("."), each) for name, each in value.items())
    elif isinstance(value, list | tuple):
        inside = ((f"{path}[{number}]", each) for number, each in enumerate(value))
    return [fault for where, each in inside for fault in expressions(each, where)]


def read_settings(kind: type[Any], values: Mapping[str, Any]) -> tuple[Any, list[Fault]]:
    """The settings of a stage, and what is wrong with the values.

    Args:
        kind: its `Settings`.
        values: by name, as JSON and YAML have them: lists become tuples.
    """
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind) if each.init}
    wrong = [Fault(str(name), "no such key", nearest(str(name), known)) for name in values if name not in known]
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known or expressions(value):
            continue
        plain = tuple(value) if isinstance(value, list) else value
        if fits(hints[name], plain):
            given[name] = plain
        else:
            wrong.append(Fault(name, f"{value!r}", in_words(hints[name]), _sixties(hints[name], value)))
    absent = [
        name
        for name, each in known.items()
        if each.default is MISSING and each.default_factory is MISSING and name not in values
    ]
    wrong += [Fault(name, "is not said", in_words(hints[name])) for name in absent]
    try:  # also where something is wrong already: the rest may be, too
        made = None if absent else kind(**given)
    except FaultsError as error:
        made = None
        # Where something is wrong already, what was not said may only seem to be missing.
        wrong += [fault for fault in error.faults if not wrong or fault.path in given]
    except UsageError as error:
        made = None
        if not wrong or error.where in given:
            wrong.append(Fault(error.where or "settings", error.what, error.expected or "other values", error.try_))
    except (TypeError, ValueError) as error:
        made = None
        wrong.append(Fault("settings", str(error), "values that a stage takes"))
    return (made, []) if not wrong and len(given) == len(values) else (None, wrong)


def _sixties(hint: Any, value: Any) -> str | None:
    """What to try where YAML has read `2:4` as 2 × 60 + 4."""
    if hint is not str or not isinstance(value, int) or value < 60:
        return None
    said = f"{value // 60}:{value % 60}"
    return f"'{said}', with quotes: without, YAML reads {said} as the number {value}"


def written(settings: Any) -> dict[str, Any]:
    """Settings as plain values; what is nothing, and is so by default, is left out."""
    found = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if not (value == default and any(value == nothing for nothing in _NOTHING)):
            found[each.name] = _plain(value)
    return found


def fits(hint: Any, value: Any) -> bool:
    """Whether a value is of an annotated type; whole numbers are floats too, and true is no number.

    >>> fits(float | None, 1), fits(int, True), fits(tuple[str, ...], ("a",)), fits(Literal["a"], "b")
    (True, False, True, False)
    """
    origin = get_origin(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(each, value) for each in get_args(hint))
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in get_args(hint))
    if origin is tuple:
        inner = get_args(hint)
        return isinstance(value, tuple) and (inner[-1] is not ... or all(fits(inner[0], each) for each in value))
    if origin is not None:
        return isinstance(value, origin)
    if hint is None or hint is type(None):
        return value is None
    if isinstance(value, bool) and hint is not bool:
        return False
    return isinstance(value, int | float) if hint is float else isinstance(value, hint)


def in_words(hint: Any) -> str:
    """What an annotated type takes.

    >>> in_words(float | None), in_words(tuple[str, ...])
    ('a number or none', 'a list of texts')
    """
    words = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", type(None): "none"}
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(in_words(each) for each in get_args(hint))
    if origin is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if origin is tuple:
        return f"a list of {in_words(get_args(hint)[0]).removeprefix('a ')}s"
    if hint in words:
        return words[hint]
    return "settings by name" if origin is not None and issubclass(origin, Mapping) else "a value of its kind"


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return value
