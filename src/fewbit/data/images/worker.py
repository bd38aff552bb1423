# SPDX-License-Identifier: Apache-2.0
"""A child process that decodes images for `pool`: lines of JSON in, pixels out. Nothing is pickled.

The first line is `[background, send, arena]`; every further line is `[start, end, [path, …]]`. For every path one
reply of three numbers comes back: `height, width, at`. `at` is where the pixels (H, W, 3) lie in the shared arena,
within `start` and `end`; when they do not fit, it is `INLINE` and the pixels follow in the pipe. A height of 0
means a fault: `width` bytes follow, a JSON pair `[code, message]`. The child ends when its input ends, so it cannot
outlive its parent.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
from typing import Any

from fewbit.data.images.decode import ImageFault, read_image

REPLY = struct.Struct("<IIQ")
INLINE = (1 << 64) - 1
NO_ARENA = -1


def main() -> None:
    """Serve requests from standard input until it ends."""
    requests = sys.stdin.buffer
    if not (first := requests.readline()):
        return
    background, send, arena = json.loads(first)
    shared = mmap.mmap(arena, 0) if arena != NO_ARENA else None
    replies = sys.stdout.fileno()
    for line in requests:
        start, end, paths = json.loads(line)
        for path in paths:
            try:
                pixels = read_image(path, background=tuple(background))
            except ImageFault as fault:
                text = json.dumps([fault.code, fault.message]).encode()
                _write(replies, REPLY.pack(0, len(text), 0) + text)
                continue
            height, width, _ = pixels.shape
            if not send:
                _write(replies, REPLY.pack(height, width, 0))
            elif shared is not None and start + pixels.nbytes <= end:
                shared[start : start + pixels.nbytes] = pixels.data.cast("B")
                _write(replies, REPLY.pack(height, width, start))
                start += pixels.nbytes
            else:
                _write(replies, REPLY.pack(height, width, INLINE))
                _write(replies, pixels.data.cast("B"))


def _write(file: int, content: Any) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
