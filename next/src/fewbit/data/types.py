# SPDX-License-Identifier: Apache-2.0
"""The types of the data layer: samples, locations, issues, reports, sources, formats. Nothing here reads a file.

    format.scan(files, report, depth=...) -> Source      one pass that reports every issue and indexes the samples
    Dataset(source)                                      what users hold: an order and a transform over a source

`scan` is both the opener and the checker; only its depth differs, so what a verb reads is what `check` checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, BinaryIO, Literal, Protocol, runtime_checkable

import numpy as np

from fewbit.errors import DataError, escape

Sample = dict[str, Any]
"""One sample: arrays, text, labels; plain Python and numpy values, never a framework's objects."""

Action = Literal["raise", "drop", "repair", "keep"]
Depth = Literal["index", "full"]
"""`index` reads names, headers and offsets; `full` also decodes every sample."""

MOST_ISSUES = 10_000
"""Locations kept per issue type; counts stay exact."""


class Severity(StrEnum):
    """How bad an issue is: errors make a dataset unusable as it is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Location:
    """Where something is.

    Args:
        file: relative to the dataset; inside an archive `a.zip!/x/1.jpg`; a URL as given.
        line: physical line, from 1.
        row: record, from 0, in formats without lines.
        byte: offset in the file.
        index: number of the sample, from 0.
        field: column, array or key.
    """

    file: str = ""
    line: int | None = None
    row: int | None = None
    byte: int | None = None
    index: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        text = self.file
        if self.line is not None:
            text += f":{self.line}"
        elif self.row is not None:
            text += f" row {self.row}"
        elif not text and self.index is not None:
            text = f"sample {self.index}"
        return escape(f"{text} ({self.field})" if self.field else text)


NOWHERE = Location()


@dataclass(frozen=True, slots=True)
class IssueType:
    """One kind of problem, declared once by the file that can find it.

    Args:
        code: a stable slug, such as `image-truncated`.
        severity: of every issue of this type.
        meaning: what is wrong, as a short noun phrase: "truncated image file".
        hint: what to do about it; may name parameters as `{data_option=delimiter=;}`.
        on_error: what a reader does by default.
        actions: what a user may choose instead.
        fix: what `check --fix` does, such as "leaves the image out"; empty if it does nothing.
    """

    code: str
    severity: Severity
    meaning: str
    hint: str
    on_error: Action = "keep"
    actions: tuple[Action, ...] = ()
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem at one location."""

    type: IssueType
    message: str
    location: Location = Location()

    @property
    def code(self) -> str:
        """The stable slug."""
        return self.type.code

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.type.severity

    def __str__(self) -> str:
        where = str(self.location)
        return f"{where}: {escape(self.message)}" if where else escape(self.message)


@dataclass
class DataReport:
    """Every issue of a dataset at once, and what is in it.

    Args:
        source: the dataset as the user named it.
        data_format: the format it was read as.
        on_error: the user's choice: one action for all, or by code with `*` for the rest and `**` for those that do not
            allow what `*` says.
        issues: at most `MOST_ISSUES` per code, in the order they were found.
        counts: by code, exact.
        facts: samples, classes, splits, columns, sizes: what the summary prints.
        affected: by code, how many samples an issue concerns, where that is more than one per issue.
        complete: whether everything was read.
        types: by code, those that were found.
        prefix: stands before file names: `a.zip!/`, or a URL.
    """

    source: str = ""
    data_format: str = ""
    on_error: Action | Mapping[str, Action] | None = None
    issues: list[Issue] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    facts: dict[str, Any] = field(default_factory=dict)
    affected: Counter[str] = field(default_factory=Counter)
    complete: bool = False
    types: dict[str, IssueType] = field(default_factory=dict)
    prefix: str = ""

    def add(self, kind: IssueType, message: str, location: Location = NOWHERE, *, samples: int = 1) -> Action:
        """Report an issue and learn what to do about it: raise, drop, repair or keep.

        Args:
            kind: which issue.
            message: what was found here, in a few words.
            location: where.
            samples: how many samples it concerns.
        """
        self.counts[kind.code] += 1
        self.affected[kind.code] += samples
        self.types.setdefault(kind.code, kind)
        if self.counts[kind.code] <= MOST_ISSUES:
            self.issues.append(Issue(kind, message, self.located(location)))
        return self.action(kind)

    def located(self, location: Location) -> Location:
        """A location with the archive or URL that its file is in."""
        if not self.prefix or not location.file or location.file.startswith(self.prefix):
            return location
        return replace(location, file=self.prefix + location.file)

    def action(self, kind: IssueType) -> Action:
        """What a reader does about an issue: the user's choice where the issue allows it, else the default."""
        given = self.on_error
        chosen = given if given is None or isinstance(given, str) else given.get(kind.code, given.get("*"))
        if chosen is None:
            return kind.on_error
        if not isinstance(given, Mapping) or kind.code not in given:  # a word for all: only where it makes sense
            fallback = given.get("**") if isinstance(given, Mapping) else None
            allowed = (*kind.actions, kind.on_error)
            return next((action for action in (chosen, fallback) if action in allowed), kind.on_error)
        return chosen

    def _of(self, severity: Severity) -> list[Issue]:
        return [issue for issue in self.issues if issue.severity is severity]

    @property
    def errors(self) -> list[Issue]:
        """Issues that make the dataset unusable as it is."""
        return self._of(Severity.ERROR)

    @property
    def warnings(self) -> list[Issue]:
        """Issues that are probably mistakes."""
        return self._of(Severity.WARNING)

    @property
    def notes(self) -> list[Issue]:
        """Issues worth knowing."""
        return self._of(Severity.NOTE)

    @property
    def ok(self) -> bool:
        """Whether everything was read, nothing is wrong, and warnings concern less than a tenth of the samples."""
        samples = self.facts.get("samples") or 0
        warned = sum(self.affected[code] for code, kind in self.types.items() if kind.severity is Severity.WARNING)
        return self.complete and not self.errors and (not warned or warned * 10 < samples)

    def raising(self) -> list[Issue]:
        """The issues that stop a reader."""
        return [issue for issue in self.issues if self.action(issue.type) == "raise"]

    def __str__(self) -> str:
        """The report as `fewbit check` prints it."""
        from fewbit.data.report_text import report_text

        return report_text(self)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(self._of(severity))} {severity}s" for severity in Severity if self._of(severity))
        return f"DataReport({self.data_format or 'unknown'}, {counts or 'no issues'})"


