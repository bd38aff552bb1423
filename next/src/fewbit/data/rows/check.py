# SPDX-License-Identifier: Apache-2.0
"""What a check tallies over all rows, a block at a time, in bounded memory.

`ColumnStatistics`: types, missing values, NaN, lengths, lost characters; the union of all rows counts, so nothing
depends on their order: `int 8, str 2 at lines 3, 7`. `Duplicates`: rows that repeat another row, eight bytes each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from fewbit.data.rows import table as tables
from fewbit.data.rows.table import Numbers, Row, Table, column_lists, field_location
from fewbit.data.rows.text import row_error
from fewbit.data.types import MOST_ISSUES, DataReport, IssueType, Location, Severity
from fewbit.errors import plural

MOST_COLUMNS = 1024
_MOST_LENGTHS = 4096
_MOST_KINDS = 64
_FIRST_ROWS = 3
_DEEPEST = 4
_LOST = "\N{REPLACEMENT CHARACTER}"
_NUMBER_START = frozenset("0123456789-.")
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTS = re.compile(rf"(?:{_INT.pattern}\n)++")
_FLOATS = re.compile(rf"(?:{_FLOAT.pattern}\n)++")
_NOT_FINITE = {sign + word: word[:3] for sign in ("", "+", "-") for word in ("nan", "inf", "infinity")}
_ABSENT = ("empty", "null", "missing")
_NAMES = {dict: "object", type(None): "null"}
_NOT_FINITE_NAMES = {"nan": "NaN", "inf": "infinity"}
_CANONICAL = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY

MIXED_TYPES = IssueType(
    "mixed-types", Severity.WARNING, "column that holds values of different types",
    "write all values with the same type", "keep", ("raise",),
)  # fmt: skip
MISSING_VALUES = IssueType(
    "missing-values", Severity.NOTE, "column that holds null or empty values", "fill them, or leave the column out"
)
NAN_VALUES = IssueType(
    "nan-values", Severity.WARNING, "column that holds NaN or infinity", "fill them, or leave such rows out"
)
EMPTY_TEXT = IssueType(
    "empty-text", Severity.WARNING, "rows whose text is missing or blank",
    "fill them, or leave such rows out: {on_error=empty-text=drop}", by_code=("drop",),
)  # fmt: skip
RAGGED_LISTS = IssueType(
    "ragged-lists", Severity.WARNING, "lists of numbers of different lengths",
    "pad or cut them: embeddings have one length",
)  # fmt: skip
REPLACEMENT_CHARACTER = IssueType(
    "replacement-character", Severity.WARNING, "text in which characters were lost (U+FFFD)",
    "make the file again from its origin",
)  # fmt: skip
MANY_COLUMNS = IssueType(
    "many-columns", Severity.WARNING, f"more than {MOST_COLUMNS:,} columns", "put keys that are data into a list"
)
DUPLICATE_ROW = IssueType(
    "duplicate-row", Severity.WARNING, "row that repeats another one",
    "remove the copies: {on_error=duplicate-row=drop}", by_code=("drop",),
)  # fmt: skip
SPLIT_LEAK = IssueType(
    "split-leak", Severity.WARNING, "row that occurs in two splits",
    "remove it from one of them; {on_error=split-leak=drop} keeps the first", by_code=("drop",),
)  # fmt: skip
BAD_ANSWER = row_error(
    "bad-answer", "answer that is not where its row says in the context",
    "correct answer_start: the character of the context, from 0, where the answer begins",
)  # fmt: skip
ISSUES = (
    BAD_ANSWER, MIXED_TYPES, MISSING_VALUES, NAN_VALUES, EMPTY_TEXT, RAGGED_LISTS, REPLACEMENT_CHARACTER, MANY_COLUMNS,
    DUPLICATE_ROW, SPLIT_LEAK,
)  # fmt: skip


@dataclass
class Tally:
    """How many rows, and the first of them."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, positions: Sequence[int] | np.ndarray) -> None:
        """Count some more rows."""
        self.count += len(positions)
        if len(self.first) < _FIRST_ROWS:
            self.first.extend(map(int, positions[: _FIRST_ROWS - len(self.first)]))

    def at(self, table: Table) -> str:
        """` at line 3` or ` at lines 3, 7`, of the first rows."""
        locations = [table.location(position) for position in self.first]
        has_lines = all(location.line is not None and location.row is None for location in locations)
        numbers = ", ".join(str(location.line if has_lines else location.row) for location in locations)
        noun = "line" if has_lines else "row"
        return f" at {noun}{'s' if self.count > 1 else ''} {numbers}{', …' if self.count > len(locations) else ''}"


