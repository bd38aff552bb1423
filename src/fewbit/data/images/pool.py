# SPDX-License-Identifier: Apache-2.0
"""Decoding many images on several cores, in order.

`workers=2` means that two processes decode: the caller's own and one child. The caller hands chunks of paths to
the children; whenever the next image in order is not there yet, it decodes one ahead instead of waiting. How far
anyone runs ahead is bounded in bytes. Where children cannot be had, the caller decodes alone and a warning says so.

    decode_in_order ─▶ _Team ─▶ Child (a process, see child.py) ─▶ worker.main
"""

from __future__ import annotations

import select
import sys
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import islice

import numpy as np

from fewbit.data.images.child import Child, Chunk, Outcome
from fewbit.data.images.decode import WHITE, ImageFault, read_image
from fewbit.data.images.pixels import Background

AHEAD_BYTES = 192 << 20
"""How many bytes of pixels may wait to be taken, in all."""

_POLLABLE = hasattr(select, "poll")  # on Windows a pipe cannot be asked whether something is in it
_CHUNK_SECONDS = 0.002  # long enough to make the pipe's cost small, short enough that nobody waits long at the end
_CHUNK_PATHS = 16  # and never more characters in flight than a pipe holds
_CHUNK_CHARACTERS = 2_048


def decode_in_order(
    paths: Iterable[str], workers: int = 1, background: Background = WHITE
) -> Generator[Outcome, None, None]:
    """Decode image files, in the order given, each into its pixels or the fault that it has.

    Args:
        paths: the files.
        workers: how many processes decode, the caller's included.
        background: the colour laid under transparent pixels.

    Yields:
        Arrays (H, W, 3) of uint8, or `ImageFault` objects in their stead.
    """
    if _alone(workers):
        for path in paths:
            yield _attempt(path, background)
        return
    team = _Team(paths, workers - 1, background, send=True)
    try:
        yield from team.run()
    finally:
        team.close()


def verify_in_order(paths: Iterable[str], workers: int = 1) -> Generator[ImageFault | None, None, None]:
    """Decode image files and keep only the faults: `None` for a file that is well."""
    if _alone(workers):
        for path in paths:
            yield _fault(_attempt(path, WHITE))
        return
    team = _Team(paths, workers - 1, WHITE, send=False)
    try:
        for outcome in team.run():
            yield _fault(outcome)
    finally:
        team.close()


def _alone(workers: int) -> bool:
    if workers > 1 and not _POLLABLE:
        _warn("this system cannot wait for several processes at once")
    return workers <= 1 or not _POLLABLE


def _warn(reason: str) -> None:
    warnings.warn(f"images are decoded by fewer processes than asked for: {reason}", RuntimeWarning, stacklevel=2)


def _attempt(path: str, background: Background) -> Outcome:
    try:
        return read_image(path, background=background)
    except ImageFault as fault:
        return fault


def _fault(outcome: Outcome) -> ImageFault | None:
    return outcome if isinstance(outcome, ImageFault) else None


def _size(outcome: object) -> int:
    return outcome.nbytes if isinstance(outcome, np.ndarray) else 0


class _Team:
    """The caller and its children at work on one list of paths; `_window` holds the chunks in order."""

    def __init__(self, paths: Iterable[str], children: int, background: Background, *, send: bool):
        self._paths = iter(paths)
        self._background = background
        self._window: deque[Chunk] = deque()
        self._own: deque[Chunk] = deque()
        self._own_bytes = 0
        self._memory = AHEAD_BYTES // (children + 1)
        self._chunk = 1
        self._children: list[Child] = []
        self._reasons: set[str] = set()  # why there are fewer children than asked for
        self._poll = select.poll()
        for _ in range(children):
            try:
                self._children.append(Child(background, send=send, memory=self._memory))
            except OSError as error:
                self._reasons.add(f"{sys.executable} cannot be started: {error.strerror}")
            else:
                self._poll.register(self._children[-1])
        self._by_file = {child.fileno(): child for child in self._children}

    def run(self) -> Iterator[Outcome]:
        for reason in self._reasons:
            _warn(reason)
        self._claim(None)  # the children are still starting
        while True:
            for child in self._children:
                while child.alive and child.free and self._claim(child):
                    pass
            if not self._window and not self._claim(None):
                return
            head = self._window[0]
            while head.ready:
                yield self._take(head)
            if not head.todo:
                self._window.popleft()
            elif head.child is None or not head.child.alive:
                if head.child is not None:
                    self._note_death()
                yield self._decode(head)  # when its child died, what is left is ours
            elif not self._hear() and not self._work_ahead():
                head.child.hear()

    def close(self) -> None:
        for child in self._children:
            child.close()

    def _note_death(self) -> None:
        reason = "one of them ended before its work was done"
        if reason not in self._reasons:
            self._reasons.add(reason)
            _warn(reason)

    def _claim(self, child: Child | None) -> bool:
        """Give the next paths to a child, or take them for ourselves; whether there were any."""
        paths: list[str] = []
        size = 0
        for path in islice(self._paths, self._chunk):
            paths.append(path)
            size += len(path)
            if size > _CHUNK_CHARACTERS:
                break
        if not paths:
            return False
        chunk = Chunk(paths, child)
        self._window.append(chunk)
        if child is None:
            self._own.append(chunk)
        else:
            child.give(chunk)
        return True

    def _hear(self) -> bool:
        """Let the children say what is ready, unless we are behind in taking it; whether one said anything."""
        heard = False
        for file, _ in self._poll.poll(0):
            child = self._by_file[file]
            if child.piped > self._memory:
                continue
            child.hear()
            heard = True
            if not child.alive:
                self._poll.unregister(file)
        return heard

    def _take(self, head: Chunk) -> Outcome:
        if head.child is not None:
            return head.child.take(head)
        outcome = head.ready.popleft()
        assert not isinstance(outcome, tuple)
        self._own_bytes -= _size(outcome)
        return outcome

    def _work_ahead(self) -> bool:
        while self._own and not self._own[0].todo:
            self._own.popleft()
        if self._own_bytes > self._memory or not (self._own or self._claim(None)):
            return False
        outcome = self._decode(self._own[0])
        self._own_bytes += _size(outcome)
        self._own[0].ready.append(outcome)
        return True

    def _decode(self, chunk: Chunk) -> Outcome:
        start = time.perf_counter()
        outcome = _attempt(chunk.todo.popleft(), self._background)
        took = time.perf_counter() - start
        if took > _CHUNK_SECONDS:
            self._hear()  # images this large may not fit the shared memory: let nobody stand before a full pipe
        self._chunk = max(1, min(_CHUNK_PATHS, int(_CHUNK_SECONDS / max(took, 1e-9))))
        return outcome
