# SPDX-License-Identifier: Apache-2.0
"""Mappings that cannot be changed, all the way down, and can be pickled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Frozen(Mapping[str, Any]):
    """A mapping that stays as it is.

    >>> Frozen({"a": [1, {"b": 2}]})["a"]
    (1, Frozen({'b': 2}))
    """

    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(self, values: Mapping[str, Any]):
        object.__setattr__(self, "_values", {name: freeze(value) for name, value in values.items()})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a configuration cannot be changed: {name}")

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Frozen({self._values!r})"

    def __reduce__(self) -> Any:
        return Frozen, (self._values,)


def freeze(value: Any) -> Any:
    """A value whose mappings and lists cannot be changed."""
    if isinstance(value, Frozen):
        return value
    if isinstance(value, Mapping):
        return Frozen(value)
    if isinstance(value, list | tuple):
        return tuple(map(freeze, value))
    return value


def thaw(value: Any) -> Any:
    """The same as plain dicts and lists, which may be changed.

    >>> thaw(Frozen({"a": [1, 2]}))
    {'a': [1, 2]}
    """
    if isinstance(value, Mapping):
        return {name: thaw(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(each) for each in value]
    return value
