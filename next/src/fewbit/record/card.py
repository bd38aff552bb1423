# SPDX-License-Identifier: Apache-2.0
"""The model card of an output folder: what it is, the measured figures, how to load it, how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from fewbit.errors import escape, plural
from fewbit.record.schema import Record
from fewbit.record.screen import LABELS, megabytes, percent, ratio


def model_card(record: Record, loading: Mapping[str, str], command: str) -> str:
    """Markdown for `README.md`.

    Args:
        record: of the run.
        loading: code that loads the result, by runtime.
        command: the line that repeats the run.
    """
    title = _markdown(record.output or "model")
    source = _markdown(PurePath(record.model.get("source", "A model")).name)  # no path of this machine
    preset = _markdown(record.preset.get("resolved", record.command))
    verdict = f"**{LABELS.get(record.verdict or '', 'NOT MEASURED')}**"
    summary = f": {_markdown(record.summary)}" if record.summary else ""
    lines = [f"# {title}", "", f"{source}, compressed by fewbit {record.fewbit}: {preset}. {verdict}{summary}."]
    lines += ["", *_table(record)]
    for runtime, code in loading.items():
        lines += ["", f"## {runtime}", "", "```python", code.rstrip(), "```"]
    if command:
        lines += ["", "## Repeat", "", "```console", f"$ {escape(command)}", "```"]
    if record.warnings:
        lines += ["", "## Warnings", "", *(f"- {_markdown(w['message'])} (`{w['code']}`)" for w in record.warnings)]
    return "\n".join(lines) + "\n"


def _table(record: Record) -> list[str]:
    rows = ["| | original | result | |", "|---|--:|--:|---|"]
    if record.size:
        before, after = record.size["original"], record.size["result"]
        rows.append(
            f"| size | {megabytes(before)} | {megabytes(after)} | {ratio(before, after, 'smaller', 'larger')} |"
        )
    if record.quality.get("perplexity") is not None:
        before, after = record.quality["perplexity"]
        low, high = record.quality["perplexity_ratio_interval"]
        interval = f"95 % interval of the ratio {low:.3f} to {high:.3f}"
        rows.append(f"| perplexity | {before:.2f} | {after:.2f} | {interval} |")
    if record.quality.get("agreement") is not None:
        low, high = record.quality["agreement_interval"]
        count = plural(record.quality["samples"], record.quality.get("unit", "held-out sample"))
        interval = f"95 % interval {percent(low)} to {percent(high)}, {count}"
        rows.append(f"| agreement | | {percent(record.quality['agreement'])} % | {interval} |")
    if record.quality.get("sqnr_db") is not None:
        rows.append(f"| SQNR | | {record.quality['sqnr_db']:.1f} dB | |")
    if record.speed:
        before, after = record.speed["original_ms"], record.speed["result_ms"]
        rows.append(f"| latency | {before:.1f} ms | {after:.1f} ms | {ratio(before, after, 'faster', 'slower')} |")
    return rows if len(rows) > 2 else ["Nothing was measured."]


def _markdown(text: str) -> str:
    """Text from outside, without control characters, HTML or Markdown of its own."""
    plain = escape(str(text)).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "`*_[]|#":
        plain = plain.replace(mark, f"\\{mark}")
    return plain
