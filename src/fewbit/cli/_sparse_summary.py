# SPDX-License-Identifier: Apache-2.0
"""What became of a model that was made sparse, in a few lines, from its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from fewbit.cli import _output
from fewbit.cli._notes import notes
from fewbit.record import Record

_WARNED = ("few-samples", "few-classes", "head-only")
"""Lines that come first: what they tell of makes the whole result doubtful."""
_QUIET = frozenset((
    "read", "layout", "all-splits", "quantized", "activation", "kernel", "bias-corrected", "pruned", "sparse", "item",
    "not-judged", *_WARNED,
))  # fmt: skip
"""Lines there is one of for each layer, that the record has of every run, or that are told before."""


def tell(folder: Path, *, as_json: bool) -> int:
    """Print the record of a folder that `sparsify` wrote; the exit code."""
    from fewbit.engine.joining import is_first

    if not is_first():
        return 0
    record = Record.from_json((folder.expanduser() / "record.json").read_bytes())
    if as_json:
        _output.print_json({"output": str(folder), **vars(record)})
        return 0
    for line in (*lines(record), f"in {folder}; to deploy: {folder / 'deployment'}"):
        _output.stdout().print(line, markup=False)
    return 0


def lines(record: Record) -> Iterator[str]:
    """The record in a few lines.

    >>> facts = {"mode": "one-shot", "use_case": "custom", "recipe": {"stages": [{"prune": {}}]},
    ...     "before": {"metric": {"name": "accuracy", "value": 0.9}, "sparsity": {"share": 0.0}},
    ...     "after": {"metric": {"name": "accuracy", "value": 0.89}, "sparsity": {"share": 0.5}}}
    >>> print("\\n".join(lines(Record("sparsify", facts))))
    one-shot for custom: prune
    accuracy 0.9 before, 0.89 after
    50.00% of the weights are zero, 0.00% before
    """
    facts = record.facts
    for reason in dict.fromkeys(line["reason"] for line in record.lines if line["what"] in _WARNED):
        yield f"warning: {reason}"
    before, after = facts.get("before") or {}, facts.get("after") or {}
    stages = " → ".join(name for stage in facts["recipe"]["stages"] for name in stage)
    yield f"{facts['mode']} for {facts['use_case']}: {stages or 'nothing is changed'}"
    old, new = before.get("metric"), after.get("metric")
    if old and new:
        where = f", on {after['samples']} samples" if after.get("samples") else ""
        yield f"{new['name']} {_number(old)} before, {_number(new)} after{where}"
    why = before.get("not_judged") or after.get("not_judged")
    if why:
        place = f" ({why['where']})" if why["where"] else ""
        yield f"not judged by {facts.get('metric')}: {why['what']}{place}"
    elif not old or not new:
        yield "nothing was judged: no data that says what is right (--validation DATA)"
    if after.get("sparsity"):
        yield f"{after['sparsity']['share']:.2%} of the weights are zero, {before['sparsity']['share']:.2%} before"
    if after.get("bytes"):
        sizes = before["bytes"]["raw"], after["bytes"]["raw"], after["bytes"]["compact"]
        yield "{} of tensors → {}, {} compact".format(*map(decimal, sizes))
    yield from facts.get("speed") or ()
    yield from (f"  {line}" for line in notes(record, _QUIET))


def _number(found: Any) -> str:
    """A number, with its interval if it has one."""
    value = found.get("value") if isinstance(found, Mapping) else found
    text = "unknown" if value is None else f"{value:.4g}"
    if isinstance(found, Mapping) and found.get("low") is not None and found.get("high") is not None:
        text += f" ({found['low']:.4g} to {found['high']:.4g})"
    return text
