# SPDX-License-Identifier: Apache-2.0
"""Elements of a dataset as rows of text: dicts, bare texts, bare chats, and batches of them from a loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.data.tables.chat import is_chat

_TAKEN = ("input_ids", "inputs_embeds")


def holds_text(element: Any) -> bool:
    """Whether an element is text, and not yet what a model takes.

    >>> holds_text({"text": "hello"}), holds_text("hello"), holds_text({"text": "hello", "input_ids": [1]})
    (True, True, False)
    """
    if not isinstance(element, Mapping):
        return _is_text(element) or _are_texts(element)
    return not any(name in element for name in _TAKEN) and any(_is_text(v) or _are_texts(v) for v in element.values())


def rows_of(source: Source) -> Iterator[Sample]:
    """Every row in order, each with its place.

    Raises:
        DataError: what the source raises.
    """
    number = 0
    for element in source:
        for row in _unbatched(element):
            yield row if isinstance(row, Sample) else Sample(row, place=Place("rows", index=number))
            number += 1


def _unbatched(element: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of an element: one, or those of a batch that a loader put together."""
    if isinstance(element, str):
        yield {"text": element}
    elif is_chat(element):
        yield {"messages": element}
    elif _are_texts(element):
        yield from ({"text": text} for text in element)
    elif isinstance(element, Mapping) and not any(map(_is_text, element.values())):
        columns = {name: values for name, values in element.items() if _are_texts(values)}
        alike = len({len(values) for values in columns.values()}) == 1
        yield from (dict(zip(columns, values)) for values in zip(*columns.values())) if alike else (element,)
    elif isinstance(element, Mapping):
        yield element


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or is_chat(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_text, value))
