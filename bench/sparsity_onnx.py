# SPDX-License-Identifier: Apache-2.0
"""Part `onnx` of bench/sparsity.py: a real ONNX model made sparse in one go from a folder of `.npz` samples.

Models, data and figures are those of bench/onnx_tasks; the samples are laid out as the guide of Sparsify says. Judged
is the file that was deployed, in ONNX Runtime; latencies of all files are taken in turns in one process.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from typing import Any

import onnx_run
import sparsity_data
from language import Failed, ask
from results import table

WORKER = "sparsity_worker.py"
KEYS = ("task", "what", "samples")
TASKS = ("orientation", "table_kind")
# what is asked for -> its title, and a recipe or a level
ASKED: dict[str, tuple[str, Any]] = {
    "half": ("50 % zeros", {"stages": [{"prune": {"sparsity": 0.5}}]}),
    "level": ("level 0.5: 51 % zeros, int8", 0.5),
    "sensitivity": ("50 % zeros, by sensitivity", {"stages": [{"prune": {"sparsity": 0.5, "budget": "sensitivity"}}]}),
}
SECONDS = 40
Row = dict[str, Any]


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """A row for each file of a model: the float one's, then those that were made of it."""
    onnx_run.WORK.mkdir(parents=True, exist_ok=True)
    for task in options.tasks.split(","):
        base = {"task": task, "samples": options.samples}
        told = onnx_run.ask("fewbit", "describe", task=task)
        rows: dict[str, Row] = {"float32": {"bytes": told["bytes"], "path": told["path"]}}
        for name in options.asked.split(","):
            what, asked = ASKED[name]
            folder = sparsity_data.WORK / "onnx" / f"{task}-{name}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            question = {"task": task, "samples": options.samples, "asked": asked, "folder": str(folder)}
            try:
                rows[what] = ask("fewbit", options, worker=WORKER, do="onnx.sparsify", **question)
            except Failed as failure:
                rows[what] = {"failed": str(failure)}
        paths = {what: row["path"] for what, row in rows.items() if "failed" not in row}
        figures = onnx_run.ask("fewbit", "judge", task=task, paths=paths)
        latencies = onnx_run.ask("fewbit", "latency", task=task, paths=paths, seconds=options.seconds)
        for what, row in rows.items():
            row |= {**base, "what": what, "title": told["title"], "main": told["main"]}
            if what in paths:
                row |= {"figures": figures[what], "latency": latencies[what]}
            yield row


def text(rows: list[Row]) -> str:
    """A table for each model."""
    parts = [__doc__.partition("\n\n")[2].strip()]  # type: ignore[union-attr]
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        head = [
            "",
            "seconds",
            "zeros",
            "file",
            "without zeros",
            mine[0]["main"],
            "agreement",
            "latency",
            "float32 / it",
        ]
        parts.append(f"### {mine[0]['title']}\n\n{table(head, [_line(row, mine[0]) for row in mine])}")
    return "\n\n".join(parts)


def _line(row: Row, base: Row) -> list[str]:
    if "failed" in row:
        return [row["what"], f"failed: {row['failed']}".replace("|", "\\|"), *[""] * 7]
    figures, size = row["figures"], row["bytes"]
    if "failed" in figures:
        return [row["what"], f"failed: {figures['failed']}".replace("|", "\\|"), *[""] * 7]
    compact = row.get("compact")
    return [
        row["what"],
        f"{row['seconds']:.1f}" if "seconds" in row else "",
        f"{row['zeros']:.1%}" if "zeros" in row else "",
        f"{size / 1e6:.2f} MB ({size / base['bytes']:.2f}×)",
        f"{compact / 1e6:.2f} MB ({compact / base['bytes']:.2f}×)" if compact else "",
        f"{figures[row['main']]:.4f}",
        f"{figures['agreement']:.4f}",
        f"{row['latency'] * 1e3:.3g} ms",
        f"{base['latency'] / row['latency']:.2f}×",
    ]


if __name__ == "__main__":
    print(text(json.loads((sparsity_data.WORK.parent / "sparsity.json").read_text())["onnx"]))
