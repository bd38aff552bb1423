# SPDX-License-Identifier: Apache-2.0
"""The user's own choice of columns: which to keep, and what to call what lies deep inside a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fewbit.errors import UsageError


def projection(columns: Mapping[str, str] | Iterable[str] | str | None) -> dict[str, str] | None:
    """The name in the sample and the dotted path in the row, for each column asked for; `None` for all as they are.

    Args:
        columns: a mapping, a list of names, or either as one text (`"text=body,label=meta.score"`).

    >>> projection({"text": "messages.0.content"}), projection("text=body, label")
    ({'text': 'messages.0.content'}, {'text': 'body', 'label': 'label'})
    """
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        found = dict(columns)
    else:
        parts = columns.split(",") if isinstance(columns, str) else list(columns)
        found = {}
        for part in parts:
            name, equals, path = str(part).partition("=") if isinstance(columns, str) else (part, "", "")
            found[str(name).strip()] = str(path).strip() if equals else str(name).strip()
    if not found or not all(isinstance(k, str) and isinstance(v, str) and k and v for k, v in found.items()):
        raise UsageError(
            f"columns cannot be {columns!r}", where="columns", expected="{'text': 'body', …}, or a list of names"
        )
    return found
