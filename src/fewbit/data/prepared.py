# SPDX-License-Identifier: Apache-2.0
"""From a configuration to its samples: open, split, read by the preset, then step after step, all of it lazily."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from fewbit.data.keys import GENERAL
from fewbit.data.preparing import fingerprints
from fewbit.data.preparing.known_classes import Spelled, known_classes, refuse_differing
from fewbit.data.preparing.origin import CUSTOM, Origin, find_origin, open_origin
from fewbit.data.preparing.splitting import Cut, split_of
from fewbit.data.preparing.step_list import Step, find_steps
from fewbit.data.preparing.stepped import Stepped
from fewbit.data.sample import Place, Sample
from fewbit.data.source import Source, known_length
from fewbit.data.steps._base import Context
from fewbit.data.tables.projection import field, has
from fewbit.errors import DataError, UsageError

_HEAD = 32
_READING = ("format", "reading", "policy", "columns", "task")
_SPLITTING = ("train_split", "validation_split", "validation_ratio", "seed")
_TEXTS = frozenset({"prompt", "text", "messages", "words", "question", "image"})
_BATCHING = frozenset(
    ("batch_size", "padding", "padding_side", "shuffle", "drop_last", "workers", "require_device", "path")
)
"""What does not change a sample."""


def prepare(
    data: Any,
    steps: Sequence[str],
    options: Mapping[str, Any],
    tokenizer: Callable[[], Any],
    split: str | None = "train",
) -> Source:
    """The prepared samples of a split.

    Args:
        data: the name of a dataset, or the dataset itself.
        steps: names of steps, in order.
        options: every key, defaults filled in.
        tokenizer: opens the tokenizer.
        split: `"train"`, `"validation"`, a name of the files' own, or none for everything.

    Raises:
        UsageError: no such data, split, step or column.
        DataError: data that does not open.
    """
    found, faults = find_steps(list(steps))
    if faults:
        raise UsageError("; ".join(faults), where="preprocessing_steps")
    return _prepared(data, found, options, tokenizer, split)


def _prepared(
    data: Any, steps: Sequence[Step], options: Mapping[str, Any], tokenizer: Callable[[], Any], split: str | None
) -> Source:
    origin = find_origin(data, options["path"])
    options = {**options, "task": options["task"] or getattr(origin.preset, "TASK", None)}
    opened, names = partial(open_origin, origin, options), getattr(origin.preset, "SPLITS", {})
    rows = split_of(opened, split, names, options)
    learned = partial(split_of, opened, "train", names, {**options, "validation_ratio": 0})
    source = fields_of(rows, origin, options, learned)
    at_start = _fingerprint(origin, options, split)
    context = Context(options, tokenizer, split or "all", source.record, at_start)
    last = max((n for n, step in enumerate(steps) if step.says("PARTS", False)), default=-1)
    for number, step in enumerate(steps):
        opens = _Others(steps[:number], options, tokenizer, split, source.facts.get("classes"))
        source = _stepped(source, step, replace(context, open=opens))
        if number == last:
            source = Stepped(source, _without_parts, "parts", drops=False, lengths=_same)
        mixed = None if opens.asked or context.fingerprint is None else context.fingerprint
        context = replace(context, fingerprint=mixed and _after(mixed, step, options))
    return source


def fields_of(rows: Source, origin: Origin, options: Mapping[str, Any], learned: Callable[[], Source]) -> Source:
    """The rows of a dataset under the names that steps know.

    Args:
        rows: as the files have them.
        origin: where they come from.
        options: of the configuration.
        learned: opens all rows to learn from.

    Raises:
        UsageError: a column that is not there.
        DataError: not one row.
    """
    preset = origin.preset
    columns: Mapping[str, str] = options["columns"] or {}
    whole = rows.inner if isinstance(rows, Cut) else rows  # whose side a row is on takes reading all of them
    head = _head(whole)
    if not head and next(iter(whole), None) is None:
        where = origin.place if isinstance(origin.place, Path) else origin.how
        raise DataError("there is not one row that can be read", code="no-rows", where=where, expected="at least one")
    _demand(head, columns, getattr(preset, "COLUMNS", ()), origin)
    # Of rows that mean whatever their columns are called, those that are named are all there are.
    only = not getattr(preset, "COLUMNS", ()) and bool(_TEXTS & columns.keys())
    renamed = [_renamed(row, columns, only) for row in head]
    bind = getattr(preset, "fitted", None)
    ends = origin.hub is None or known_length(whole) is not None
    every = (lambda: (_renamed(row, columns, only) for row in learned() if isinstance(row, Mapping))) if ends else None
    known = known_classes(rows.facts, columns)
    if bind is None:
        plain = partial(preset.example, options=options)
        read: Any = Spelled(plain, known) if known else plain
    else:
        read = bind(renamed, options, every, known)
    labels = getattr(read, "labels", None)
    refuse_differing(rows.facts, columns, getattr(read, "column", "label"))
    classes = getattr(preset, "CLASSES", None) if labels is None else labels.classes
    if classes is None and not known:
        classes = rows.facts.get("classes")  # a reader that has numbered them itself
    for code, message in (*getattr(read, "remarks", ()), *(labels.remarks if labels is not None else ())):
        rows.record.note(code, message)
    if origin.sample:
        rows.record.note("sample-data", "no data is named: these rows are a small sample of ours")
    rows.record.note("read", f"{origin.how}, read as {options['task'] or 'what its columns look like'}")
    module = str(getattr(preset, "__name__", type(preset).__name__))
    name, ours = module.rpartition(".")[2], module.startswith("fewbit.")
    name = "reading" if name == CUSTOM else name  # a name that nobody gave
    drops = getattr(read, "drops", True)
    made = Stepped(rows, Reading(read, columns, only), name, drops=drops, forgives=drops, of_user=not ours)
    made.facts = {name: value for name, value in rows.facts.items() if name != "classes"}
    made.facts |= {"classes": list(classes)} if classes else {}
    return made


def _agree(known: list[str], said: list[str], where: str) -> None:
    """Data that has numbered its classes itself keeps its numbers."""
    if known != said:
        raise UsageError(
            f"the classes are {', '.join(known)} there, and {', '.join(said)} here",
            where=where,
            expected="one order for all of them: what is learned is the number",
            try_=f"custom_config={{'classes': {known}}}",
        )


def _head(rows: Source) -> list[Mapping[str, Any]]:
    """The first rows; of pictures, which have to be decoded, the first."""
    head: list[Mapping[str, Any]] = []
    for index, row in enumerate(islice(iter(rows), _HEAD)):
        if isinstance(row, Mapping):
            head.append(Sample(row, place=Place(index=index)) if type(row) is dict else row)
            if any(hasattr(value, "__array__") for value in row.values()):
                break
    return head


@dataclass(frozen=True)
class Reading:
    """Reads a row under other names of its columns."""

    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    columns: Mapping[str, str]
    only: bool

    def __call__(self, row: Any) -> dict[str, Any]:
        """The fields of a row; a bare text is one."""
        row = row if isinstance(row, Mapping) else {"text": row}
        return Sample(self.read(_renamed(row, self.columns, self.only)), place=getattr(row, "place", None))


@dataclass
class _Others:
    """Opens other data the same way, up to a step; remembers that it did."""

    steps: Sequence[Step]
    options: Mapping[str, Any]
    tokenizer: Callable[[], Any]
    split: str | None
    classes: list[str] | None = None
    asked: bool = False

    def __call__(self, other: Any) -> Source:
        self.asked = True
        given, data = self.options, other
        if hasattr(other, "options") and hasattr(other, "data"):
            given, data = other.options, other.data
        elif isinstance(other, Mapping):
            data = other.get("dataset_name")
            given = {**self.options, "path": None, "columns": None, **(other.get("custom_config") or {})}
        else:
            given = {**self.options, "path": None, "columns": None}
        keys = {key.name: key.default for key in GENERAL}
        opened = _prepared(data, self.steps, {**keys, **self.options, **given}, self.tokenizer, self.split)
        if self.classes and opened.facts.get("classes"):
            _agree(self.classes, opened.facts["classes"], f"other data, {str(data)[:80]}")
        return opened


def _stepped(source: Source, step: Step, context: Context) -> Source:
    if step.of_user:
        return Stepped(source, step, step.name, of_user=True)
    if hasattr(step.member, "apply"):
        applied: Source = step.member.apply(source, context)
        return applied
    leaves = step.says("lengths", None)
    known = None if leaves is None else partial(leaves, context=replace(context, open=None))
    return Stepped(source, step.member.make(context), step.name, drops=step.says("DROPS", True), lengths=known)


def _demand(
    head: Sequence[Mapping[str, Any]], columns: Mapping[str, str], needed: Sequence[str], origin: Origin
) -> None:
    """Every column that is asked for has to be there."""
    if not head:
        return
    there = list(dict.fromkeys(name for row in head for name in row))
    wanted = {name: name for name in needed} | dict(columns)
    absent = {name: column for name, column in wanted.items() if not any(has(row, column) for row in head)}
    if absent:
        near = {name: get_close_matches(column, there, n=1, cutoff=0.5) for name, column in absent.items()}
        meant = {name: (near[name] or ["the name in your file"])[0] for name in absent}
        lacking = "; ".join(f"no column {column!r} for {name!r}" for name, column in absent.items())
        raise UsageError(
            f"the rows have {lacking}",
            where=f"{origin.how} ({getattr(head[0], 'place', 'the first row')})",
            expected=f"one of its columns for each: {', '.join(there)}",
            try_=f"custom_config={{'columns': { ({**columns, **meant}) }}}",
        )


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str], only: bool) -> Mapping[str, Any]:
    if not columns:
        return row
    named = {name: field(row, column) for name, column in columns.items()}
    return Sample(named if only else {**row, **named}, place=getattr(row, "place", None))


def _fingerprint(origin: Origin, options: Mapping[str, Any], split: str | None) -> str | None:
    """Of the rows as the preset reads them, if that is known without reading them."""
    content = fingerprints.of_place(origin.place)
    if origin.format is not None or content is None:
        return None
    own = [key.name for key in getattr(origin.preset, "KEYS", ())]
    said = {name: options[name] for name in (*_READING, *_SPLITTING, *own)}
    code = fingerprints.of_code(origin.preset)
    return fingerprints.combine(content, fingerprints.of_options(said), code, split)


def _after(before: str, step: Step, options: Mapping[str, Any]) -> str:
    said = {name: value for name, value in options.items() if name not in _BATCHING}
    return fingerprints.combine(before, step.name, fingerprints.of_code(step.member), fingerprints.of_options(said))


def _without_parts(sample: dict[str, Any]) -> dict[str, Any]:
    return Sample({n: v for n, v in sample.items() if n != "parts"}, place=getattr(sample, "place", None))


def _same(found: Any) -> Any:
    return found
