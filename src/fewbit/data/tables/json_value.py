# SPDX-License-Identifier: Apache-2.0
"""One JSON row, parsed strictly: what a lenient parser passes over in silence becomes a fault beside the values.

orjson reads every row. Its verdict stands unless the row may hold what it cannot show: a key written twice, an
integer beyond 64 bits, a NaN, half a surrogate pair. Such rows, found by cheap counting, are read again by the
standard library, which can.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

import orjson

from fewbit.data import limits
from fewbit.data.tables.table import Fault, Row

_KEY_END = re.compile(rb'"\s*:')
_SECOND_LOOK = -(1 << 40)
_MARKS = re.compile(rb"\s*(?:\xef\xbb\xbf\s*)+")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMES = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}


class Record(NamedTuple):
    """The bytes of one row before it is parsed, and where they begin.

    Args:
        raw: the bytes, spaces around them included; `None` when they are more than `limits.ROW_BYTES`.
        line: the line of their first byte, from 1.
        offset: the offset of their first byte in the plain text.
        ended: whether the row's end was seen; `False` where the file just stops.
    """

    raw: bytes | None
    line: int
    offset: int
    ended: bool = True


def parse(record: Record) -> Row:
    """The row a record holds, with every fault in it.

    >>> parse(Record(b'{"a": 1}', 1, 0))
    Row(values={'a': 1}, line=1, faults=())
    >>> parse(Record(b'{"a": 1, "a": 2}', 1, 0)).faults[0].message
    "key 'a' stands twice in one object"
    """
    raw, line = record.raw, record.line
    if raw is None:
        return _bad(record, "row-too-long", f"the row is longer than {limits.ROW_BYTES:,} bytes", 0)
    if raw.count(b"[") + raw.count(b"{") > limits.JSON_DEPTH and _depth(raw) > limits.JSON_DEPTH:
        return _bad(record, "too-deep", f"nested more than {limits.JSON_DEPTH} deep", 0)
    try:
        values = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        return _not_json(record, error)
    if type(values) is not dict:
        return _bad(record, "not-an-object", f"the row is {_NAMES[type(values)]}, not an object", 0)
    keys = _keys(values)
    if raw.count(b":") == keys or len(_KEY_END.findall(raw)) == keys:
        return Row(values, line)
    return _second_look(record, raw.decode())


def _keys(value: Any) -> int:
    """How many keys a value has in all; negative when a float may have been an integer that lost its last digits."""
    count = 0
    if type(value) is dict:
        count = len(value)
        value = value.values()
    for item in value:
        kind = type(item)
        if kind is dict or kind is list:
            count += _keys(item)
        elif kind is float and not -9e18 < item < 9e18:
            count += _SECOND_LOOK
    return count


def _depth(raw: bytes) -> int:
    depth = deepest = 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', raw, re.DOTALL):
        byte = raw[token.start()]
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def _second_look(record: Record, text: str) -> Row:
    faults: list[Fault] = []

    def fault(code: str, message: str) -> None:
        if all(known.message != message for known in faults):
            faults.append(Fault(code, message, record.line, record.offset))

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(found)
        if len(values) < len(found):
            seen: set[str] = set()
            for key, _ in found:
                if key in seen:
                    fault("duplicate-key", f"key {key!r} stands twice in one object")
                seen.add(key)
        return values

    def constant(word: str) -> float:
        fault("nan-in-json", f"{word} is not JSON")
        return float(word)

    def number(digits: str) -> float:
        value = float(digits)
        if math.isinf(value):
            fault("nan-in-json", f"{digits[:40]} is beyond the largest number")
        return value

    try:
        values = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    except (ValueError, RecursionError) as error:
        at = error.pos if isinstance(error, json.JSONDecodeError) else 0
        message = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        return _bad(record, "bad-json", f"not JSON: {message}", len(text[:at].encode("utf-8", "replace")))
    if type(values) is not dict:
        return _bad(record, "not-an-object", f"the row is {_NAMES[type(values)]}, not an object", 0)
    if "\\u" in text and (whole := _without_surrogates(values)) != values:
        fault("lone-surrogate", "a \\u escape names half a surrogate pair, which is no character")
        values = whole
    return Row(values, record.line, tuple(faults))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return [_without_surrogates(item) for item in value] if isinstance(value, list) else value


def _not_json(record: Record, error: orjson.JSONDecodeError) -> Row:
    raw = record.raw
    assert raw is not None
    if b"\0" in raw:
        at = raw.index(0)
        what = "nothing but NUL bytes" if not raw.strip(b"\0 \t\r\n") else "a NUL byte"
        return _bad(record, "nul-byte", f"the row holds {what}", at)
    try:
        text = raw.decode()
    except UnicodeDecodeError as wrong:
        message = f"byte 0x{raw[wrong.start]:02x} is not UTF-8: {wrong.reason}"
        if not record.ended and wrong.reason == "unexpected end of data":
            return _bad(record, "truncated-row", "the file ends in the middle of a row", len(raw))
        repaired = _second_look(record, raw.decode(errors="replace"))
        fault = Fault("bad-encoding", message, record.line, record.offset + wrong.start)
        return repaired._replace(faults=(fault, *repaired.faults))
    if marks := _MARKS.match(raw):
        row = parse(record._replace(raw=raw[marks.end() :]))
        note = Fault("mark-inside", "a byte-order mark stands inside the text", record.line, record.offset)
        return row._replace(faults=(note, *row.faults))
    row = _second_look(record, text)
    if row.values is not None or row.faults[0].code == "not-an-object":
        return row
    at = len(text[: error.pos].encode())
    if not text.strip():
        return _bad(record, "bad-json", "an element is missing between two commas", 0)
    if not record.ended and not text.rstrip().endswith("}"):
        return _bad(record, "truncated-row", f"the file ends in the middle of a row ({error.msg})", len(raw))
    hint = "; a bare CR stands inside it: mixed line ends?" if b"\r" in raw.strip() else ""
    return _bad(record, "bad-json", f"not JSON: {error.msg}, {_near(text, error.pos)}{hint}", at)


def _near(text: str, at: int) -> str:
    return f"near {text[max(0, at - 12) : at + 12]!r}"


def _bad(record: Record, code: str, message: str, at: int) -> Row:
    return Row(None, record.line, (Fault(code, message, record.line, record.offset + at),))