@runtime_checkable
class Files(Protocol):
    """A folder, an archive, a single file or a URL prefix: the only way a format touches bytes.

    Names are relative, with `/`, sorted by their NFC form; hidden files and system files are not among them.
    """

    root: str
    """How the user named it."""

    def names(self) -> Sequence[str]:
        """Every regular file."""
        ...

    def open(self, name: str) -> BinaryIO:
        """A seekable stream of one file; never blocks on a FIFO or device."""
        ...

    def size(self, name: str) -> int:
        """Bytes of one file."""
        ...

    def read(self, name: str, limit: int) -> bytes:
        """At most `limit` bytes from the start of one file."""
        ...

    def fingerprint(self, name: str) -> str:
        """Changes whenever the content may have changed; cheap."""
        ...

    def path(self, name: str) -> str | None:
        """The path on this machine, if it is a plain file."""
        ...


@runtime_checkable
class Source(Protocol):
    """Samples by position: cheap to make, cheap to copy to another process, nothing decoded until asked for."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """`classes`, `columns`, `task`, `splits`: what is known without decoding."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        """Decode one sample.

        Raises:
            SampleError: it is damaged.
        """
        ...

    def location(self, index: int) -> Location:
        """Where a sample comes from."""
        ...

    def strata(self) -> Sequence[Any] | None:
        """One value per sample to spread subsets over: class, split or file; `None` if nothing is known cheaply."""
        ...


class SampleError(DataError):
    """A sample that cannot be decoded, found while reading it."""

    def __init__(self, issue: Issue):
        super().__init__(
            f"{issue.type.meaning}: {issue.message}", code=issue.code, where=str(issue.location), hint=issue.type.hint
        )
        self.issue = issue


@dataclass(frozen=True)
class FormatOption:
    """A setting of one format: `--data-option delimiter=';'`."""

    name: str
    help: str
    type: type | tuple[type, ...] = str
    default: Any = None


@dataclass(frozen=True)
class Detection:
    """How sure a format is that it can read something, from names and first bytes only.

    Args:
        confidence: 0 to 1; above 0.5 it would read it.
        reason: "folders of images", shown when several formats claim the same data.
    """

    confidence: float
    reason: str


@dataclass(frozen=True)
class Format:
    """What one file in `formats/` registers; adding a format is writing one of these.

    Args:
        name: the registry's name.
        title: what people call it: "image folder".
        layout: what it looks like on disk, in one line.
        issues: every issue type it can report.
        detect: looks at names and first bytes.
        scan: `scan(files, report, *, depth, options) -> Source`: reports issues, never raises for data.
        example: writes a small valid dataset into a folder and returns the path to open; for contract and fuzz tests.
        options: its settings.
        write: `write(source, folder) -> changes`: writes the samples of a source that was scanned with `repair` into an
            empty folder, byte for byte where nothing was wrong; one line per change. `None` if it cannot be repaired.
        unit: what a sample is called: "image", "row".
    """

    name: str
    title: str
    layout: str
    issues: Sequence[IssueType]
    detect: Callable[[Files], Detection | None]
    scan: Callable[..., Source]
    example: Callable[[Any], Any]
    options: Sequence[FormatOption] = ()
    write: Callable[..., list[str]] | None = None
    unit: str = "sample"


def spread(strata: Sequence[Any] | None, length: int, count: int, seed: int = 0) -> np.ndarray:
    """Positions of a seeded sample over the whole source, each stratum in proportion.

    Args:
        strata: one value per position, or `None`.
        length: of the source.
        count: how many to draw; all if there are no more.
        seed: of the draw. The first 100 of a draw of 300 need not be a draw of 100.

    Returns:
        Positions in random order, int64, so that any contiguous part is spread too.

    >>> chosen = spread(["a"] * 90 + ["b"] * 10, 100, 20)
    >>> len(chosen), int((chosen >= 90).sum())
    (20, 2)
    """
    from fewbit.rng import generator

    random = generator(seed, length)
    if count >= length:
        return random.permutation(length)
    if strata is None:
        return random.permutation(length)[:count]
    keys, codes = np.unique(np.asarray([str(value) for value in strata]), return_inverse=True)
    sizes = np.bincount(codes, minlength=len(keys))
    exact = sizes * (count / length)
    quota = np.floor(exact).astype(np.int64)
    # The remainder goes to the largest fractions; ties are broken by chance, not by name.
    rest = np.lexsort((random.random(len(keys)), -(exact - quota)))
    quota[rest[: count - quota.sum()]] += 1
    order = random.permutation(length)
    rank = np.empty(length, np.int64)  # of each position within its stratum, in random order
    by_stratum = order[np.argsort(codes[order], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rank[by_stratum] = np.arange(length) - starts[codes[by_stratum]]
    return np.asarray(order[rank[order] < quota[codes[order]]])


def iterate(source: Source) -> Iterator[Sample]:
    """Every sample in order."""
    for index in range(len(source)):
        yield source[index]