@dataclass
class _Column:
    kinds: dict[str, Tally] = field(default_factory=dict)
    lengths: Counter[int] = field(default_factory=Counter)
    widths: dict[int, Tally] = field(default_factory=dict)
    lost: Tally = field(default_factory=Tally)

    def count(self, kind: str, positions: Sequence[int]) -> None:
        if positions and (kind in self.kinds or len(self.kinds) < _MOST_KINDS):
            self.kinds.setdefault(kind, Tally()).add(positions)

    def families(self) -> dict[str, Tally]:
        """Kinds that belong together, without null and empty values: all numbers, all lists."""
        families: dict[str, Tally] = {}
        for kind, tally in self.kinds.items():
            if kind not in _ABSENT:
                family = "number" if kind in ("int", "float", "nan", "inf") else kind.partition("[")[0]
                joined = families.setdefault(family, Tally())
                joined.count += tally.count
                joined.first = sorted({*joined.first, *tally.first})[:_FIRST_ROWS]
        return families

    def kinds_text(self, table: Table) -> str:
        """`int 8, str 2 at lines 3, 7`."""
        ordered = sorted(self.kinds.items(), key=lambda item: (-item[1].count, item[0]))
        return ", ".join(
            f"{kind} {tally.count:,}{tally.at(table) if number else ''}" for number, (kind, tally) in enumerate(ordered)
        )


