# SPDX-License-Identifier: Apache-2.0
"""Lines of a record for people: those of one reason together, each with where, and only the first of a kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from fewbit.record import Record

_NAMED = 3
_REASONS = 8
"""A file can have thousands of faults, each with words of its own; the record has them all."""


def notes(record: Record, quiet: Collection[str]) -> Iterator[str]:
    """What a record says, in a few lines.

    Args:
        record: of a run.
        quiet: kinds of lines that are not told.

    >>> record = Record("check")
    >>> for line in (3, 5):
    ...     record.note("bad-json", "not JSON", where=f"a.jsonl:{line}")
    >>> list(notes(record, ()))
    ['bad-json: not JSON (a.jsonl:3, a.jsonl:5)']
    """
    found: dict[tuple[str, str], list[str]] = {}
    for line in record.lines:
        if line["what"] not in quiet:
            found.setdefault((line["what"], line["reason"]), []).extend([line["where"]] if line["where"] else [])
    told: Counter[str] = Counter()
    for (what, reason), places in found.items():
        where = list(dict.fromkeys(places))  # a row may be read more than once
        told[what] += 1
        if told[what] <= _REASONS:
            more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
            yield f"{what}: {reason}" + (f" ({', '.join(where[:_NAMED])}{more})" if where else "")
    for what, count in told.items():
        if count > _REASONS:
            yield f"{what}: {count - _REASONS:,} more, in record.json"
