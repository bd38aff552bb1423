# SPDX-License-Identifier: Apache-2.0
"""Reading a `.npy` header without evaluating it.

numpy reads the header as a Python literal; a file from anywhere can make that slow, deep or wrong. The header
is matched here against the one form it can have. Files of one dataset mostly share their headers, so a header
already seen costs one look-up.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from fewbit.data import limits
from fewbit.data.arrays.description import ArrayInfo, dtype_name
from fewbit.data.arrays.faults import ArrayFault

MAGIC = b"\x93NUMPY"
LONGEST = 10_000 + 12
"""The longest header that is read, with its prefix; numpy has the same limit."""

_AXES = 32
_EMPTY = 1 << 20
USUAL = b"\x93NUMPY\x01\x00v\x00"
"""Version 1 and 118 bytes of text: how numpy itself begins the file of nearly every array."""

_ENTRY = re.compile(
    rb"""\s*(?P<q>['"])(?P<key>descr|fortran_order|shape)(?P=q)\s*:\s*"""
    rb"""(?:(?P<w>['"])(?P<text>[^'"\\]{1,24})(?P=w)|(?P<flag>True|False)|\((?P<axes>[0-9L,\s]{0,2000})\))\s*"""
)
_RECORDS = re.compile(rb"""['"]descr['"]\s*:\s*[\[({]""")
_DESCR = re.compile(r"[<>|=]?([?biufcUSaVOmM])([0-9]{0,9})(\[.*\])?")


def header_size(head: bytes) -> int:
    """How many bytes a `.npy` header takes with its prefix, from its first 12 bytes or more.

    Raises:
        ArrayFault: not a `.npy`, an unknown version, or a header longer than any real one.
    """
    if head[:4] == b"PK\x03\x04":
        raise ArrayFault("array-header", "is an archive and no single array; give the file the suffix .npz")
    if head[:6] != MAGIC:
        raise ArrayFault("array-header", f"does not begin as a .npy file: {head[:6]!r}")
    version, width = head[6:8], 2 if head[6:7] == b"\x01" else 4
    if version not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        raise ArrayFault("array-header", f"version {'.'.join(map(str, version))} of .npy is not known")
    if len(head) < 8 + width:
        raise ArrayFault("array-header", f"ends within its header, after {len(head)} bytes")
    size = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    if size > LONGEST:
        raise ArrayFault("array-header", f"claims a header of {size:,} bytes; a plain array needs fewer than 200")
    return size


def parse_header(head: bytes) -> tuple[ArrayInfo, int]:
    """The description of an array from the first bytes of its `.npy`, and how many bytes that takes, header included.

    What follows the header is not looked at.

    Raises:
        ArrayFault: the header is cut short or malformed, or tells of objects, records or an impossible shape.

    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.zeros((2, 3), ">f4"))
    >>> info, size = parse_header(file.getvalue())
    >>> info.shape, info.dtype, info.descr, size
    ((2, 3), 'float32', '>f4', 152)
    """
    if head[:10] == USUAL and len(head) >= 128:
        return _parse(head[:128])
    size = header_size(head)
    if len(head) < size:
        raise ArrayFault("array-header", f"ends within its header: {len(head)} of {size} bytes are there")
    return _parse(head[:size])


@lru_cache(maxsize=1024)
def _parse(header: bytes) -> tuple[ArrayInfo, int]:
    text = header[10 if header[6:7] == b"\x01" else 12 :]
    found = _entries(text)
    shape, dtype = _shape(found["shape"]), _dtype(found["descr"])
    info = ArrayInfo(shape, dtype_name(dtype), found["fortran_order"] == "True", dtype.str, len(header))
    return info, info.start + info.nbytes


def _entries(text: bytes) -> dict[str, str]:
    body = text.strip()
    if body[:1] != b"{" or body[-1:] != b"}":
        raise ArrayFault("array-header", f"the header is not a dictionary: {body[:40]!r}")
    found: dict[str, str] = {}
    at, end = 1, len(body) - 1
    while at < end:
        match = _ENTRY.match(body, at, end)
        if match is None:
            break
        key = match["key"].decode()
        value = match[{"descr": "text", "fortran_order": "flag", "shape": "axes"}[key]]
        if value is None or key in found:
            break
        found[key] = value.decode("latin-1")
        at = match.end()
        if at < end and body[at : at + 1] != b",":
            break
        at += 1
    if (at < end and body[at:end].strip()) or len(found) != 3:
        if _RECORDS.search(body):
            raise ArrayFault("array-dtype", f"holds records (a structured dtype): {body[:60]!r}")
        raise ArrayFault("array-header", f"the header is not that of a plain array: {body[:60]!r}")
    return found


def _shape(text: str) -> tuple[int, ...]:
    pieces = [piece.strip().removesuffix("L") for piece in text.split(",")]
    if pieces[-1] == "":
        pieces.pop()
    elif len(pieces) == 1:
        raise ArrayFault("array-header", f"the shape ({text}) is not a tuple")
    if not all(piece.isdecimal() and len(piece) < 20 for piece in pieces):
        raise ArrayFault("array-header", f"the shape ({text[:60]}) is not a tuple of whole numbers")
    shape = tuple(int(piece) for piece in pieces)
    most = _EMPTY if 0 in shape else limits.ARRAY_BYTES  # no bytes in the file bear out the axes of an empty array
    if len(shape) > _AXES or any(axis > most for axis in shape):
        raise ArrayFault("array-bomb", f"claims the shape ({text[:60]}), which no sample has")
    return shape


def _dtype(descr: str) -> np.dtype[np.generic]:
    match = _DESCR.fullmatch(descr)
    if match is None:
        raise ArrayFault("array-header", f"the dtype {descr!r} is not one of numpy's")
    kind = match[1]
    if kind == "O":
        raise ArrayFault("array-dtype", "holds Python objects, which only unpickling could restore")
    if kind == "V":
        bf16 = ": this is how numpy stores bfloat16, whose name it does not know" if match[2] == "2" else ""
        raise ArrayFault("array-dtype", f"holds raw bytes ({descr}){bf16}")
    if kind in "mM" or match[3]:
        raise ArrayFault("array-dtype", f"holds {descr}, which no model takes")
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError) as error:
        raise ArrayFault("array-header", f"the dtype {descr!r} is not one of numpy's") from error
    if not 0 < dtype.itemsize <= limits.ROW_BYTES:
        raise ArrayFault("array-header", f"the dtype {descr!r} has an impossible width")
    return dtype
