# SPDX-License-Identifier: Apache-2.0
"""Values by dotted path (`messages.0.content`), and the user's own choice of columns made of such paths."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fewbit.errors import UsageError


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


def has(row: Mapping[str, Any], path: str) -> bool:
    """Whether a row has the column a path begins with, be it null.

    >>> has({"a": None}, "a"), has({"a": []}, "a.0"), has({"a": 1}, "b")
    (True, True, False)
    """
    return path in row or path.split(".")[0] in row


def projection(columns: Mapping[str, str] | Iterable[str] | str | None) -> dict[str, str] | None:
    """The name in the sample and the dotted path in the row, for each column asked for; `None` for all as they are.

    Args:
        columns: a mapping, a list of names, or either as one text (`"text=body,label=meta.score"`).

    >>> projection({"text": "messages.0.content"}), projection("text=body, label")
    ({'text': 'messages.0.content'}, {'text': 'body', 'label': 'label'})
    """
    if columns is None:
        return None
    if isinstance(columns, str):
        found = pairs(columns)
    elif isinstance(columns, Mapping):
        found = dict(columns)
    else:
        found = {str(name): str(name) for name in (columns if isinstance(columns, Iterable) else ())}
    if not found or not all(isinstance(k, str) and isinstance(v, str) and k and v for k, v in found.items()):
        raise UsageError(
            f"columns cannot be {columns!r}", where="columns", expected="{'text': 'body', …}, or a list of names"
        )
    return found


def pairs(text: str) -> dict[str, str]:
    """What the command line writes for a mapping; a name alone stands for itself.

    >>> pairs("text=body, label")
    {'text': 'body', 'label': 'label'}
    """
    parts = (part.partition("=") for part in text.split(","))
    return {name.strip(): (value if equals else name).strip() for name, equals, value in parts}
