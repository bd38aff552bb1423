# SPDX-License-Identifier: Apache-2.0
"""What can be wrong inside an array file, and the one exception that says so."""

from __future__ import annotations

from dataclasses import replace

from fewbit.data import walk
from fewbit.data.findings import Code, Severity
from fewbit.data.sample import Place
from fewbit.errors import DataError

_SAVE_AGAIN = "write the file again: numpy.savez(path, **{name: array}), or drop it with `--fix`"

ARRAY_CODES = {
    "unreadable": replace(walk.CODES["unreadable"], policy="raise", policies=("drop",)),
    "archive-broken": Code(Severity.ERROR, "not a whole .npz archive", _SAVE_AGAIN, "raise", ("drop",)),
    "archive-unsafe": Code(
        Severity.ERROR,
        "an archive made to mislead: encrypted, duplicate, overlapping or path-like members",
        "do not use this file unless you know who made it; write it again from the arrays",
        "raise",
        ("drop",),
    ),
    "array-bomb": Code(
        Severity.ERROR,
        "an array claims far more memory than a sample may take, or than its compressed bytes explain",
        "store one sample a file, or save without compression",
        "raise",
        ("drop",),
    ),
    "array-header": Code(Severity.ERROR, "a .npy header that cannot be read", _SAVE_AGAIN, "raise", ("drop",)),
    "array-size": Code(
        Severity.ERROR, "an array has fewer or more bytes than its header says", _SAVE_AGAIN, "raise", ("drop",)
    ),
    "array-dtype": Code(
        Severity.ERROR,
        "an array of Python objects, records or raw bytes; fewbit never unpickles",
        "save a plain array: array.astype('float32') (bfloat16: as float32), one name a field",
        "raise",
        ("drop",),
    ),
    "array-corrupt": Code(Severity.ERROR, "the bytes fail their checksum", _SAVE_AGAIN, "raise", ("drop",)),
    "stack-uneven": Code(
        Severity.ERROR,
        "the arrays of a stack differ in their first axis, which counts the samples",
        "give every array the same first axis, or read the file as one sample: stacked=False",
        "raise",
        ("drop",),
    ),
    "member-not-array": Code(
        Severity.WARN, "a member of the archive is not a .npy array", "remove it; it is passed over", "drop", ("raise",)
    ),
}
"""What the readers in this folder can find."""


class ArrayFault(DataError):
    """One fault of an array file, with its code and its place inside the file.

    Args:
        code: a name in `ARRAY_CODES`.
        message: what was found.
        field: the array inside the archive.
        offset: the byte in the file.

    >>> ArrayFault("array-dtype", "holds Python objects", field="x").at("a.npz").where
    "a.npz, field 'x'"
    """

    def __init__(self, code: str, message: str, *, field: str | None = None, offset: int | None = None):
        super().__init__(message, code=code, try_=ARRAY_CODES[code].fix)
        self.place = Place(field=field, offset=offset)

    def at(self, path: str) -> ArrayFault:
        """The same fault, now with the file it was found in."""
        self.place = Place(path, offset=self.place.offset, field=self.place.field)
        self.where = str(self.place)
        return self
