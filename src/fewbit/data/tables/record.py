# SPDX-License-Identifier: Apache-2.0
"""One row of a JSON text before it is parsed."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """The bytes of one row and where they begin.

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
