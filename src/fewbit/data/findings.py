# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a dataset, as data: codes, findings, policies and the report that gathers them.

A format declares the codes it can find (`CODES`), each once, with its severity, its meaning and what a user
can do about it. A reader that meets the fault asks the policy whether to raise, drop, repair or keep.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

import orjson

from fewbit.data import report_text
from fewbit.data.sample import Place
from fewbit.errors import DataError, UsageError, nearest

T = TypeVar("T")

_POLICIES = ("raise", "drop", "repair", "keep")


class Severity(StrEnum):
    """How bad a finding is: `error` makes the dataset unfit, `warn` is likely a mistake, `info` is good to know."""

    ERROR = "error"
    WARN = "warn"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of fault a format can find.

    Args:
        severity: how bad it is.
        meaning: what it means, in one short sentence.
        fix: what to try.
        policy: what a reader does when it meets the fault: `raise`, `drop` (leave the sample or row out and note
            it), `repair` (do what `--fix` would do) or `keep`.
        policies: the policies that a reader can honour for this code.
    """

    severity: Severity
    meaning: str
    fix: str
    policy: str = "keep"
    policies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", tuple(dict.fromkeys((self.policy, *self.policies))))


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault at one place."""

    code: str
    severity: Severity
    message: str
    fix: str
    place: Place = Place()

    def __str__(self) -> str:
        return f"{self.place}: {self.message} [{self.code}]"

    def to_dict(self) -> dict[str, Any]:
        """The finding under the names the JSON output uses; places without a value are left out."""
        place = {name: getattr(self.place, name) for name in Place.__slots__}
        return {
            "code": self.code,
            "severity": str(self.severity),
            "message": self.message,
            "fix": self.fix,
            **{name: value for name, value in place.items() if value is not None},
        }

    def to_error(self) -> DataError:
        """The same fault as an exception, for a reader whose policy is `raise`."""
        return DataError(self.message, code=self.code, where=self.place, try_=self.fix)


class Policy:
    """What a reader does about each code: the code's own policy unless the user chose another.

    Args:
        codes: what the format can find.
        chosen: the user's choices, by code, checked all at once; or one policy for every fault that would raise and can
            honour it.
    """

    def __init__(self, codes: Mapping[str, Code], chosen: Mapping[str, str] | str | None = None):
        faults = []
        if isinstance(chosen, str):
            if chosen not in _POLICIES:
                raise UsageError(f"there is no policy {chosen!r}", where="policy", expected=nearest(chosen, _POLICIES))
            raising = {name: code for name, code in codes.items() if code.policy == "raise"}
            chosen = {name: chosen for name, code in raising.items() if chosen in code.policies}
        for name, policy in (chosen or {}).items():
            if name not in codes:
                faults.append(f"unknown code {name!r}: {nearest(name, codes)}")
            elif policy not in codes[name].policies:
                faults.append(f"{name!r} can be {' | '.join(codes[name].policies)}, not {policy!r}")
        if faults:
            raise UsageError("; ".join(faults), where="policy", try_="`fewbit list findings`")
        self._codes = codes
        self._chosen = dict(chosen or {})

    def __getitem__(self, code: str) -> str:
        return self._chosen.get(code, self._codes[code].policy)

    def finding(self, code: str, message: str, place: Place, fix: str | None = None) -> Finding:
        """The finding for a code at a place."""
        known = self._codes[code]
        return Finding(code, known.severity, message, fix or known.fix, place)

    def meet(self, code: str, message: str, place: Place, fix: str | None = None) -> str:
        """What to do about a fault just met: raise here, or return `drop`, `repair` or `keep`."""
        policy = self[code]
        if policy == "raise":
            finding = self.finding(code, message, place, fix)
            others = [other for other in self._codes[code].policies if other != "raise"]
            if others and "policy={" not in finding.fix:  # which says it already
                finding = replace(finding, fix=f"{finding.fix}; or go on with policy={{{code!r}: {others[0]!r}}}")
            raise finding.to_error()
        return policy


class Progress:
    """Where long work says how far it is; this one stays quiet, the command line brings one that shows a bar."""

    def track(self, items: Iterable[T], *, total: int | None, label: str) -> Iterator[T]:
        """Pass the items through, one step each."""
        yield from items

    def advance(self, label: str, done: int, total: int | None) -> None:
        """Say that `done` of `total` units are finished."""


@dataclass
class DataReport:
    """What `check_dataset` understood and found.

    Args:
        path: the dataset.
        format: the format it was read as, and `why` that one was taken.
        understood: classes, counts, sizes, lengths: whatever the format has to say, as JSON values.
        samples: a few samples in words.
        counts: how often each code was found, exactly.
        findings: the places; at most `limit` a code are kept, so that a broken gigabyte cannot fill the memory.

    >>> report = DataReport("data", codes={"bad": Code(Severity.ERROR, "is bad", "make it good")})
    >>> report.add("bad", "row 3 is bad", Place("a.csv", line=3))
    >>> report.ok, [str(finding) for finding in report.errors]
    (False, ['a.csv:3: row 3 is bad [bad]'])
    """

    path: str
    format: str = ""
    why: str = ""
    codes: Mapping[str, Code] = field(default_factory=dict, repr=False)
    limit: int | None = 10_000
    progress: Progress = field(default_factory=Progress, repr=False)
    understood: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    complete: bool = True

    def add(self, code: str, message: str, place: Place | None = None, fix: str | None = None) -> None:
        """Add one finding; the code must be one the format declared."""
        known = self.codes[code]
        self.counts[code] += 1
        if self.limit is None or self.counts[code] <= self.limit:
            self.findings.append(Finding(code, known.severity, message, fix or known.fix, place or Place()))

    def _of(self, severity: Severity) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is severity]

    @property
    def ok(self) -> bool:
        """No error was found, and the check ran to its end."""
        return self.complete and not any(self.codes[code].severity is Severity.ERROR for code in self.counts)

    @property
    def errors(self) -> list[Finding]:
        """The findings that make the dataset unfit."""
        return self._of(Severity.ERROR)

    @property
    def warnings(self) -> list[Finding]:
        """The findings that are likely mistakes."""
        return self._of(Severity.WARN)

    def grouped(self) -> list[tuple[str, Code, list[Finding]]]:
        """Findings by code, worst first, in the order they were found."""
        order = list(Severity)
        by_code: dict[str, list[Finding]] = {code: [] for code in self.counts}
        for finding in self.findings:
            by_code[finding.code].append(finding)
        groups = [(code, self.codes[code], found) for code, found in by_code.items()]
        return sorted(groups, key=lambda group: (order.index(group[1].severity), group[0]))

    def __str__(self) -> str:
        return "\n".join("".join(text for text, _ in line) for line in report_text.lines(self, places=5))

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "path": self.path,
            "format": self.format,
            "why": self.why,
            "ok": self.ok,
            "complete": self.complete,
            "understood": self.understood,
            "samples": self.samples,
            "counts": dict(sorted(self.counts.items())),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def to_json(self) -> str:
        """The report as indented JSON."""
        options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
        return orjson.dumps(self.to_dict(), option=options).decode()
