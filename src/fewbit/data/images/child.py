# SPDX-License-Identifier: Apache-2.0
"""The parent's end of one decoding process: chunks of paths go out, outcomes come back.

The child is a fresh interpreter, not a fork: scripts need no `__main__` guard, and libraries with threads of
their own are safe. Pixels travel through memory that both share, where the system has it, else through the pipe.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections import deque
from contextlib import suppress

import numpy as np

from fewbit.data.images.decode import ImageFault
from fewbit.data.images.pixels import Array, Background
from fewbit.data.images.worker import INLINE, NO_ARENA, REPLY

Outcome = Array | ImageFault

SLOTS = 4
"""How many chunks a child may have at once; each has its own part of the shared memory."""

_READ = 1 << 20
# The path of modules is the parent's own; the folder one happens to stand in (a dataset's, perhaps) is not on it.
_BOOT = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = sys.argv[1:]; "
    "from fewbit.data.images.worker import main; main()"
)


class Chunk:
    """Consecutive paths with one owner, a child or (`None`) the caller: `todo` is undecoded, `ready` not yet taken."""

    def __init__(self, paths: list[str], child: Child | None):
        self.todo = deque(paths)
        self.ready: deque[Outcome | tuple[int, int, int]] = deque()
        self.child = child
        self.slot = 0


class Child:
    """One decoding process.

    Args:
        background: the colour laid under transparent pixels.
        send: whether pixels are wanted, or only faults.
        memory: how many bytes of pixels may wait to be taken.
    """

    def __init__(self, background: Background, *, send: bool, memory: int):
        self.alive = True
        self.free = list(range(SLOTS))
        self.piped = 0  # bytes of pixels that came through the pipe and were not taken yet
        self._chunks: deque[Chunk] = deque()
        self._heard = bytearray()
        self._send = send
        self._slot_bytes = memory // SLOTS if send else 0
        arena = _arena(self._slot_bytes * SLOTS)
        self._arena = None if arena == NO_ARENA else mmap.mmap(arena, self._slot_bytes * SLOTS)
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, *(folder for folder in sys.path if folder)],
                bufsize=0,
                stdin=pipe,
                stdout=pipe,
                stderr=subprocess.DEVNULL,
                pass_fds=() if arena == NO_ARENA else (arena,),
            )
        finally:
            if arena != NO_ARENA:
                os.close(arena)
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        self._write([background, send, arena])

    def fileno(self) -> int:
        """The pipe to wait on."""
        return self._pipe

    def give(self, chunk: Chunk) -> None:
        """Hand over a chunk; there must be a free slot."""
        chunk.slot = self.free.pop()
        self._chunks.append(chunk)
        start = chunk.slot * self._slot_bytes
        self._write([start, start + self._slot_bytes, list(chunk.todo)])

    def hear(self) -> None:
        """Read the replies that are there, waiting for one if need be; a child that has gone is no longer `alive`."""
        try:
            self._fill(len(self._heard) + 1)  # part of a reply may be here already
            while len(self._heard) >= REPLY.size:
                self._hear_one()
        except (EOFError, OSError):
            self.alive = False

    def _hear_one(self) -> None:
        height, width, at = REPLY.unpack(self._next(REPLY.size))
        outcome: Outcome | tuple[int, int, int] = (height, width, at)
        if height == 0:
            outcome = ImageFault(*json.loads(self._next(width)))
        elif at == INLINE:
            outcome = np.frombuffer(self._next(height * width * 3), np.uint8).reshape(height, width, 3)
            self.piped += outcome.nbytes
        chunk = self._chunks[0]
        chunk.todo.popleft()
        chunk.ready.append(outcome)
        if not chunk.todo:
            self._chunks.popleft()

    def take(self, chunk: Chunk) -> Outcome:
        """The next outcome of a chunk as an object of its own; the slot is free after the last one."""
        outcome = chunk.ready.popleft()
        if isinstance(outcome, tuple):
            outcome = self._pixels(*outcome)
        elif isinstance(outcome, np.ndarray):
            self.piped -= outcome.nbytes
        if not chunk.todo and not chunk.ready:
            self.free.append(chunk.slot)
        return outcome

    def close(self) -> None:
        """End the process and give everything back."""
        self.alive = False
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        if self._arena is not None:
            self._arena.close()

    def _pixels(self, height: int, width: int, at: int) -> Array:
        if not self._send:
            return np.empty((0, 0, 3), np.uint8)
        assert self._arena is not None
        flat = np.frombuffer(self._arena, np.uint8, height * width * 3, at)
        return flat.reshape(height, width, 3).copy()

    def _write(self, message: object) -> None:
        assert self._process.stdin is not None
        rest = memoryview(json.dumps(message).encode() + b"\n")
        with suppress(OSError):  # a child that has gone is noticed when its reply does not come
            while rest:
                rest = rest[os.write(self._process.stdin.fileno(), rest) :]

    def _next(self, size: int) -> bytearray:
        """The next bytes from the child, however long they take."""
        self._fill(size)
        if size == len(self._heard):
            piece, self._heard = self._heard, bytearray()
        else:
            piece = self._heard[:size]
            del self._heard[:size]
        return piece

    def _fill(self, size: int) -> None:
        while len(self._heard) < size:
            content = os.read(self._pipe, min(_READ, max(4096, size - len(self._heard))))
            if not content:
                raise EOFError
            self._heard += content


def _arena(size: int) -> int:
    """A file descriptor of shared memory, or `NO_ARENA` where the system has none to give."""
    if size == 0 or not hasattr(os, "memfd_create"):
        return NO_ARENA
    try:
        arena = os.memfd_create("fewbit-pixels")
    except OSError:
        return NO_ARENA
    os.ftruncate(arena, size)
    return arena
