# SPDX-License-Identifier: Apache-2.0
"""The types of the data layer: locations, issues, reports, files, sources, formats. Nothing here reads a file.

    format.scan(files, report, depth=...) -> Source      one pass that reports every issue and indexes the samples
    Dataset(source)                                      what users hold: an order and a transform over a source

`scan` is both the opener and the checker; only its depth differs, so what a verb reads is what `check` checks.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, BinaryIO, Literal, Protocol, runtime_checkable

import numpy as np

from fewbit.errors import DataError, escape, plural

Sample = dict[str, Any]
"""One sample: arrays, text, labels; plain Python and numpy values, never a framework's objects."""

Action = Literal["raise", "drop", "repair", "keep"]
Depth = Literal["index", "full"]
"""`index` reads names, headers and offsets; `full` also decodes every sample."""

MOST_ISSUES = 10_000
"""Locations stored per issue type; counts stay exact."""
WARNED_SHARE = 0.1
"""Share of the samples from which warnings make a dataset NOT READY."""


class Severity(StrEnum):
    """How bad an issue is: errors make a dataset unusable as it is, warnings are probably mistakes."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Location:
    """Where something is."""

    file: str = ""  # relative to the dataset; inside an archive `a.zip!/x/1.jpg`; a URL as given
    line: int | None = None  # physical, from 1
    row: int | None = None  # record, from 0, in formats without lines, and in JSON arrays
    byte: int | None = None  # offset in the file
    index: int | None = None  # number of the sample, from 0
    field: str | None = None  # column, array or key

    def __str__(self) -> str:
        text = self.file
        if self.line is not None:
            text += f":{self.line}"
        if self.row is not None:
            text += f" row {self.row}"
        elif not text and self.index is not None:
            text = f"sample {self.index}"
        return escape(f"{text} ({self.field})" if self.field else text)


NOWHERE = Location()


@dataclass(frozen=True, slots=True)
class IssueType:
    """One kind of problem, declared once by the file that can find it."""

    code: str  # a stable slug, such as `image-truncated`
    severity: Severity
    meaning: str  # what is wrong, as a short noun phrase: "truncated image file"
    hint: str  # what to do about it; may name parameters as `{data_option=delimiter=;}`
    on_error: Action = "keep"  # what a reader does by default
    actions: tuple[Action, ...] = ()  # what a user may choose instead
    fix: str = ""  # what `check --fix` does, such as "leaves the image out"; empty if it does nothing
    aliases: tuple[str, ...] = ()  # older codes that `on_error` still accepts
    by_code: tuple[Action, ...] = ()  # what a user may choose only for this code, never for all issues at once

    @property
    def choices(self) -> tuple[Action, ...]:
        """What `on_error` may say for its code, the default first; any issue can be raised."""
        return tuple(dict.fromkeys((self.on_error, *self.actions, *self.by_code, "raise")))


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem at one location."""

    type: IssueType
    message: str
    location: Location = NOWHERE

    def __post_init__(self) -> None:
        # Libraries write `<_io.BytesIO object at 0x7f…>` into their errors: the type is enough.
        object.__setattr__(self, "message", re.sub(r"<([\w.]+)( object)? at 0x[0-9a-fA-F]+>", r"\1", self.message))

    @property
    def code(self) -> str:
        """The stable slug."""
        return self.type.code

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.type.severity

    def __str__(self) -> str:
        location = str(self.location)
        return f"{location}: {escape(self.message)}" if location else escape(self.message)


class SampleError(DataError):
    """A sample that cannot be decoded, found while reading it."""

    def __init__(self, issue: Issue):
        super().__init__(
            f"{issue.type.meaning}: {issue.message}", code=issue.code, where=str(issue.location), hint=issue.type.hint
        )
        self.issue = issue


