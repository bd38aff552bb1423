# SPDX-License-Identifier: Apache-2.0
"""Plain text and Markdown: files, or folders of files, as documents. A sample is `{"text": …}`.

A file is one document, unless it is a dump of Wikipedia articles, which begin with a line such as ` = Title = `. Longer
documents end after 200,000 characters, at a line end, so that no text is too long to tokenize.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fewbit.data.images.signatures import is_image_name
from fewbit.data.rows import shards
from fewbit.data.rows import text as plain_text
from fewbit.data.rows.blocks import (
    BAD_ENCODING,
    EMPTY_FILE,
    NUL_BYTE,
    ROW_TOO_LONG,
    Lines,
    complete_lines,
    encoding_message,
    readable,
)
from fewbit.data.rows.shards import RowFile, row_files
from fewbit.data.rows.text import TextFile, open_text
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
    SampleError,
    Severity,
    Source,
)
from fewbit.errors import UsageError, nearest

SUFFIXES = (".txt", ".text", ".md", ".markdown", ".rst", ".raw")
LONGEST = 200_000
"""Characters after which a document ends at the next line end; a longer line is cut at a space."""
Unit = Literal["file", "article", "paragraph", "line"]
UNITS: tuple[Unit, ...] = ("file", "article", "paragraph", "line")

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
    unit = _unit(options)
    selected = [file for file in row_files(files, SUFFIXES, report) if options.get("split") in (None, file.split)]
    source = TextSource(files)
    for file in selected:
        try:
            text, issues = open_text(files, file.name, options.get("encoding"))
        except SampleError as error:
            report.add(error.issue.type, error.issue.message, error.issue.location)
            continue
        for issue in issues:
            report.add(issue.type, issue.message, issue.location)
        before = len(source)
        for begin, end, line in _documents(text, unit, report):
            source.append(begin, end, line)
        if len(source) == before:
            report.add(EMPTY_FILE, "no text in it", Location(file.name))
        source.finish(text, file)
    if not len(source) and not report.raising():
        report.add(NO_TEXT, "there is not one document", Location(files.root))
    return source


class TextSource:
    """Documents of text files by position.

    Args:
        files: the dataset.
    """

    def __init__(self, files: Files):
        self._files = files
        self._begins, self._ends, self._lines = array("q"), array("q"), array("q")
        self._firsts: list[int] = []  # of each file: position of its first document
        self._texts: list[TextFile] = []
        self._row_files: list[RowFile] = []
        self._named = 0  # documents whose file is known

    @property
    def facts(self) -> dict[str, Any]:
        """Column, files, splits."""
        splits: dict[str, int] = {}
        for file, first, last in zip(self._row_files, self._firsts, [*self._firsts[1:], len(self)]):
            if file.split:
                splits[file.split] = splits.get(file.split, 0) + last - first
        return {"columns": ["text"], "files": len(self._texts), **({"splits": splits} if splits else {})}

    def append(self, begin: int, end: int, line: int) -> None:
        """Add a document of the file that `finish` will name."""
        self._begins.append(begin)
        self._ends.append(end)
        self._lines.append(line)

    def finish(self, text: TextFile, file: RowFile) -> None:
        """Say which file the documents added since the last call are from."""
        self._firsts.append(self._named)
        self._texts.append(text)
        self._row_files.append(file)
        self._named = len(self._begins)

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, index: int) -> Sample:
        text = self._texts[self._file(index)]
        begin, end = self._begins[index], self._ends[index]
        with text.open() as stream:
            content = text.read(stream, begin, end - begin)
        return {"text": content.decode("utf-8", "replace").replace("\r\n", "\n")}

    def location(self, index: int) -> Location:
        """File and line the document begins at."""
        return Location(self._row_files[self._file(index)].name, line=self._lines[index], index=index)

    def strata(self) -> Sequence[Any] | None:
        """The file of each document, if there are several files."""
        if len(self._texts) < 2:
            return None
        return [self._row_files[self._file(index)].name for index in range(len(self))]

    def _file(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return bisect_right(self._firsts, index) - 1


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
        return


def is_title(line: str) -> bool:
    """Whether a line is the title of an article, as in wikitext; titles of sections have more signs.

    >>> is_title(" = Robert Boulter = "), is_title(" = = Career = = "), is_title("x = y")
    (True, False, False)
    """
    return _TITLE.fullmatch(line.rstrip("\n")) is not None


def _unit(options: Mapping[str, Any]) -> Unit | None:
    unit = options.get("documents")
    if unit is None or unit in UNITS:
        return unit
    raise UsageError(
        f"a document cannot be a {unit!r}", code="data-option-value", param="data_option",
        expected=", ".join(nearest(str(unit), UNITS) or UNITS), hint="{data_option=documents=paragraph}",
    )  # fmt: skip


def _documents(text: TextFile, unit: Unit | None, report: DataReport) -> Iterator[tuple[int, int, int]]:
    """Begin, end and first line of each document of a file."""
    begin, first, length, bad = -1, 1, 0, False
    offset, number = 0, 0
    for offset, number, line in _lines(text, report):
        blank = not line.strip()
        if unit is None and not blank:
            unit = "article" if _TITLE_BYTES.fullmatch(line.rstrip(b"\r\n")) else "file"
        ends = length > LONGEST or unit == "line" or (unit == "paragraph" and blank)
        if begin >= 0 and (ends or (unit == "article" and _TITLE_BYTES.fullmatch(line.rstrip(b"\r\n")))):
            if not bad:
                yield begin, offset, first
            begin, length, bad = -1, 0, False
        if begin < 0 and not blank:
            begin, first = offset, number
        if begin >= 0:
            characters, dropped = _decoded(line, text.name, number, report)
            length += characters
            bad = bad or dropped
        offset += len(line)
    if begin >= 0 and not bad:
        yield begin, offset, first


def _lines(text: TextFile, report: DataReport) -> Iterator[tuple[int, int, bytes]]:
    """Offset, number and bytes of each line; a very long one in pieces."""
    for lines in complete_lines(readable(text.pieces(), report), text.begin):
        if lines.data is None:
            report.add(ROW_TOO_LONG, "line without an end", Location(text.name, line=lines.line))
            continue
        yield from _split(lines, lines.data)


def _split(lines: Lines, data: bytes) -> Iterator[tuple[int, int, bytes]]:
    begin, number = 0, lines.line
    while begin < len(data):
        end = data.find(b"\n", begin) + 1 or len(data)
        line = data[begin:end]
        while len(line) > 2 * LONGEST:
            cut = line.rfind(b" ", 0, LONGEST) + 1 or LONGEST
            while cut < len(line) and line[cut] & 0xC0 == 0x80:  # never inside a character
                cut += 1
            yield lines.offset + begin, number, line[:cut]
            begin, line = begin + cut, line[cut:]
        yield lines.offset + begin, number, line
        begin, number = end, number + 1


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
    (NO_TEXT, BAD_ENCODING, NUL_BYTE, ROW_TOO_LONG, EMPTY_FILE, *plain_text.ISSUES, *shards.ISSUES),
    detect, scan, example,
    options=(
        FormatOption("documents", "what a document is: file, article, paragraph or line; by default found out"),
        FormatOption("encoding", "encoding of the files; UTF-8 by default"),
    ),
    unit="document",
)  # fmt: skip
