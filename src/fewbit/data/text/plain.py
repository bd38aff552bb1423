# SPDX-License-Identifier: Apache-2.0
"""Files of plain text, and lines of text, as documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fewbit.data import walk
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source
from fewbit.errors import DataError

SUFFIXES = (".txt", ".text", ".md", ".raw")
_LONGEST = 200_000
"""Characters after which a document ends at the next line: nothing has to be tokenized whole that does not end."""
_TITLE = re.compile(r" ?= [^=\n].* = *\n?")


class TextFiles(Source):
    """The documents in files of plain text, in the order of the files' names; a file is one, if it is not too long.

    Args:
        place: the file, or the folder.
        files: those to read.
        titles: whether files hold several articles, each with its title.
    """

    def __init__(self, place: Path, files: list[Path], *, titles: bool = False):
        super().__init__()
        self._place, self._files, self._titles = place, files, titles
        self.facts["files"] = len(files)

    def __iter__(self) -> Iterator[Sample]:
        for path in self._files:
            yield from documents(self._lines(path), titles=self._titles)

    def _lines(self, path: Path) -> Iterator[Sample]:
        name = path.name if path == self._place else path.relative_to(self._place).as_posix()
        number = 0
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                for number, line in enumerate(file, 1):
                    yield Sample({"text": line}, place=Place(name, line=number))
        except UnicodeDecodeError as error:
            raise DataError(
                f"the file is not UTF-8: {error.reason} after line {number}",
                code="bad-encoding",
                where=path,
                expected="plain text in UTF-8",
                try_=f"iconv -f LATIN1 -t UTF-8 {path.name}, or whatever it was written in",
            ) from error


class Articles(Source):
    """Rows that are lines, put together to the articles they come from: a title starts the next."""

    def __init__(self, inner: Source):
        super().__init__()
        self.facts, self.record = inner.facts, inner.record
        self._inner = inner

    def __iter__(self) -> Iterator[Sample]:
        return documents(self._inner, titles=True)


def text_files(place: Path) -> list[Path]:
    """The file, or the files in a folder, that hold plain text by their suffix."""
    if place.is_file():
        return [place] if place.suffix.lower() in SUFFIXES else []
    found = (Path(entry.path) for entry in walk.walk(place))
    return sorted(path for path in found if path.suffix.lower() in SUFFIXES)


def documents(lines: Iterable[Sample], *, titles: bool) -> Iterator[Sample]:
    """Lines as documents.

    Args:
        lines: samples with a `text` each.
        titles: whether a line such as ` = Title = ` starts another document.

    >>> lines = [Sample({"text": line}) for line in (" = A = \\n", " one \\n", " = B = \\n", " two \\n")]
    >>> [each["text"] for each in documents(lines, titles=True)]
    [' = A = \\n one \\n', ' = B = \\n two \\n']
    """
    kept: list[str] = []
    start, length = Place(), 0
    for line in lines:
        text = line.get("text") or ""
        if kept and (length > _LONGEST or (titles and _TITLE.fullmatch(text))):
            yield Sample({"text": "".join(kept)}, place=start)
            kept, length = [], 0
        if not kept and not text.strip():
            continue
        if not kept:
            start = line.place
        kept.append(text if text.endswith("\n") or not text else text + "\n")
        length += len(text)
    if kept:
        yield Sample({"text": "".join(kept)}, place=start)
