# SPDX-License-Identifier: Apache-2.0
"""Which files have the same content. Only files of equal size are ever read."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable

from fewbit.data.walk import Entry


def duplicates(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Groups of two or more files with the same bytes, in the order of the entries; empty files are left out.

    Cost: one `stat` a file, one read of each file that shares its size with another.
    """
    by_size: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        try:
            size = os.stat(entry.path).st_size
        except OSError:
            continue  # whoever lists the files reports this one
        if size:
            by_size[size].append(entry)
    by_content: dict[bytes, list[Entry]] = defaultdict(list)
    for alike in by_size.values():
        if len(alike) > 1:
            for entry in alike:
                by_content[_digest(entry.path)].append(entry)
    return [group for group in by_content.values() if len(group) > 1]


def _digest(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError:
        return path.encode(errors="surrogateescape")  # unreadable: equal to nothing else
