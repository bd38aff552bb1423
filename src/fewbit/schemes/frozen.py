# SPDX-License-Identifier: Apache-2.0
"""Mappings that cannot be changed, so that a configuration holding them cannot be either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeVar

V = TypeVar("V")


class FrozenMapping(Mapping[str, V]):
    """An immutable, hashable mapping; equal to a dict with the same items. It can be copied and pickled.

    >>> FrozenMapping({"bins": 128}) == {"bins": 128}
    True
    """

    def __init__(self, items: Mapping[str, V] | None = None):
        self.__dict__["_items"] = dict(items or {})

    def __getitem__(self, key: str) -> V:
        value: V = self.__dict__["_items"][key]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__["_items"])

    def __len__(self) -> int:
        return len(self.__dict__["_items"])

    def __hash__(self) -> int:
        return hash(frozenset(self.items()))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"this mapping cannot be changed ({name})")

    def __repr__(self) -> str:
        return repr(self.__dict__["_items"])


def freeze(value: Any) -> Any:
    """JSON values with every list a tuple and every object a `FrozenMapping`."""
    if isinstance(value, Mapping):
        return FrozenMapping({key: freeze(item) for key, item in value.items()})
    return tuple(freeze(item) for item in value) if isinstance(value, list | tuple) else value


def thaw(value: Any) -> Any:
    """The inverse of `freeze`: plain lists and dicts."""
    if isinstance(value, Mapping):
        return {key: thaw(item) for key, item in value.items()}
    return [thaw(item) for item in value] if isinstance(value, list | tuple) else value
