# SPDX-License-Identifier: Apache-2.0
"""Every error fewbit raises: what was found, where, what was expected, what to try.

One base class, so that `except FewbitError` catches all of ours and nothing else. The subclasses only
say whose turn it is: the caller's (`UsageError`), the data's (`DataError`), the machine's (`MissingLibrary`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class FewbitError(Exception):
    """An error with its four parts kept apart, so that a page or a program can show them as it likes.

    Args:
        what: what was found, in one sentence.
        where: file, line, layer or sample index.
        expected: what would have been right.
        try_: the next thing to do.

    >>> print(FewbitError("label 7 is out of range", where="a.txt:3", expected="0 to 4", try_="fix the row"))
    label 7 is out of range
      where:    a.txt:3
      expected: 0 to 4
      try:      fix the row
    """

    exit_code = 1

    def __init__(self, what: str, *, where: object = None, expected: object = None, try_: object = None):
        super().__init__(what)
        self.what = what
        self.where = None if where is None else str(where)
        self.expected = None if expected is None else str(expected)
        self.try_ = None if try_ is None else str(try_)

    def __str__(self) -> str:
        parts = (("where", self.where), ("expected", self.expected), ("try", self.try_))
        return "\n".join([self.what, *(f"  {name + ':':<10}{text}" for name, text in parts if text)])

    def to_dict(self) -> dict[str, str | None]:
        """The four parts under the names the JSON output uses."""
        return {"what": self.what, "where": self.where, "expected": self.expected, "try": self.try_}


class UsageError(FewbitError):
    """The call itself is wrong: an unknown name, an option that does not exist, arguments that contradict."""

    exit_code = 2


class DataError(FewbitError):
    """The data is wrong: a file, a row or a sample that cannot be what it claims to be.

    `code` names the finding (see `fewbit list findings`), so that a policy can decide about it.
    """

    def __init__(self, what: str, *, code: str | None = None, **parts: Any):
        super().__init__(what, **parts)
        self.code = code


class MissingLibrary(FewbitError):
    """An optional library is not installed."""

    exit_code = 2


class BrokenResultWarning(UserWarning):
    """A quantized model was measured on held-out samples and does not work: its outputs are not the original's."""


class RuntimeDiffersWarning(UserWarning):
    """ONNX Runtime does not compute what the quantized file says: the outputs here are worse than as written."""


class NothingQuantizedWarning(UserWarning):
    """Accuracy control gave every layer back to float: the result is the model as it was given."""


class CalibrationWarning(UserWarning):
    """The calibration data may not stand for what the model will see: few samples, few classes, only a head."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence for a name that is not known: the near matches first, then everything there is.

    >>> nearest("yollo", ["npz", "yolo"])
    "did you mean 'yolo'? Known: npz, yolo"
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.5) or [n for n in names if n.lower() == name.lower()]
    ask = f"did you mean {' or '.join(repr(n) for n in close)}? " if close else ""
    return f"{ask}Known: {', '.join(names) or 'nothing'}"


def require(library: str, *, extra: str, purpose: str) -> Any:
    """Import an optional library, or say which extra brings it.

    Args:
        library: the module to import, dots allowed.
        extra: the extra of fewbit that installs it.
        purpose: what it is needed for, as it will stand in the message.
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise MissingLibrary(
            f"{purpose} needs the library {library!r}, which is not installed here",
            expected=f"{library} importable ({error})",
            try_=f"pip install 'fewbit[{extra}]'",
        ) from error
