# SPDX-License-Identifier: Apache-2.0
"""Nested model inputs as flat `(path, leaf)` pairs, and back again.

A container is a mapping (`dict`, `BatchEncoding`, `ModelOutput`), a list, a tuple, a named tuple, a dataclass
or a key-value cache; everything else (tensor, array, number, `None`, text, unknown object) is a leaf. Types are
told by their shape and name, so no framework is imported. The structure is plain JSON and names classes only as
text: `rebuild` makes an instance of a class only when its caller hands that class over.
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fewbit.errors import UsageError

Structure = dict[str, Any] | None
"""`None` for a leaf, else `{"kind", "keys", "items"}` and, where it matters, `"class"`."""

_DEPTH = 100
_NEVER_OPENED = (type, str, bytes, bytearray, memoryview, range)


def flatten(value: Any) -> list[tuple[str, Any]]:
    """The leaves of a nested value in order, each with its dotted path; a bare leaf has the empty path.

    >>> flatten({"ids": [1, 2], "past": ({"key": 3},)})
    [('ids.0', 1), ('ids.1', 2), ('past.0.key', 3)]
    """
    found: list[tuple[str, Any]] = []
    _gather(value, "", found, 0)
    return found


def structure_of(value: Any) -> Structure:
    """What is left of a nested value when its leaves are taken out, as JSON values.

    Raises:
        UsageError: a mapping has a key that JSON cannot keep (a tuple, an object).

    >>> structure_of({"x": 1, "y": [2]})["keys"]
    ['x', 'y']
    """
    return _structure(value, 0)


def classes_of(value: Any) -> dict[str, type]:
    """The container classes beyond `dict`, `list` and `tuple` in a value, by the name `structure_of` gives them."""
    if not (opened := _open(value)):
        return {}
    found = {} if _plain(type(value)) else {_class_name(value): type(value)}
    for item in opened[2]:
        found |= classes_of(item)
    return found


def rebuild(structure: Structure, leaves: Sequence[Any], classes: Mapping[str, type] | None = None) -> Any:
    """The nested value of a structure and its leaves, given in the order of `flatten`.

    Args:
        structure: from `structure_of`.
        leaves: as many as the structure has.
        classes: from `classes_of`. A class not in it comes back as its plain kin: a `BatchEncoding` as a `dict`,
            a named tuple as a new named tuple with the same fields, a dataclass as a `dict`.

    >>> value = {"x": 1, "y": [2, (3,)]}
    >>> rebuild(structure_of(value), [leaf for _, leaf in flatten(value)]) == value
    True
    """
    given = iter(leaves)
    try:
        value = _rebuild(structure, given, classes or {})
    except StopIteration:
        raise UsageError(f"{len(leaves)} leaves are too few for this structure") from None
    if (extra := sum(1 for _ in given)) > 0:
        raise UsageError(f"{extra} of {len(leaves)} leaves have no place in this structure")
    return value


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """The same nested value, containers of the same classes, with every leaf changed.

    >>> map_leaves(lambda leaf: leaf + 1, {"x": 1, "y": (2,)})
    {'x': 2, 'y': (3,)}
    """
    return _map(change, value, 0)


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf is a tensor or an array of any framework: it has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type)


def _open(value: Any) -> tuple[str, list[Any], list[Any]] | None:
    """Kind, keys and items of a container, or `None` for a leaf."""
    if isinstance(value, Mapping):
        return "dict", list(value), [value[key] for key in value]
    if isinstance(value, _NEVER_OPENED) or is_tensor(value):
        return None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "namedtuple", list(value._fields), list(value)
    if isinstance(value, tuple):
        return "tuple", list(range(len(value))), list(value)
    if isinstance(value, Sequence):
        return "list", list(range(len(value))), list(value)
    if dataclasses.is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return "dataclass", fields, [getattr(value, name) for name in fields]
    return _open_cache(value)


def _open_cache(value: Any) -> tuple[str, list[Any], list[Any]] | None:
    """A key-value cache of transformers, laid out as the ONNX exporters name it: `past_key_values.0.key`."""
    if not any(base.__name__ == "Cache" and base.__module__.startswith("transformers") for base in type(value).__mro__):
        return None
    halves = [name for name in ("self_attention_cache", "cross_attention_cache") if hasattr(value, name)]
    if halves:
        return "cache", halves, [getattr(value, name) for name in halves]
    layers = [layer for layer in getattr(value, "layers", []) if getattr(layer, "keys", None) is not None]
    if not all(is_tensor(layer.keys) and is_tensor(layer.values) for layer in layers):
        return None
    return "cache", list(range(len(layers))), [{"key": layer.keys, "value": layer.values} for layer in layers]


def _gather(value: Any, path: str, found: list[tuple[str, Any]], depth: int) -> None:
    opened = _open(value)
    if opened is None:
        found.append((path, value))
        return
    _bounded(depth, path)
    for key, item in zip(opened[1], opened[2], strict=True):
        _gather(item, f"{path}.{key}" if path else str(key), found, depth + 1)


def _map(change: Callable[[Any], Any], value: Any, depth: int) -> Any:
    opened = _open(value)
    if opened is None:
        return change(value)
    _bounded(depth, "")
    kind, keys, items = opened
    changed = [_map(change, item, depth + 1) for item in items]
    return _instance(type(value), kind, dict(zip(keys, changed, strict=True)))


def _structure(value: Any, depth: int) -> Structure:
    opened = _open(value)
    if opened is None:
        return None
    _bounded(depth, "")
    kind, keys, items = opened
    for key in keys:
        if not isinstance(key, str | int | float | bool | None):
            raise UsageError(
                f"a mapping has the key {key!r} of type {type(key).__name__}",
                expected="keys that are text or numbers",
                try_="rename the keys before passing the value on",
            )
    structure = {"kind": kind, "keys": keys, "items": [_structure(item, depth + 1) for item in items]}
    if not _plain(type(value)):
        structure["class"] = _class_name(value)
    return structure


def _bounded(depth: int, path: str) -> None:
    if depth > _DEPTH:
        raise UsageError(
            f"the value is nested more than {_DEPTH} levels deep, or contains itself",
            where=path[:80] or None,
            try_="pass flat inputs",
        )


def _plain(kind_of: type) -> bool:
    return kind_of in (dict, list, tuple)


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}:{type(value).__qualname__}"


def _rebuild(structure: Structure, leaves: Any, classes: Mapping[str, type]) -> Any:
    if structure is None:
        return next(leaves)
    items = [_rebuild(item, leaves, classes) for item in structure["items"]]
    made_of = dict(zip(structure["keys"], items, strict=True))
    kind, name = structure["kind"], str(structure.get("class"))
    if name in classes:
        return _instance(classes[name], kind, made_of)
    if kind == "cache":
        return items if structure["keys"] == list(range(len(items))) else made_of
    if kind == "namedtuple":
        return namedtuple(name.rpartition(".")[2].rpartition(":")[2], structure["keys"])(*items)
    return {"list": list, "tuple": tuple}[kind](items) if kind in ("list", "tuple") else made_of


def _instance(cls: type, kind: str, made_of: dict[Any, Any]) -> Any:
    """An instance of a class the caller trusts; the plain kin where the class cannot be made from its parts."""
    if kind == "dataclass":
        made: Any = object.__new__(cls)
        for name, item in made_of.items():
            object.__setattr__(made, name, item)
        return made
    if kind == "cache":
        return _cache(cls, made_of)
    try:
        if kind == "namedtuple":
            return cls(*made_of.values())
        if kind in ("list", "tuple"):
            return cls(made_of.values())
        return cls(**made_of) if dataclasses.is_dataclass(cls) else cls(made_of)
    except TypeError:
        return {"list": list, "tuple": tuple}.get(kind, lambda parts: made_of)(made_of.values())


def _cache(cls: Any, made_of: dict[Any, Any]) -> Any:
    if not all(isinstance(key, int) for key in made_of):
        return cls(*made_of.values())
    made = cls()
    for index, layer in made_of.items():
        made.update(layer["key"], layer["value"], index)
    return made