@dataclass
class DataReport:
    """Every issue of a dataset at once, and what is in it."""

    source: str = ""  # the dataset as the user named it
    data_format: str = ""  # the format it was read as
    # The user's choice: one action for all (`drop`: for errors), or by code, with `*` for all others; `**` for those
    # that do not allow what `*` says and that `check --fix` does something about.
    on_error: Action | Mapping[str, Action] | None = None
    issues: list[Issue] = field(default_factory=list)  # at most `MOST_ISSUES` per code, in the order they were found
    counts: Counter[str] = field(default_factory=Counter)  # by code, exact
    facts: dict[str, Any] = field(default_factory=dict)  # samples, classes, splits, columns: what the summary prints
    affected: Counter[str] = field(default_factory=Counter)  # by code, how many samples the issues concern
    complete: bool = False  # whether everything was read
    types: dict[str, IssueType] = field(default_factory=dict)  # by code, those that were found
    prefix: str = ""  # stands before file names: `a.zip!/`, or a URL
    unit: str = "sample"  # what a sample is called: "image", "row"
    files: Files | None = None  # what was read, if it was files
    _keys: set[tuple[Any, ...]] = field(default_factory=set, repr=False)  # code and sample of each stored issue

    def add(self, kind: IssueType, message: str, location: Location = NOWHERE, *, samples: int | None = None) -> Action:
        """Report an issue and learn what to do about it: raise, drop, repair or keep.

        Args:
            kind: which issue.
            message: what was found here, in a few words.
            location: where.
            samples: how many samples it concerns; by default one, or none if there is no location.
        """
        self.counts[kind.code] += 1
        self.affected[kind.code] += int(location != NOWHERE) if samples is None else samples
        self.types.setdefault(kind.code, kind)
        if self.counts[kind.code] <= MOST_ISSUES:
            self.issues.append(Issue(kind, message, self.located(location)))
            self._keys.add((kind.code, *self._sample_key(location)))
        return self.action(kind)

    def add_error(self, error: SampleError) -> Action:
        """Report the issue that a sample raised, unless the scan or an earlier pass has."""
        issue = error.issue
        key = (issue.code, *self._sample_key(issue.location))
        if key in self._keys or (*key[:-1], None) in self._keys:  # a scan need not know the number of the sample
            return self.action(issue.type)
        return self.add(issue.type, issue.message, issue.location)

    def located(self, location: Location) -> Location:
        """A location with the archive or URL that its file is in."""
        if not self.prefix or not location.file or location.file.startswith(self.prefix):
            return location
        return replace(location, file=self.prefix + location.file)

    def action(self, kind: IssueType) -> Action:
        """What a reader does about an issue: the user's choice where the issue allows it, else the default."""
        if not isinstance(self.on_error, Mapping):
            # `drop` alone is about damaged samples: one that is only suspicious is dropped by its code.
            applies = self.on_error in kind.actions and (self.on_error != "drop" or kind.severity is Severity.ERROR)
            return self.on_error if applies and self.on_error is not None else kind.on_error
        for code in (kind.code, *kind.aliases):
            if code in self.on_error:
                return self.on_error[code]
        words = (self.on_error.get(name) for name in (("*", "**") if kind.fix else ("*",)))
        return next((word for word in words if word in (*kind.actions, kind.on_error)), None) or kind.on_error

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

    def _of(self, severity: Severity) -> list[Issue]:
        return [issue for issue in self.issues if issue.severity is severity]

    def raising(self) -> list[Issue]:
        """The issues that stop a reader."""
        return [issue for issue in self.issues if self.action(issue.type) == "raise"]

    @property
    def ok(self) -> bool:
        """Whether everything was read, there is no error, and warnings concern less than a tenth of the samples."""
        warned = self.warned_samples
        few = not warned or warned < WARNED_SHARE * (self.facts.get("samples") or 0)
        return self.complete and not self.errors and few

    @property
    def warned_samples(self) -> int:
        """Samples that warnings concern, each once; warnings about the dataset as a whole concern none."""
        located = [issue for issue in self.warnings if self.affected[issue.code]]
        stored = Counter(issue.code for issue in located)
        beyond = sum(max(self.affected[code] - count, 0) for code, count in stored.items())
        return len({self._sample_key(issue.location) for issue in located}) + beyond

    def _sample_key(self, location: Location) -> tuple[Any, ...]:
        # Lines are samples in tables only: elsewhere a file of labels belongs to one image.
        line = location.line if self.unit == "row" else None
        return self.located(location).file, location.row, line, location.index

    @property
    def fingerprint(self) -> str | None:
        """Changes whenever the content may have changed: names, sizes and times of all files; `None` for objects."""
        if self.files is None:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for name in self.files.names():
            line = f"{name}\0{self.files.fingerprint(name)}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def __str__(self) -> str:
        """The report as `fewbit check` prints it."""
        from fewbit.data.report_text import report_text

        return report_text(self)

    def __repr__(self) -> str:
        totals = Counter(self.types[code].severity for code in self.counts.elements())
        counts = ", ".join(plural(totals[severity], str(severity)) for severity in Severity if totals[severity])
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

    def folders(self) -> Sequence[str]:
        """Every folder, also empty ones where they are known."""

    def open(self, name: str) -> BinaryIO:
        """A seekable stream of one file; never blocks on a FIFO or device."""

    def size(self, name: str) -> int:
        """Bytes of one file."""

    def read(self, name: str, limit: int) -> bytes:
        """At most `limit` bytes from the start of one file."""

    def fingerprint(self, name: str) -> str:
        """Changes whenever the content may have changed; cheap."""

    def path(self, name: str) -> str | None:
        """The path on this machine, if it is a plain file."""


