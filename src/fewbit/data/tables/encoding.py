# SPDX-License-Identifier: Apache-2.0
"""Which encoding a text file is in, and its bytes as UTF-8.

A byte-order mark decides; without one the text is UTF-8, strictly; the user's `encoding=` beats both. Nothing
is guessed from the letters: a guess that is wrong once in a thousand files corrupts silently.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

from fewbit.data.tables.table import Broken
from fewbit.errors import UsageError

# The marks of UTF-32 begin like those of UTF-16, so they are looked at first.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UTF8 = frozenset({"utf-8", "ascii"})


def detect(head: bytes, chosen: str | None = None) -> tuple[str, int]:
    """The encoding of a text by its first bytes, and how many of those are its byte-order mark.

    Args:
        head: four bytes or more, unless the file is shorter.
        chosen: the user's own word, if any.

    >>> detect(b"\\xef\\xbb\\xbf{}"), detect(b"\\xff\\xfea\\0"), detect(b"{}"), detect(b"{}", "cp1252")
    (('utf-8', 3), ('utf-16-le', 2), ('utf-8', 0), ('cp1252', 0))
    """
    found = next(((name, len(mark)) for mark, name in _MARKS if head.startswith(mark)), None)
    if chosen is None:
        return found or ("utf-8", 0)
    name = canonical(chosen)
    if found and found[0].startswith(name):  # "utf-16" with a mark that says which of the two it is
        return found
    return ("utf-8" if name in _UTF8 else name), 0


def canonical(name: str) -> str:
    """Python's own name of a text encoding.

    Raises:
        UsageError: Python knows no such encoding, or it is not one of text.
    """
    try:
        b"a".decode(name, "ignore")  # no error for half a UTF-16 character, but one for what is not text
        return codecs.lookup(name).name.removesuffix("-sig").removesuffix("_sig")
    except (LookupError, ValueError) as error:
        raise UsageError(
            f"there is no text encoding {name!r}", where="encoding", expected="utf-8, utf-16, cp1252, shift_jis, …"
        ) from error


def to_utf8(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The same text as UTF-8, chunk by chunk.

    Raises:
        Broken: a byte that means nothing in this encoding, with its offset in what was read.
    """
    decoder = codecs.getincrementaldecoder(name)()
    done = 0
    for chunk, last in _with_last(chunks):
        pending = len(decoder.getstate()[0]) if done else 0
        try:
            text = decoder.decode(chunk, final=last)
        except UnicodeError as error:
            start = error.start if isinstance(error, UnicodeDecodeError) else 0
            raise Broken(
                "bad-encoding",
                f"not {name}: {getattr(error, 'reason', error)}",
                offset=done - pending + start,
                fix="pass the file's real encoding as `encoding=`",
            ) from error
        done += len(chunk)
        yield text.encode("utf-8", "surrogatepass")


def _with_last(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    for chunk in chunks:
        yield chunk, False
    yield b"", True