class ColumnStatistics:
    """Gathers statistics of a table.

    Args:
        texts: columns a model is to read, where an empty value is probably a mistake.
        label: the label column, whose empty values are counted elsewhere.
        text_only: all values are text, some of which looks like numbers: a CSV file.
    """

    def __init__(self, texts: Collection[str] = (), label: str | None = None, *, text_only: bool = False):
        self.texts, self.label, self.text_only = frozenset(texts), label, text_only
        self.columns: dict[str, _Column] = {}
        self.empty: set[int] = set()  # rows whose text is missing or blank
        self._overflow = False

    def add(self, positions: Sequence[int], rows: Sequence[Row], prefix: str = "") -> None:
        """Take in a block of rows, or of objects inside of rows."""
        lists = column_lists(rows)
        if lists is not None:
            groups = {name: (positions, values) for name, values in lists.items()}
        else:
            groups = _by_key(positions, rows)
        if not prefix:
            self._add_missing(positions, groups)
        for name, (value_positions, values) in groups.items():
            column = self.columns.get(prefix + name)
            if column is None:
                if len(self.columns) >= MOST_COLUMNS:
                    self._overflow = True
                    continue
                column = self.columns[prefix + name] = _Column()
            kinds = {str} if self.text_only else set(map(type, values))
            for kind in kinds:
                selected = value_positions, values
                if len(kinds) > 1:
                    selected = _where([type(value) is kind for value in values], *selected)
                self._add_values(column, prefix + name, kind, *selected)

    def _add_missing(self, positions: Sequence[int], groups: Mapping[str, tuple[Sequence[int], list[Any]]]) -> None:
        """Count rows without the key of a text like those where it is null."""
        for name in self.texts:
            present = groups[name][0] if name in groups else ()
            if len(present) < len(positions) and (name in groups or "." not in name):
                missing = sorted(set(positions).difference(present))
                self.columns.setdefault(name, _Column()).count("missing", missing)
                self.empty.update(missing)

    def _add_values(self, column: _Column, name: str, kind: type, positions: Sequence[int], values: list[Any]) -> None:
        """Take in values of one type."""
        if kind is str:
            self._add_texts(column, name, positions, values)
        elif kind is list:
            _add_lists(column, positions, values)
        elif kind is float and not -1e300 < sum(values) < 1e300:
            for number_kind, kind_positions in _by_kind([_float_kind(value) for value in values], positions):
                column.count(number_kind, kind_positions)
        else:
            column.count(_NAMES.get(kind, kind.__name__), positions)
            if kind is type(None) and name in self.texts:
                self.empty.update(positions)
            if kind is dict and name.count(".") < _DEEPEST:
                positions, values = _where([bool(value) for value in values], positions, values)
                if values:
                    self.add(positions, values, name + ".")

    def _add_texts(self, column: _Column, name: str, positions: Sequence[int], values: list[str]) -> None:
        joined = "".join(values)
        if not joined.isascii() and _LOST in joined:
            column.lost.add([position for position, value in zip(positions, values) if _LOST in value])
        if name in self.texts and len(column.lengths) < _MOST_LENGTHS:
            column.lengths.update(map(len, values))
        is_text = name in self.texts
        filled = (
            [bool(value.strip()) if is_text else bool(value) for value in values] if is_text or "" in values else []
        )
        if not all(filled):
            empty = [position for position, is_filled in zip(positions, filled) if not is_filled]
            column.count("empty", empty)
            self.empty.update(empty if is_text else ())
            positions, values = _where(filled, positions, values)
        if not self.text_only:
            column.count("str", positions)
        elif values:
            for kind, kind_positions in _text_kinds(values, positions):
                column.count(kind, kind_positions)

    def report(self, report: DataReport, table: Table) -> None:
        """Report what is odd, once per column, with counts and the first locations."""
        for name, column in self.columns.items():
            for kind, message, tally in self._problems(name, column, table):
                report.add(kind, message, field_location(table, tally.first[0], name), samples=tally.count)
        if self._overflow:
            report.add(MANY_COLUMNS, f"statistics of the first {MOST_COLUMNS:,} only", Location())
        shown = list(self.columns.items())[:64]
        report.facts["columns"] = {name: column.kinds_text(table) for name, column in shown}
        lengths = {name: _lengths_text(column.lengths) for name, column in shown if column.lengths}
        report.facts |= {"lengths": lengths} if lengths else {}

    def _problems(self, name: str, column: _Column, table: Table) -> Iterator[tuple[IssueType, str, Tally]]:
        families = column.families()
        # In a CSV some text looks like a number; only a column that is nearly all numbers is odd.
        numbers, texts = (families.get(family, Tally()).count for family in ("number", "text"))
        if len(families) > 1 and (not self.text_only or numbers >= 9 * texts):
            rare = min(families.values(), key=lambda tally: (tally.count, -min(tally.first)))
            yield MIXED_TYPES, column.kinds_text(table), rare
        missing = [(kind, column.kinds[kind]) for kind in _ABSENT if kind in column.kinds]
        if missing and name != self.label:
            message = ", ".join(f"{kind} {tally.count:,}{tally.at(table)}" for kind, tally in missing)
            first = min(tally.first[0] for _, tally in missing)
            joined = Tally(sum(tally.count for _, tally in missing), [first])
            yield EMPTY_TEXT if name in self.texts else MISSING_VALUES, message, joined
        for kind, word in _NOT_FINITE_NAMES.items():
            if kind in column.kinds and name != self.label and (not self.text_only or numbers >= 9 * texts):
                tally = column.kinds[kind]
                yield NAN_VALUES, f"{word} in {plural(tally.count, 'row')}{tally.at(table)}", tally
        if column.lost.count:
            yield REPLACEMENT_CHARACTER, f"U+FFFD in {plural(column.lost.count, 'value')}", column.lost
        if len(column.widths) > 1:
            (common, _), *uncommon = sorted(column.widths.items(), key=lambda item: -item[1].count)
            joined = Tally(sum(tally.count for _, tally in uncommon), uncommon[0][1].first)
            yield RAGGED_LISTS, f"most hold {common:,} numbers, {joined.count:,} do not", joined


def _by_key(positions: Sequence[int], rows: Sequence[Row]) -> dict[str, tuple[Sequence[int], list[Any]]]:
    """Positions and values of each key; rows need not have the same keys."""
    groups: dict[str, tuple[list[int], list[Any]]] = {}
    for position, row in zip(positions, rows):
        for name, value in row.items():
            key_positions, values = groups.setdefault(name, ([], []))
            key_positions.append(position)
            values.append(value)
    return dict(groups)


