# SPDX-License-Identifier: Apache-2.0
"""The final screen of a run, made from its record alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    for index, text in enumerate(_quality_lines(record.quality)):
        yield f"  {'' if index else 'quality':<10}{text}"
    if speed := record.speed:
        before, after = speed["original_ms"], speed["result_ms"]
        how = f"{ratio(before, after, 'faster', 'slower')} ({speed['how']})"
        yield f"  {'speed':<8}{milliseconds(before):>12}{milliseconds(after):>12}   {how}"
    if record.quality.get("worst"):
        yield f"  {'worst':<10}{record.quality['worst']}"
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


def _quality_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """The best evidence first, a line each."""
    if facts.get("perplexity") is not None:
        before, after = facts["perplexity"]
        change = _change(facts["perplexity_ratio"] - 1, [end - 1 for end in facts["perplexity_ratio_interval"]])
        yield f"perplexity {before:.2f} -> {after:.2f}, {change}"
    if facts.get("metric_values") is not None:
        before, after = (_figure(value, facts) for value in facts["metric_values"])
        loss, interval = facts.get("metric_loss"), facts.get("metric_loss_interval")
        sign = -1 if facts.get("metric_higher_is_better", True) else 1
        parts = [f"{facts['metric']} {before} -> {after}", plural(facts["labeled"], "label")]
        if loss is not None and interval is not None:
            parts.insert(1, _change(sign * loss, sorted(sign * end for end in interval)))
        yield ", ".join(parts)
        if facts.get("metric_note"):
            yield facts["metric_note"]
    if facts:
        yield quality(facts)


def _change(change: float, interval: Sequence[float]) -> str:
    """`+10.4% (6.3 to 14.7)`."""
    ends = [f"{round(100 * end, 1) + 0.0:.1f}" if abs(end) < 1e4 else "inf" for end in interval]  # no "-0.0"
    return f"{round(100 * change, 1) + 0.0:+.1f}% ({ends[0]} to {ends[1]})"


def _figure(value: float, facts: Mapping[str, Any]) -> str:
    """Shares as percent, other figures as they are."""
    is_share = facts.get("metric_higher_is_better", True) and all(0 <= end <= 1 for end in facts["metric_values"])
    return f"{percent(value)}%" if is_share else f"{value:.4g}"


def quality(facts: Mapping[str, Any]) -> str:
    """`agreement 99.7% (99.1 to 100), SQNR 23.9 dB, 32 held-out samples`."""
    parts = []
    if (agreement := facts.get("agreement")) is not None:
        low, high = facts["agreement_interval"]
        subject = f" of {facts['agreement_of']}" if facts.get("agreement_of") else ""
        parts.append(f"agreement {percent(agreement)}%{subject} ({percent(low)} to {percent(high)})")
    if facts.get("divergence") is not None:
        parts.append(f"KL divergence {facts['divergence']:.3g}")
    if facts.get("cosine") is not None:
        parts.append(f"cosine {facts['cosine']:.4f}")
    if facts.get("sqnr_db") is not None:
        parts.append(f"SQNR {facts['sqnr_db']:.1f} dB")
    if facts.get("constant"):
        parts.append("every output is the same")
    noun = facts.get("unit", "held-out sample")
    samples = plural(facts["samples"], noun) if facts.get("samples") else "not measured"
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


def milliseconds(time: float) -> str:
    """With one decimal; short times with two digits.

    >>> milliseconds(25.07), milliseconds(0.0213)
    ('25.1 ms', '0.021 ms')
    """
    return f"{time:.1f} ms" if time >= 1 else f"{time:.2g} ms"


def ratio(before: float, after: float, better: str, worse: str) -> str:
    """`3.5x smaller`, `1.2x larger`, or `about the same`."""
    if not before or not after:
        return ""
    factor = before / after
    if 0.95 < factor < 1.05:
        return "about the same"
    return f"{factor:.1f}x {better}" if factor >= 1 else f"{1 / factor:.1f}x {worse}"
