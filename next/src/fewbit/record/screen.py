# SPDX-License-Identifier: Apache-2.0
"""The final screen of a run, made from its record alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fewbit.errors import escape, plural
from fewbit.record.schema import Record

LABELS = {"ok": "OK", "degraded": "DEGRADED", "broken": "BROKEN", "not-measured": "NOT MEASURED"}


def screen(record: Record) -> str:
    """The verdict, a table of original and result, warnings, and what to do next.

    >>> record = Record("quantize", "ok", "3.5x smaller", size={"original": 21_100_000, "result": 6_000_000})
    >>> print(screen(record))
    OK  3.5x smaller
    <BLANKLINE>
                  original      result
      size         21.1 MB      6.0 MB   3.5x smaller
    """
    return "\n".join(escape(line) if line else line for line in _lines(record))


def details(record: Record) -> str:
    """What `-v` adds: the decision for every layer, and the settings."""
    lines = ["layers:"] if record.layers else []
    width = max((len(layer["name"]) for layer in record.layers), default=0)
    for layer in record.layers:
        decision = record.preset.get("resolved", "quantized") if layer.get("quantized") else "float"
        reason = f"  {layer['reason']}" if layer.get("reason") else ""
        lines.append(f"  {layer['name']:<{width}}  {layer.get('type', ''):<14}{decision}{reason}".rstrip())
    if record.settings:
        lines += ["settings:", *(f"  {name}: {value}" for name, value in record.settings.items())]
    return "\n".join(escape(line) for line in lines)


def _lines(record: Record) -> Iterator[str]:
    yield f"{LABELS[record.verdict]}  {record.summary}" if record.verdict else record.summary
    yield ""
    if record.size:
        yield f"  {'':<8}{'original':>12}{'result':>12}"
        before, after = record.size["original"], record.size["result"]
        smaller = ratio(before, after, "smaller", "larger")
        yield f"  {'size':<8}{megabytes(before):>12}{megabytes(after):>12}   {smaller}"
    if record.quality:
        yield f"  {'quality':<10}{quality(record.quality)}"
    if speed := record.speed:
        before, after = speed["original_ms"], speed["result_ms"]
        how = f"{ratio(before, after, 'faster', 'slower')} ({speed['how']})"
        yield f"  {'speed':<8}{f'{before:.1f} ms':>12}{f'{after:.1f} ms':>12}   {how}"
    if record.kernels.get("summary"):
        yield f"  {'layers':<10}{record.kernels['summary']}"
    for label, text in _ends(record):
        yield f"  {label:<10}{text}"


def _ends(record: Record) -> Iterator[tuple[str, str]]:
    for index, file in enumerate(record.verification.get("files", [])):
        yield "files" if not index else "", file
    if record.warnings:
        yield "warnings", plural(len(record.warnings), "warning") + "; each is in the record"
    for index, step in enumerate(record.next):
        yield "next" if not index else "", step["command"] + (f"   {step['gives']}" if step.get("gives") else "")


def quality(facts: Mapping[str, Any]) -> str:
    """`agreement 99.7% (99.1 to 100), SQNR 23.9 dB, 32 held-out samples`."""
    parts = []
    if (agreement := facts.get("agreement")) is not None:
        low, high = facts["agreement_interval"]
        parts.append(f"agreement {percent(agreement)}% ({percent(low)} to {percent(high)})")
    if facts.get("sqnr_db") is not None:
        parts.append(f"SQNR {facts['sqnr_db']:.1f} dB")
    samples = plural(facts["samples"], "held-out sample") if facts.get("samples") else "not measured"
    return ", ".join([*parts, samples])


def percent(share: float) -> str:
    """A share as percent with one decimal at most: `99.7`, `100`."""
    text = f"{100 * share:.1f}"
    return text.removesuffix(".0")


def megabytes(size: int) -> str:
    """Bytes in kB, MB or GB of 10³, 10⁶, 10⁹.

    >>> megabytes(21_100_000), megabytes(5_400)
    ('21.1 MB', '5.4 kB')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale * 0.9995:
            return f"{size / scale:,.1f} {unit}"
    return f"{size} B"


def ratio(before: float, after: float, better: str, worse: str) -> str:
    """`3.5x smaller`, or `1.2x larger`."""
    if not before or not after:
        return ""
    factor = before / after
    return f"{factor:.1f}x {better}" if factor >= 1 else f"{1 / factor:.1f}x {worse}"