def _where(flags: list[bool], positions: Sequence[int], values: list[Any]) -> tuple[Sequence[int], list[Any]]:
    """Positions and values that are flagged."""
    if all(flags):
        return positions, values
    pairs = [(position, value) for position, value, flag in zip(positions, values, flags) if flag]
    return [position for position, _ in pairs], [value for _, value in pairs]


def _by_kind(kinds: list[str], positions: Sequence[int]) -> Iterator[tuple[str, Sequence[int]]]:
    groups: dict[str, list[int]] = {}
    for kind, position in zip(kinds, positions):
        groups.setdefault(kind, []).append(position)
    yield from groups.items()


def _float_kind(value: float) -> str:
    return "nan" if value != value else "inf" if abs(value) == float("inf") else "float"


def _text_kinds(values: list[str], positions: Sequence[int]) -> Iterator[tuple[str, Sequence[int]]]:
    """What texts of a CSV look like: kind and positions. A column of one kind is recognized by one call."""
    if values[0][0] in _NUMBER_START:
        joined = "\n".join(values) + "\n"
        if _INTS.fullmatch(joined):
            yield "int", positions
            return
        if joined.count(".") == len(values) and _FLOATS.fullmatch(joined):
            yield "float", positions
            return
    elif _NUMBER_START.isdisjoint(map(itemgetter(0), values)) and values[0].lower() not in _NOT_FINITE:
        yield "text", positions
        return
    yield from _by_kind([_text_kind(value) for value in values], positions)


def _text_kind(text: str) -> str:
    """What a text looks like; a number is what a program writes, so that `007` and `1_000` are text.

    >>> [_text_kind(text) for text in ("-1", "0.5", "007", "1e3", "-", "NaN", "-inf")]
    ['int', 'float', 'text', 'float', 'text', 'nan', 'inf']
    """
    if len(text) > 64:
        return "text"
    if text[0] not in _NUMBER_START or text[-1] in "nfyNFY":
        return _NOT_FINITE.get(text.lower(), "text")
    return "int" if _INT.fullmatch(text) else "float" if _FLOAT.fullmatch(text) else "text"


def _add_lists(column: _Column, positions: Sequence[int], values: list[list[Any]]) -> None:
    if len(column.lengths) < _MOST_LENGTHS:
        column.lengths.update(map(len, values))
    for position, value in zip(positions, values):
        items = "|".join(sorted({_NAMES.get(type(item), type(item).__name__) for item in value[:100]}))
        column.count(f"list[{items}]" if items else "list", [position])
        if items == "float" and (len(value) in column.widths or len(column.widths) < _MOST_KINDS):
            column.widths.setdefault(len(value), Tally()).add([position])


def _lengths_text(lengths: Counter[int]) -> str:
    middle = lengths.total() / 2
    count, median = 0, 0
    for median in sorted(lengths):
        count += lengths[median]
        if count >= middle:
            break
    return f"{min(lengths):,} to {max(lengths):,}, median {median:,}"


