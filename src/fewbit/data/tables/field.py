# SPDX-License-Identifier: Apache-2.0
"""A value inside a row by a dotted path: `messages.0.content`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def field(row: Mapping[str, Any], path: str) -> Any:
    """The value a dotted path leads to, or `None` where it leads nowhere.

    A column whose own name has dots in it wins over the path of the same spelling.

    >>> field({"messages": [{"content": "hi"}]}, "messages.0.content")
    'hi'
    >>> field({"a.b": 1, "a": {"b": 2}}, "a.b"), field({"a": 1}, "a.b")
    (1, None)
    """
    if path in row:
        return row[path]
    value: Any = row
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.removeprefix("-").isdecimal() and part.isascii():
            number = int(part) if len(part) < 19 else len(value)
            value = value[number] if -len(value) <= number < len(value) else None
        else:
            return None
    return value
