# SPDX-License-Identifier: Apache-2.0
"""Whether a JSON text is lines, one array, an object around an array, or values one after another.

Decided on the first kilobytes: the first byte that is no space, and where the first value ends. The name of the
file has no say: people call all of these `.json`, and some of them `.jsonl`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import orjson

from fewbit.data.tables.json_structure import Frame

ENOUGH = 1 << 22
"""How much of a text is read at most to tell what it is."""

_KEYS = 64
_COCO = frozenset({"images", "annotations"})
_BOXES = re.compile(rb'"(?:file_name|bbox)"\s*:')  # of a long file only one of the two arrays is seen
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},:]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a JSON text is.

    Args:
        kind: `lines`, `array`, `data` (an object around the array), `values` (one after another), `object` (a
            single one over many lines), or `unclear` when more of the text is needed.
        frame: where the elements lie, for the kinds that are not lines.
        alone: the text is a single object, whatever its lines.
        keys: of the first object, those that were seen.
        coco: the object is a COCO annotation file.
    """

    kind: str
    frame: Frame | None = None
    alone: bool = False
    keys: tuple[str, ...] = ()
    coco: bool = False


def sniff(head: bytes, whole: bool) -> Shape:
    """What a text is by its beginning.

    Args:
        head: the first bytes of the text.
        whole: whether that is all of it.

    >>> sniff(b'[{"a": 1}]', True).kind, sniff(b'{"a": 1}\\n{"a": 2}\\n', True).kind
    ('array', 'lines')
    >>> sniff(b'{"version": 2, "data": [{"a": 1}]}', True).frame
    Frame(begin=24, depth=2, line=1, empty=False)
    """
    body = head.lstrip(b" \t\r\n")
    start = len(head) - len(body)
    if body.startswith(b"["):
        return Shape("array", _frame(head, start + 1, 1))
    if not body.startswith(b"{"):
        return Shape("lines")
    end, data, keys = _first_object(head, start)
    found = _of_object(head, start, end, data, whole)
    if found.kind == "lines" and not found.alone and end is not None:
        return found  # the first object is one of many
    coco = set(keys) >= _COCO or (end is None and bool(_COCO & set(keys)) and bool(_BOXES.search(head)))
    return replace(found, keys=keys, coco=coco)


def _of_object(head: bytes, start: int, end: int | None, data: int | None, whole: bool) -> Shape:
    holds = data is not None and _holds_objects(head, data)
    if end is None:  # the first value is longer than what was read, or never ends
        if not whole and len(head) < ENOUGH:
            return Shape("unclear")
        return Shape("data", _frame(head, data, 2)) if data is not None and holds else Shape("lines")
    value, alone = head[start:end], whole and not head[end:].strip()
    if alone and data is not None and holds:
        return Shape("data", _frame(head, data, 2))
    if (b"\n" in value or b"\r" in value) and _is_json(value):
        return Shape("object" if alone else "values", Frame(0, 0), alone)
    return Shape("lines", alone=alone)


def _first_object(head: bytes, start: int) -> tuple[int | None, int | None, tuple[str, ...]]:
    """Where the first object ends, where the array under its own key `data` begins, if seen, and its own keys."""
    depth, data, last, key = 0, None, b"", b""
    keys: list[str] = []
    for token in _TOKEN.finditer(head, start):
        text = token.group()
        if text in (b"{", b"["):
            if text == b"[" and depth == 1 and last == b":" and key == b'"data"' and data is None:
                data = token.end()
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end(), data, tuple(keys)
        elif text == b":":
            key = last
            if depth == 1 and len(keys) < _KEYS:
                keys.append(key[1:-1].decode(errors="replace"))
        last = text
    return None, data, tuple(keys)


def _holds_objects(head: bytes, at: int) -> bool:
    return head[at:].lstrip()[:1] in (b"{", b"]")


def _frame(head: bytes, begin: int, depth: int) -> Frame:
    empty = head[begin:].lstrip()[:1] == b"]"
    return Frame(begin, depth, 1 + head.count(b"\n", 0, begin), empty)


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True
