# SPDX-License-Identifier: Apache-2.0
"""The record of a run in a few lines: what holds for many layers is said once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.filesize import decimal

from fewbit.record import Record

_COUNTED = ("quantized", "activation", "kernel", "bias-corrected")
_NAMED, _REASONS = 3, 4
"""Of so many places, and of so many reasons of a kind, the words are printed; the record has them all."""


def lines(record: Record) -> Iterator[str]:
    """What became of a model, for people.

    >>> record = Record("quantize", facts={"bytes_before": 8000, "bytes_after": 2000})
    >>> record.note("quantized", "global_quant_config", where="0.weight")
    >>> for name in "abcde":
    ...     record.note("float", "it is excluded", where=name)
    >>> print("\\n".join(lines(record)))
    1 weights quantized, 5 left in float: 8.0 kB → 2.0 kB (4.00× smaller)
      float: it is excluded (a, b, c and 2 more)
    """
    counts = Counter(line["what"] for line in record.lines)
    before, after = record.facts["bytes_before"], record.facts["bytes_after"]
    yield (
        f"{counts['quantized']} weights quantized, {counts['float']} left in float: "
        f"{decimal(before)} → {decimal(after)} ({before / max(after, 1):.2f}× smaller)"
    )
    if activations := record.facts.get("activations", counts["activation"]):
        yield f"  {activations} activations quantized"
    kernels = Counter(line["kernel"] for line in record.lines if line["what"] == "kernel")
    for name, count in kernels.items():
        yield f"  {count} layers run on this machine by {name or 'their own forward'}"
    yield from _placed(record.facts)
    yield from _reasons(record)


def _placed(facts: Mapping[str, Any]) -> Iterator[str]:
    """What a runtime makes of a graph, and how near its answers are."""
    executed, answers = facts.get("executed"), facts.get("answers")
    if executed is not None:
        kinds = (("in integers", "integer"), ("in float", "floating"), ("in float on packed weights", "weight_only"))
        found = [f"{_counted(executed[name])} {where}" for where, name in kinds if executed[name]]
        yield f"  the runtime multiplies: {'; '.join(found) or 'nothing'}"
    if "expected_speedup" in facts:
        yield f"  expected: {facts['expected_speedup']:.2f}× as fast, error {_share(facts['expected_error'])}"
    if answers is not None:
        same = answers["agreement"]
        agrees = "" if same is None else f", the same choice in {same:.1%}"
        yield f"  measured: error {_share(answers['error'])}{agrees}, on {answers['items']} items"


def _counted(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in operators.items())


def _share(error: float) -> str:
    """A share of the energy of the answers: two digits are what it is known to."""
    return f"{error:.2g} of the answers' energy"


def _reasons(record: Record) -> Iterator[str]:
    """Every other line, those of one reason together; names differ in numbers, reasons do not."""
    kinds: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in record.lines:
        if line["what"] not in _COUNTED:
            alike = kinds.setdefault(line["what"], {}).setdefault(re.sub(r"\d+", "#", line["reason"]), [])
            alike.append(line)
    for what, groups in kinds.items():
        for group in list(groups.values())[:_REASONS]:
            yield f"  {what}: {group[0]['reason']}{_named([line['where'] for line in group if line['where']])}"
        if len(groups) > _REASONS:
            rest = [line for group in list(groups.values())[_REASONS:] for line in group]
            yield f"  {what}: {len(rest)} more lines in the record"


def _named(where: list[str]) -> str:
    if not where:
        return ""
    more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
    return f" ({', '.join(where[:_NAMED])}{more})"
