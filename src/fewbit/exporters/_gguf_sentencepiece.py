# SPDX-License-Identifier: Apache-2.0
"""What a SentencePiece file says, read straight from its protocol buffer.

ModelProto       1: pieces   2: trainer_spec   3: normalizer_spec
SentencePiece    1: text     2: score, a float   3: type
TrainerSpec      3: model_type, 1 for unigram and 2 for BPE
NormalizerSpec   2: compiled map of characters   3: whether a space is put in front
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewbit.errors import DataError


@dataclass
class Pieces:
    """The pieces in order: text, score, type; and how text is prepared."""

    pieces: list[tuple[Any, ...]] = field(default_factory=list)
    unigram: bool = True
    dummy_prefix: bool = True
    charsmap: bytes = b""


def read_model(path: Path) -> Pieces:
    """The pieces of a `tokenizer.model`.

    Raises:
        DataError: a file that is cut off or something else.
    """
    try:
        return _model(path.read_bytes())
    except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"this is no SentencePiece model: {error}", where=path, expected="a whole file") from error


def _model(data: bytes) -> Pieces:
    found = Pieces()
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(value))
            score = struct.unpack("<f", piece.get(2, b"\0\0\0\0"))[0]
            found.pieces.append((piece.get(1, b"").decode(), score, piece.get(3, 1)))
        elif number == 2:
            found.unigram = dict(_fields(value)).get(3, 1) == 1
        elif number == 3:
            spec = dict(_fields(value))
            found.charsmap, found.dummy_prefix = spec.get(2, b""), bool(spec.get(3, 1))
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Every field of a message: numbers as integers, all else as bytes."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        kind = tag & 7
        if kind == 0:
            value: Any
            value, place = _varint(data, place)
        elif kind in (1, 2, 5):
            size, place = (8, place) if kind == 1 else (4, place) if kind == 5 else _varint(data, place)
            value, place = data[place : place + size], place + size
            if place > len(data):
                raise ValueError(f"a field ends at byte {place} of {len(data)}")
        else:
            raise ValueError(f"a field of kind {kind}")
        yield tag >> 3, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[place] & 127) << shift
        shift, place = shift + 7, place + 1
        if data[place - 1] < 128:
            return value, place