class Duplicates:
    """Hashes of all rows, in order.

    Args:
        text_only: every value is text, so that hashes of tuples distinguish rows.
    """

    def __init__(self, *, text_only: bool = False):
        self._text_only = text_only
        self._hashes = Numbers()

    def add(self, rows: Sequence[Row]) -> None:
        """Add the next rows."""
        lists = column_lists(rows) if self._text_only else None
        if lists is not None:
            names = sorted(lists)
            rows_of_text = zip(*(lists[name] for name in names))
            hashes = np.fromiter(map(hash, rows_of_text), np.int64, len(rows)) ^ hash(tuple(names))
        else:
            try:
                hashes = np.array(getattr(rows, "hashes", None) or hash_rows(rows)[0], np.int64)
            except TypeError:  # a value orjson does not know is in one of them
                hashes = np.array([hash(canonical(row)) for row in rows], np.int64)
        self._hashes.append(hashes)

    def groups(self) -> Iterator[np.ndarray]:
        """Positions of equal rows, in order; one array per distinct row that occurs several times."""
        buckets = max(1, -(-len(self._hashes) // tables.IN_MEMORY))
        for bucket in range(buckets):
            hashes, positions = self._bucket(bucket, buckets)
            order = np.argsort(hashes, kind="stable")
            borders = np.flatnonzero(np.diff(hashes[order])) + 1
            starts = np.concatenate(([0], borders))
            sizes = np.diff(np.concatenate((starts, [len(order)])))
            for start, size in zip(starts[sizes > 1].tolist(), sizes[sizes > 1].tolist()):
                yield np.sort(positions[order[start : start + size]])

    def _bucket(self, bucket: int, buckets: int) -> tuple[np.ndarray, np.ndarray]:
        """Hashes of one residue class and their positions, so that only one bucket is in memory."""
        hashes, positions = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for start, piece in self._hashes.pieces():
            column = piece[:, 0]
            inside = (
                np.flatnonzero(column.view(np.uint64) % buckets == bucket) if buckets > 1 else np.arange(len(piece))
            )
            hashes.append(column[inside])
            positions.append(inside + start)
        return np.concatenate(hashes), np.concatenate(positions)

    def report(self, report: DataReport, table: Table, split_codes: Callable[[np.ndarray], np.ndarray]) -> list[int]:
        """Report every row that repeats an earlier one, in order of rows; positions of those to be left out."""
        dropping = {True: report.action(DUPLICATE_ROW) == "drop", False: report.action(SPLIT_LEAK) == "drop"}
        dropped: list[int] = []
        repeats: list[tuple[int, int, bool]] = []  # the later row, the earlier one, whether both are of one split
        counts = {DUPLICATE_ROW: 0, SPLIT_LEAK: 0}
        for positions in self.groups():
            codes = split_codes(positions)
            splits = len(np.unique(codes))
            counts[DUPLICATE_ROW] += len(positions) - splits
            counts[SPLIT_LEAK] += splits - 1
            if any(dropping.values()):
                dropped += [row for row, _, same in _pairs(positions.tolist(), codes.tolist()) if dropping[same]]
            if len(repeats) < 2 * MOST_ISSUES:
                repeats += _pairs(positions.tolist()[: 2 * MOST_ISSUES], codes.tolist())
        listed: Counter[IssueType] = Counter()
        for position, earlier, same in sorted(repeats):
            kind = DUPLICATE_ROW if same else SPLIT_LEAK
            if listed[kind] < MOST_ISSUES:
                listed[kind] += 1
                report.add(kind, f"the same as {table.location(earlier)}", table.location(position))
        for kind, total in counts.items():  # counts stay exact where locations are not kept
            if missing := total - listed[kind]:
                report.counts[kind.code] += missing
                report.affected[kind.code] += missing
        return dropped


def _pairs(positions: Sequence[int], codes: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """Each row with the first equal one of its split, or of another one."""
    earlier: dict[int, int] = {}
    for position, code in zip(positions, codes):
        if earlier:
            yield position, earlier.get(code, next(iter(earlier.values()))), code in earlier
        earlier.setdefault(code, position)


class ParsedRows(list[Any]):
    """Rows that remember their hashes, because the reader that makes them writes them again anyway."""

    hashes: list[int] | None = None


def hash_rows(rows: Sequence[Row]) -> tuple[list[int], int]:
    """A hash of each row that does not depend on the order of keys, and how many `":` the rows have when written again.

    Raises:
        TypeError: orjson alone cannot write one of them.
    """
    hashes: list[int] = []
    keys = 0
    for start in range(0, len(rows), 256):  # each result occupies 4 KB, whatever its length
        written = [orjson.dumps(row, option=_CANONICAL) for row in rows[start : start + 256]]
        keys += b"\n".join(written).count(b'":')
        hashes.extend(map(hash, written))
    return hashes, keys


def canonical(row: Mapping[str, Any]) -> bytes:
    """A row as bytes that do not depend on the order of its keys.

    >>> canonical({"a": 1, "b": [2]}) == canonical({"b": [2], "a": 1})
    True
    """
    try:
        return orjson.dumps(row, option=_CANONICAL, default=repr)
    except (TypeError, orjson.JSONEncodeError):  # an integer beyond 64 bits, half of a character: rare
        return repr(sorted((str(key), repr(value)) for key, value in row.items())).encode("utf-8", "surrogatepass")
