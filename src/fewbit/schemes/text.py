# SPDX-License-Identifier: Apache-2.0
"""Configurations as text: JSON and YAML in, plain values out, and back. Nothing in a text is ever executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from fewbit.errors import UsageError

_MOST = 100_000
"""More values than any configuration has; a YAML text of a few lines can name billions, or itself."""


def read_json(text: str | bytes) -> dict[str, Any]:
    """The object a JSON text holds.

    Raises:
        UsageError: not JSON, not an object, or a key that is there twice.
    """
    try:
        return _object(json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"this is not JSON: {error}", expected="a configuration, as `to_json` writes it") from error


def read_yaml(text: str | bytes) -> dict[str, Any]:
    """The object a YAML text holds; plain values only, no tags.

    Raises:
        UsageError: not YAML, not an object, a key that is there twice, or a tag.
    """
    try:
        return _object(_Loader(text).get_single_data())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        expected = "a configuration, as `to_yaml` writes it"
        raise UsageError(f"this is not plain YAML: {error}", expected=expected) from error


def write_json(values: Mapping[str, Any]) -> str:
    """Indented JSON, keys in the order of the fields."""
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)


def write_yaml(values: Mapping[str, Any]) -> str:
    """Block-style YAML, keys in the order of the fields."""
    return yaml.safe_dump(dict(values), sort_keys=False, default_flow_style=None)


def canonical(values: Any) -> bytes:
    """The one text for equal values: sorted keys, no spaces, whole floats as integers; what a hash is made of."""
    return json.dumps(_settled(values), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _settled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _settled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_settled(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"the text holds a {type(value).__name__}", expected="an object with the fields of a Config")
    open_: list[Any] = [value]
    count = 0
    while open_:
        here = open_.pop()
        inner = here.values() if isinstance(here, dict) else here
        count += len(here)
        if count > _MOST:
            raise UsageError("the text holds more than any configuration does, or refers to itself")
        open_ += [item for item in inner if isinstance(item, dict | list)]
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} is there twice")
    return made


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


class _Loader(yaml.SafeLoader):
    """The safe loader, which besides refuses keys that are there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)
