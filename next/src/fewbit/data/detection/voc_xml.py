# SPDX-License-Identifier: Apache-2.0
"""The XML of Pascal VOC, read within limits and without entities, and edited."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree

XML_BYTES = 4 << 20
_DEEPEST = 32
_HEAD = 1024
_LARGEST = 1e9  # no image is that wide
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_ENCODING = re.compile(rb"""^\s*<\?xml[^>]*encoding\s*=\s*["']([^"']+)""")
_ENCODINGS = (b"utf-8", b"utf8", b"ascii", b"us-ascii", b"iso-8859-1", b"latin-1", b"windows-1252")


class VocObject(NamedTuple):
    """One object as written: its class by name, its edges in pixels if they are numbers."""

    name: str
    edges: tuple[float, ...] | None
    difficult: bool


def read_xml(content: bytes) -> ElementTree.Element:
    """Parse an annotation file.

    Raises:
        ValueError: not such a file, or a hostile one.
    """
    encoding = _ENCODING.search(content[:_HEAD])
    if len(content) > XML_BYTES:
        raise ValueError(f"more than {XML_BYTES:,} bytes")
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise ValueError("it has a DOCTYPE or entities, which are not read")
    if b"\0" in content or (encoding and encoding[1].lower() not in _ENCODINGS):
        raise ValueError("it is not UTF-8")  # in another encoding a DOCTYPE would not have been seen
    parser = ElementTree.XMLParser(target=_Bounded())
    try:
        parser.feed(content)
        root = parser.close()
    except (ElementTree.ParseError, LookupError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(root, ElementTree.Element) or root.tag != "annotation":
        raise ValueError("its root is not <annotation>")
    return root


class _Bounded(ElementTree.TreeBuilder):
    """A tree that is not deeper than annotations are."""

    _depth = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> ElementTree.Element:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST}")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> ElementTree.Element:
        self._depth -= 1
        return super().end(tag)


def read_size(root: ElementTree.Element) -> tuple[int, int] | None:
    """Width and height; some tools write 0."""
    width, height = (int(_number(root.findtext(f"size/{side}")) or 0) for side in ("width", "height"))
    return (width, height) if width > 0 and height > 0 else None


def read_objects(root: ElementTree.Element) -> list[VocObject]:
    """Every object, in the order of the file."""
    objects = []
    for node in root.findall("object"):
        values = [_number(node.findtext(f"bndbox/{edge}")) for edge in _EDGES]
        edges = tuple(value for value in values if value is not None)
        difficult = (node.findtext("difficult") or "").strip() == "1"
        name = (node.findtext("name") or "").strip()
        objects.append(VocObject(name, edges if len(edges) == 4 else None, difficult))
    return objects


def _number(text: str | None) -> float | None:
    """A number as programs write it; NaN and infinity are none."""
    try:
        value = float(text or "") if text and text.isascii() and "_" not in text else math.nan
    except ValueError:
        return None
    return value if abs(value) < _LARGEST else None


def edit_objects(content: bytes, edges: Mapping[int, Sequence[int] | None]) -> bytes:
    """An annotation file in which some objects, by their numbers, have other edges; `None` removes an object."""
    root = read_xml(content)
    for number, node in enumerate(root.findall("object")):
        values = edges.get(number, ())
        if values is None:
            root.remove(node)
        for name, value in zip(_EDGES, values or ()):
            edge = node.find(f"bndbox/{name}")
            if edge is not None:
                edge.text = str(value)
    return bytes(ElementTree.tostring(root, encoding="utf-8"))
