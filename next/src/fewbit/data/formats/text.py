# SPDX-License-Identifier: Apache-2.0
"""Plain text and Markdown: files, or folders of files, as documents. A sample is `{"text": …}`.

A file is one document, unless it is a dump of Wikipedia articles, which begin with a line such as ` = Title = `. Longer
documents end after 200,000 characters, at a line end, so that no text is too long to tokenize.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fewbit.data.images.signatures import is_image_name
from fewbit.data.rows import shards
from fewbit.data.rows import text as plain_text
from fewbit.data.rows.shards import RowFile, row_files
from fewbit.data.rows.text import (
    BAD_ENCODING,
    EMPTY_FILE,
    NUL_BYTE,
    ROW_TOO_LONG,
    TextFile,
    complete_lines,
    encoding_message,
    open_text,
    readable,
)
from fewbit.data.types import (
    DataReport,
    Depth,
    Detection,
    Files,
    Format,
    FormatOption,
    IssueType,
    Location,
    Sample,
    Severity,
    Source,
)
from fewbit.errors import UsageError, nearest

SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst", ".raw")
LONGEST = 200_000
"""Characters after which a document ends at the next line end; a longer line is cut at a space."""
UNITS = ("file", "article", "paragraph", "line")

_TITLE = re.compile(r"\s?= [^=\s].* = *")
_TITLE_BYTES = re.compile(_TITLE.pattern.encode())
_NOT_DOCUMENTS = re.compile(
    r"(readme|license|licence|notice|changelog|requirements|classes|labels|data)\.\w+", re.IGNORECASE
)
_MAX_NAMES = 500

NO_TEXT = IssueType("no-samples", Severity.ERROR, "no text", "check that the files hold text", "raise")


def detect(files: Files) -> Detection | None:
    """Text files, and nothing else that could be a dataset."""
    names = files.names()[:_MAX_NAMES]
    texts = [name for name in names if shards.suffix_of(name) in SUFFIXES]
    if not texts:
        return None
    if len(names) == 1:
        return Detection(0.7, "a text file")
    documents = [name for name in texts if not _NOT_DOCUMENTS.fullmatch(name.rpartition("/")[2])]
    share = len(documents) / len(names)
    if any(is_image_name(name) for name in names):  # labels or captions
        share = min(share, 0.3)
    return Detection(0.8 * share, f"{len(documents)} text files") if documents else Detection(0.2, "a text file")


def scan(files: Files, report: DataReport, *, depth: Depth, options: Mapping[str, Any]) -> TextSource:
    """Find where documents begin and end; this reads all text once, whatever the depth."""
    unit = options.get("documents")
    if unit is not None and unit not in UNITS:
        raise UsageError(
            f"a document cannot be a {unit!r}", code="data-option-value", param="data_option",
            expected=", ".join(nearest(str(unit), UNITS) or UNITS), hint="{data_option=documents=paragraph}",
        )  # fmt: skip
    source = TextSource()
    for file in row_files(files, SUFFIXES, report):
        if options.get("split") not in (None, file.split):
            continue
        text = open_text(files, file.name, report, options.get("encoding"))
        if text is not None and not source.add_file(text, file, _documents(text, unit, report)):
            report.add(EMPTY_FILE, "no text in it", Location(file.name))
    if not len(source) and not report.raising():
        report.add(NO_TEXT, "there is not one document", Location(files.root))
    return source


class TextSource:
    """Documents of text files by position."""

    def __init__(self) -> None:
        self._spans = array("q")  # begin, end and line of each document
        self._files: list[tuple[int, TextFile, RowFile]] = []  # each with the position of its first document

    def add_file(self, text: TextFile, file: RowFile, documents: Iterable[tuple[int, int, int]]) -> int:
        """Add the documents of one file; returns how many there are."""
        first = len(self)
        for span in documents:
            self._spans.extend(span)
        self._files.append((first, text, file))
        return len(self) - first

    @property
    def facts(self) -> dict[str, Any]:
        """Column, files, splits."""
        splits: Counter[str] = Counter()
        ends = [first for first, _, _ in self._files[1:]]
        for (first, _, file), end in zip(self._files, [*ends, len(self)]):
            splits[file.split or ""] += end - first
        named = {split: splits[split] for split in splits if split}
        return {"columns": ["text"], "files": len(self._files), **({"splits": named} if named else {})}

    def __len__(self) -> int:
        return len(self._spans) // 3

    def __getitem__(self, index: int) -> Sample:
        text, _, (begin, end, _) = self._find(index)
        with text.open() as stream:
            content = text.read(stream, begin, end - begin)
        return {"text": content.decode("utf-8", "replace").replace("\r\n", "\n")}

    def location(self, index: int) -> Location:
        """File and line the document begins at."""
        _, file, (_, _, line) = self._find(index)
        return Location(file.name, line=line, index=index)

    def strata(self) -> Sequence[Any] | None:
        """The file of each document, if there are several files."""
        if len(self._files) < 2:
            return None
        return [self._find(index)[1].name for index in range(len(self))]

    def _find(self, index: int) -> tuple[TextFile, RowFile, tuple[int, int, int]]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        _, text, file = self._files[bisect_right(self._files, index, key=lambda entry: entry[0]) - 1]
        begin, end, line = self._spans[3 * index : 3 * index + 3]
        return text, file, (begin, end, line)


class Articles:
    """Rows that are lines of articles, joined; a title begins the next.

    Args:
        rows: samples with a `text` each, as `wikitext` has them.
    """

    def __init__(self, rows: Source):
        self._rows = rows
        self._spans: list[tuple[int, int]] = []
        first, length = None, 0
        for index in range(len(rows)):
            text = rows[index].get("text") or ""
            if first is not None and (length > LONGEST or is_title(text)):
                self._spans.append((first, index))
                first, length = None, 0
            if first is None and text.strip():
                first = index
            length += len(text)
        if first is not None:
            self._spans.append((first, len(rows)))
        self.facts = {**rows.facts, "columns": ["text"]}

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> Sample:
        texts = [self._rows[row].get("text") or "" for row in range(*self._spans[index])]
        return {"text": "".join(text if text.endswith("\n") or not text else text + "\n" for text in texts)}

    def location(self, index: int) -> Location:
        """Of its first row."""
        return self._rows.location(self._spans[index][0])

    def strata(self) -> None:
        """Nothing is known."""


def is_title(line: str) -> bool:
    """Whether a line is the title of an article, as in wikitext; titles of sections have more signs.

    >>> is_title(" = Robert Boulter = "), is_title(" = = Career = = "), is_title("x = y")
    (True, False, False)
    """
    return _TITLE.fullmatch(line.rstrip("\n")) is not None


def _documents(text: TextFile, unit: str | None, report: DataReport) -> Iterator[tuple[int, int, int]]:
    """Begin, end and first line of each document of a file."""
    begin, first, length, bad, end = -1, 1, 0, False, 0
    for offset, number, line in _lines(text, report):
        blank, title = not line.strip(), _TITLE_BYTES.fullmatch(line.rstrip(b"\r\n")) is not None
        if unit is None and not blank:
            unit = "article" if title else "file"
        ends = length > LONGEST or unit == "line" or (unit == "paragraph" and blank) or (unit == "article" and title)
        if begin >= 0 and ends:
            if not bad:
                yield begin, offset, first
            begin, length, bad = -1, 0, False
        if begin < 0 and not blank:
            begin, first = offset, number
        if begin >= 0:
            characters, dropped = _decoded(line, text.name, number, report)
            length, bad = length + characters, bad or dropped
        end = offset + len(line)
    if begin >= 0 and not bad:
        yield begin, end, first


def _lines(text: TextFile, report: DataReport) -> Iterator[tuple[int, int, bytes]]:
    """Offset, number and bytes of each line; a very long one in pieces, cut at spaces."""
    for lines in complete_lines(readable(text.pieces(), report), text.begin):
        if lines.data is None:
            report.add(ROW_TOO_LONG, "line without an end", Location(text.name, line=lines.line))
            continue
        offset = lines.offset
        for number, line in enumerate(lines.data.split(b"\n"), lines.line):
            rest = line + b"\n"
            if offset + len(rest) > lines.offset + len(lines.data):  # the last one of the file has no end
                rest = line
            while rest:
                piece = rest if len(rest) <= 2 * LONGEST else rest[: _cut(rest)]
                yield offset, number, piece
                offset, rest = offset + len(piece), rest[len(piece) :]


def _cut(line: bytes) -> int:
    """Where a piece of a long line ends: behind a space, never inside a character."""
    cut = line.rfind(b" ", 0, LONGEST) + 1 or LONGEST
    while cut < len(line) and line[cut] & 0xC0 == 0x80:
        cut += 1
    return cut


def _decoded(line: bytes, name: str, number: int, report: DataReport) -> tuple[int, bool]:
    """Characters of a line, and whether its document is left out because it is no text."""
    location = Location(name, line=number)
    if b"\0" in line:
        return len(line), report.add(NUL_BYTE, "NUL byte", location) == "drop"
    try:
        return len(line.decode()), False
    except UnicodeDecodeError as error:
        return len(line), report.add(BAD_ENCODING, encoding_message(line, error), location) == "drop"


def example(folder: Path) -> Path:
    """Three documents, one of them in Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cats.txt").write_text("Cats sleep.\n\nCats purr.\n")
    (folder / "dogs.md").write_text("# Dogs\n\nDogs bark.\n")
    (folder / "fish.txt").write_text("Fish swim.\n")
    return folder


FORMAT = Format(
    "text", "plain text", ".txt, .md or .rst files, one document each",
    (NO_TEXT, *plain_text.ISSUES, *shards.ISSUES),
    detect, scan, example,
    options=(
        FormatOption("documents", "what a document is: file, article, paragraph or line; by default found out"),
        FormatOption("encoding", "encoding of the files; UTF-8 by default"),
    ),
    unit="document",
    suffixes=SUFFIXES,
)  # fmt: skip
