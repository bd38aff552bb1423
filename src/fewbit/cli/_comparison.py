# SPDX-License-Identifier: Apache-2.0
"""The record of a comparison in a few lines: the verdict, the figures with their intervals, the worst layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.filesize import decimal

from fewbit.cli._summary import read
from fewbit.record import Record

_SHOWN, _NAMED = 10, 3
"""So many layers, and places of one remark, are printed; the record has them all."""
_TOLD = ("verdict", "layer")


def lines(record: Record) -> Iterator[str]:
    """What was found, for people.

    >>> record = Record("compare", facts={"kind": "values", "samples": 2, "bytes": {"original": 8, "compressed": 2},
    ...     "verdict": "the answers are off by 0.1", "error": {"value": 0.1, "low": None, "high": None}})
    >>> print("\\n".join(lines(record)))
    the answers are off by 0.1
      2 samples; 8 bytes → 2 bytes (4.00× smaller)
      error            0.1
    """
    facts = record.facts
    before, after = facts["bytes"]["original"], facts["bytes"]["compressed"]
    counted = read(facts["subset"]) if "subset" in facts else f"{facts['samples']} samples"
    counted += f", {facts['positions']} positions" if "positions" in facts else ""
    yield facts["verdict"]
    yield f"  {counted}; {decimal(before)} → {decimal(after)} ({before / max(after, 1):.2f}× smaller)"
    for name, text in _figures(facts):
        yield f"  {name:<16} {text}"
    yield from _layers(record)
    yield from _remarks(record)


def _figures(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("perplexity", "accuracy"):
        if name in facts:
            form = ".4g" if name == "perplexity" else ".2%"
            two = (_interval(facts[name][which], form) for which in ("original", "compressed"))
            yield name, " → ".join(two)
    if "kl" in facts:
        kl = facts["kl"]
        yield "KL, mean", _interval(kl["mean"], ".3g")
        yield "KL, median", _interval(kl["median"], ".3g")
        yield "KL, 99 %", _interval(kl["p99"], ".3g")
        worst = kl["worst"]
        row = f"row {worst['row']} of " if "row" in worst else ""
        position = f", position {worst['position']}" if "position" in worst else ""
        yield "KL, worst", f"{worst['value']:.3g} at {row}{worst['place']}{position}"
    if "agreement" in facts:
        yield "same choice", _interval(facts["agreement"], ".2%")
    if "error" in facts:
        yield "error", _interval(facts["error"], ".3g")
    if facts.get("cosine") is not None:
        yield "cosine", _interval(facts["cosine"], ".6f")


def _interval(found: Mapping[str, Any], form: str) -> str:
    if found["low"] is None:
        return f"{found['value']:{form}}"
    return f"{found['value']:{form}} ({found['low']:{form}} to {found['high']:{form}})"


def _layers(record: Record) -> Iterator[str]:
    """The layers that lose most, and how the error grows from the first to the last."""
    ranked = [line for line in record.lines if line["what"] == "layer"]
    if not ranked:
        return
    facts = record.facts["layers"]
    of = f"the worst {_SHOWN} of {len(ranked)} layers" if len(ranked) > _SHOWN else f"{len(ranked)} layers"
    yield f"  {of} by what each one alone changes in its own output, on {facts['items']} items:"
    yield f"    {'share':>6}  {'own error':>9}  {'arriving':>9}  layer"
    for line in ranked[:_SHOWN]:
        arriving = "" if line["arriving_error"] is None else f"{line['arriving_error']:.2g}"
        how = ", ".join(word for word in (line["scheme"], line["algorithm"]) if word is not None)
        yield (
            f"    {line['share']:>6.1%}  {line['local_error']:>9.2g}  {arriving:>9}  {line['where']}"
            f"{f'  ({how})' if how else ''}"
        )
    if len(stream := facts["stream"]) > 1:
        first, last = stream[0], stream[-1]
        yield f"  off in what arrives: {first['error']:.2g} at {first['layer']}, {last['error']:.2g} at {last['layer']}"


def _remarks(record: Record) -> Iterator[str]:
    """Every other line, those of one reason together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for line in record.lines:
        if line["what"] not in _TOLD:
            reasons.setdefault((line["what"], line["reason"]), []).extend([line["where"]] if line["where"] else [])
    for (what, reason), where in reasons.items():
        more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
        yield f"  {what}: {reason}" + (f" ({', '.join(where[:_NAMED])}{more})" if where else "")
