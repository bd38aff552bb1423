# SPDX-License-Identifier: Apache-2.0
"""Whose error it is: the user's own file, the machine, or ours. Ours stay loud; the others are told in a few lines."""

from __future__ import annotations

from pathlib import Path
from traceback import walk_tb
from types import FrameType

from fewbit import registry
from fewbit.errors import FewbitError

_MOST = 600
"""Characters of a message: a state dict that does not fit names every one of its tensors."""
_TRY = "the same command with --traceback, which shows how it came to this"


def explain(error: Exception) -> FewbitError | None:
    """An exception that is no fault of fewbit's, as an error with its parts; `None` for one that may be."""
    told = _in_the_users_file(error)
    if told is None and isinstance(error, OSError):
        what = f"{type(error).__name__}: {error.strerror or error}"
        told = FewbitError(what, where=error.filename, try_=_TRY)
    return told


def _in_the_users_file(error: Exception) -> FewbitError | None:
    """An error that came out of a `file.py:function`, or of what that called, with the line of the file."""
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
        return FewbitError(f"SyntaxError: {error.msg}", where=f"{error.filename}:{error.lineno}")
    # Frames of libraries count for whoever called them.
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _is_users(frame) or _is_ours(frame)]
    users = [(frame, line) for frame, line in frames if _is_users(frame)]
    if not users or not _is_users(frames[-1][0]):
        return None
    (first, _), (last, line) = users[0], users[-1]
    file, function = Path(first.f_code.co_filename), first.f_code.co_name
    name = file.name if function == "<module>" else f"{file.name}:{function}"
    return FewbitError(
        f"{name} raised {type(error).__name__}: {str(error)[:_MOST]}".rstrip(": "),
        where=f"{last.f_code.co_filename}:{line}",
        try_=_TRY,
    )


def _is_users(frame: FrameType) -> bool:
    return registry.is_users(str(frame.f_globals.get("__name__")), frame.f_code.co_filename)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "fewbit"
