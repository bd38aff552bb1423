# SPDX-License-Identifier: Apache-2.0
"""The record of a run in a few lines: what may be wrong comes first, what holds for many layers is said once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.filesize import decimal

from fewbit.record import Record

_COUNTED = ("quantized", "activation", "kernel", "bias-corrected", "not-kept-aside", "format", "broken")
_WARNED = (
    "nothing-quantized", "dtype-unscaled", "accuracy-missed", "runtime-differs", "few-samples", "few-classes",
    "head-only",
)  # fmt: skip
"""Lines that come first: what they tell of makes the whole result doubtful."""
_NAMED, _REASONS = 3, 4
"""Of so many places, and of so many reasons of a kind, the words are printed; the record has them all."""
BROKEN = "BROKEN: "
"""How the line begins that says of a result that it does not work; it is printed in red."""
_LONG = 56
"""Characters of a name: TensorFlow joins those of all nodes it made one of."""
_MUCH, _LITTLE = 5, 1e-3
"""Errors so many times the expected one are warned of, unless they are as small as this."""


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
    yield from _broken(record)
    yield from _warnings(record)
    counts = Counter(line["what"] for line in record.lines)
    before, after = record.facts["bytes_before"], record.facts["bytes_after"]
    yield (
        f"{counts['quantized']} weights quantized, {counts['float']} left in float: "
        f"{decimal(before)} → {decimal(after)} ({before / max(after, 1):.2f}× smaller)"
    )
    if (subset := record.facts.get("subset")) is not None:
        yield f"  calibrated on {read(subset)}"
    if mix := record.facts.get("mix"):
        shares = ", ".join(f"{share:.0%} {name}" for name, share in mix["shares"].items() if share)
        yield f"  {mix['bits']:.2f} bits a weight, scales included: {shares}"
    if activations := record.facts.get("activations", counts["activation"]):
        yield f"  {activations} activations quantized"
    kernels = Counter(line["kernel"] for line in record.lines if line["what"] == "kernel")
    for name, count in kernels.items():
        yield f"  {count} layers run on this machine by {name or 'their own forward'}"
    yield from _placed(record.facts)
    yield from _reasons(record)


def _broken(record: Record) -> Iterator[str]:
    for line in record.lines:
        if line["what"] == "broken":
            yield f"{BROKEN}the result does not work: {line['reason']}"
            ignore = " ".join(f"--ignore {name}" for name in line.get("worst") or ())
            yield (
                "  try: more bits (quantize --preset w8a16, compress --mode int8_asym)"
                + (f", or leave the layers in float that lost most: {ignore}" if ignore else "")
            )


def read(subset: Mapping[str, Any]) -> str:
    """What was read of the data.

    >>> read({"samples": 300, "samples_in_source": 1198, "seed": 0, "classes": {"a": 150}, "classes_in_source": 2})
    '300 of 1,198 samples (random, seed 0), 1 of 2 classes'
    """
    count, there = subset["samples"], subset.get("samples_in_source")
    if there is None and subset.get("items") == count:
        there = subset.get("items_in_source")
    of = f"{count:,}" if there is None else f"all {there:,}" if count >= there else f"{count:,} of {there:,}"
    drawn = subset["seed"] is not None and (there is None or count < there)
    told = f"{of} sample{'' if (there or count) == 1 else 's'}" + (f" (random, seed {subset['seed']})" if drawn else "")
    if "classes" not in subset:
        return told
    return f"{told}, {len(subset['classes'])} of {subset['classes_in_source']} classes"


def _warnings(record: Record) -> Iterator[str]:
    answers, expected = record.facts.get("answers"), record.facts.get("expected_error")
    if answers is not None and expected is not None and not answers["error"] <= max(_MUCH * expected, _LITTLE):
        yield f"warning: the measured error is {answers['error']:.2g}, and {expected:.2g} was expected"
    for line in record.lines:
        if line["what"] in _WARNED:
            yield f"warning: {line['reason']}"


def _placed(facts: Mapping[str, Any]) -> Iterator[str]:
    """What a runtime makes of a graph, and how near its answers are."""
    executed, answers = facts.get("executed"), facts.get("answers")
    if executed is not None:
        floating = executed.get("float_operators", executed["floating"])  # as the model calls them
        kinds = ("in integers", executed["integer"]), ("in float", floating)
        packed = ("in float on packed weights", executed["weight_only"])
        found = [f"{_counted(operators)} {where}" for where, operators in (*kinds, packed) if operators]
        yield f"  ONNX Runtime executes: {'; '.join(found) or 'no layer'}"
    if "expected_speedup" in facts:
        speedup, error = facts["expected_speedup"], facts["expected_error"]
        told = f"{speedup:.2f}× as fast (cost model, not measured), output error {error:.2g} (relative MSE)"
        yield f"  estimated: {told}"
    if answers is not None:
        yield (
            f"  {_measured(answers)}"
            if "samples" not in answers or "expected_speedup" in facts
            else f"  {_agreement(answers)}"
        )


def _agreement(answers: Mapping[str, Any]) -> str:
    """How near the outputs of a model are to the original's.

    >>> _agreement({"samples": 8, "kept_aside": True, "agreement": 0.995, "error": 0.0123})
    'measured on 8 held-out samples: agreement 99.5%, relative error 0.012'
    """
    kind = "held-out" if answers["kept_aside"] else "calibration"
    count, same = answers["samples"], answers["agreement"]
    places = f" ({answers['positions']} positions)" if "positions" in answers else ""
    parts = [] if same is None else [f"agreement {same:.1%}"]
    told = f"measured on {count} {kind} sample{'' if count == 1 else 's'}{places}: "
    return told + ", ".join([*parts, f"relative error {answers['error']:.2g}"])


def _measured(answers: Mapping[str, Any]) -> str:
    count, same = answers.get("samples", answers["items"]), answers["agreement"]
    kind = "held-out" if answers["kept_aside"] else "calibration"
    worst = f"; worst {answers['worst']:.2g}" if answers["items"] > 1 else ""
    if worst and (place := answers.get("worst_place")):
        worst += f" in {place}"
    parts = [] if same is None else [f"top-1 agreement {same:.1%}"]
    parts.append(f"output error {answers['error']:.2g} (relative MSE{worst})")
    return f"measured on {count} {kind} sample{'' if count == 1 else 's'}: {', '.join(parts)}"


def _counted(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in operators.items())


def _reasons(record: Record) -> Iterator[str]:
    """Every other line, those of one reason together; names differ in numbers, reasons do not."""
    kinds: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in record.lines:
        if line["what"] not in (*_COUNTED, *_WARNED):
            alike = kinds.setdefault(line["what"], {}).setdefault(re.sub(r"\d+", "#", line["reason"]), [])
            alike.append(line)
    for what, groups in kinds.items():
        for group in list(groups.values())[:_REASONS]:
            reason = str(group[0]["reason"])
            where = list(dict.fromkeys(line["where"] for line in group if line["where"]))
            told = " ".join(map(shortened, reason.split(" ")))
            repeats = len(where) == 1 and re.search(rf"(?<!\w){re.escape(where[0])}(?!\w)", reason)
            yield f"  {what}: {told}{'' if repeats else _named(where)}"
        if len(groups) > _REASONS:
            rest = [line for group in list(groups.values())[_REASONS:] for line in group]
            yield f"  {what}: {len(rest)} more lines in the record"


def _named(where: list[str]) -> str:
    if not where:
        return ""
    more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
    return f" ({', '.join(map(shortened, where[:_NAMED]))}{more})"


def shortened(name: str) -> str:
    """A name of at most so many characters as a line bears, cut in the middle.

    >>> shortened("encoder/" * 20 + "MatMul")
    'encoder/encoder/encoder/enc…coder/encoder/encoder/MatMul'
    """
    return name if len(name) <= _LONG else f"{name[: _LONG // 2 - 1]}…{name[-_LONG // 2 :]}"
