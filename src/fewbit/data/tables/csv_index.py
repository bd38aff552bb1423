# SPDX-License-Identifier: Apache-2.0
"""Where each record of a CSV text begins, header included."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fewbit.data.tables.csv_blocks import Block, Blocks
from fewbit.data.tables.csv_feed import Feed
from fewbit.data.tables.index import Index
from fewbit.data.tables.table import Fault


def offsets(chunks: Iterable[bytes], delimiter: str, fault: Fault | None = None) -> Index:
    """The index of a text; lines are kept only when some record does not begin on the line of its own number.

    Args:
        chunks: the bytes of the plain text.
        delimiter: one character.
        fault: why the text ends before its time; then the record in which it ends is left out.

    >>> index = offsets([b'a,b\\n1,"x\\ny"\\n2,z\\n'], ",")
    >>> index.offsets.tolist(), index.lines.tolist()
    ([0, 4, 12, 16], [1, 2, 4, 5])
    """
    blocks = Blocks(Feed(chunks, fault=fault), ord(delimiter))
    starts: list[np.ndarray] = []
    lines: list[np.ndarray] = []
    count, in_step = 0, True
    for item in blocks:
        begins = item.begins() + item.offset if isinstance(item, Block) else np.array([item.offset])
        at = item.lines if isinstance(item, Block) else np.array([item.line])
        starts.append(begins.astype(np.uint64))
        if in_step and (at[0] != count + 1 or at[-1] != count + len(at)):
            in_step = False
            lines = [np.arange(1, count + 1, dtype=np.uint64)]
        if not in_step:
            lines.append(at.astype(np.uint64))
        count += len(at)
    starts.append(np.array([blocks.offset], np.uint64))
    lines.append(np.array([blocks.line], np.uint64))
    return Index(np.concatenate(starts), None if in_step else np.concatenate(lines))