@runtime_checkable
class Source(Protocol):
    """Samples by position: cheap to make, cheap to copy to another process, nothing decoded until asked for.

    A source may also have `fingerprint`, a text that changes with its content, if that is not the content of files.
    """

    @property
    def facts(self) -> Mapping[str, Any]:
        """`classes`, `columns`, `task`, `splits`: what is known without decoding."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        """Decode one sample; a damaged one raises a `SampleError`."""

    def location(self, index: int) -> Location:
        """Where a sample comes from."""

    def strata(self) -> Sequence[Any] | None:
        """One value per sample to spread subsets over: class, split or file; `None` if nothing is known cheaply."""


@dataclass(frozen=True)
class FormatOption:
    """A setting of one format: `--data-option delimiter=';'`."""

    name: str
    help: str
    type: type | tuple[type, ...] = str
    default: Any = None


@dataclass(frozen=True)
class Detection:
    """How sure a format is that it can read something, from names and first bytes only."""

    confidence: float  # 0 to 1; above 0.5 it would read it
    reason: str  # "folders of images", shown when several formats claim the same data


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
        suffixes: of files without which it is not asked to detect anything; by default it always is.
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
    suffixes: Sequence[str] = ()


def spread(strata: Sequence[Any] | None, length: int, count: int, seed: int = 0) -> np.ndarray:
    """Positions of a seeded sample over the whole source, each stratum in proportion.

    Args:
        strata: one value per position, or `None`.
        length: of the source.
        count: how many to draw; all if there are no more.
        seed: of the draw.

    Returns:
        Positions, int64, in an order of which any contiguous part is spread too.

    >>> chosen = spread(["a"] * 90 + ["b"] * 10, 100, 20)
    >>> len(chosen), int((chosen >= 90).sum())
    (20, 2)
    """
    from fewbit.rng import generator

    random = generator(seed, length)
    order = random.permutation(length)
    if strata is None:
        return order[:count]
    codes = getattr(strata, "codes", None)  # one number per sample: names of millions would not fit into memory
    if codes is None:
        _, codes = np.unique(np.asarray([str(value) for value in strata]), return_inverse=True)
    sizes = np.bincount(codes)
    order = order[np.argsort(codes[order], kind="stable")]  # by stratum, at random within
    stratum = codes[order]
    rank = np.arange(length) - (np.cumsum(sizes) - sizes)[stratum]
    # Members of a stratum are spaced evenly over 0..1 from a random start, so strata interleave in proportion.
    position = (rank + random.random(len(sizes))[stratum]) / sizes[stratum]
    return np.asarray(order[np.argsort(position, kind="stable")][:count])
