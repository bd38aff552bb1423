# SPDX-License-Identifier: Apache-2.0
"""Parts `detection` and `segmentation` of bench/sparsity.py: drawn shapes in YOLO's layout, from files to a deployment.

A small DETR finds discs and squares, a small SegFormer names pixels; both are made from a configuration and trained
here by `fewbit.finetune`. Then `fewbit.sparsify`: half of the weights zero in one go, and 80 % zeros with int8 in
training. Judged before and after, on pictures that no side saw: mAP, or mean IoU.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from typing import Any

import sparsity_data
from language import Failed, ask
from results import table

WORKER = "sparsity_worker.py"
KEYS = ("part", "what", "pictures", "steps", "more")
ASKED: dict[str, dict[str, Any]] = {
    "one-shot, 50 %": {"mode": "one-shot", "stages": [{"prune": {"sparsity": 0.5}}]},
    "training-aware, 80 %, int8": {"mode": "training-aware", "stages": [{"train": {"final": 0.8, "quantize": "w8a8"}}]},
}
NAMES = {"detection": "map_50", "segmentation": "mean_iou"}
Row = dict[str, Any]


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """What each recipe makes of the model of a part."""
    part = options.part
    work = sparsity_data.WORK / f"{part}-{options.pictures}-{options.steps}"
    work.mkdir(parents=True, exist_ok=True)
    base = {"part": part, "pictures": options.pictures, "steps": options.steps, "more": options.more}
    model = str(work / "model")
    common = {"part": part, "work": str(work), "pictures": options.pictures, "device": options.device}
    trained = ask("fewbit", options, worker=WORKER, do="shapes.learn", steps=options.steps, out=model, **common)
    if trained:
        yield {**base, "what": "float", **trained}
    for number, (what, recipe) in enumerate(ASKED.items()):
        folder = work / f"made-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        question = {"model": model, "recipe": recipe, "steps": options.more, "out": str(folder)}
        try:
            found = ask("fewbit", options, worker=WORKER, do="shapes.sparsify", **question, **common)
        except Failed as failure:
            found = {"failed": str(failure)}
        yield {**base, "what": what, **found}


def text(rows: list[Row]) -> str:
    """A line for each recipe."""
    parts = [__doc__.partition("\n\n")[2].strip()]  # type: ignore[union-attr]
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part and row["what"] != "float"]
        name = NAMES[part]
        head = [
            "",
            "seconds",
            "zeros",
            f"{name} before",
            f"{name} after",
            "bytes before",
            "bytes after",
            "without zeros",
        ]
        parts.append(f"### {part}\n\n{table(head, [_line(row, name) for row in mine])}")
    return "\n\n".join(parts)


def _line(row: Row, name: str) -> list[str]:
    if "failed" in row:
        return [row["what"], f"failed: {row['failed']}".replace("|", "\\|"), *[""] * 6]
    before, after = row["before"], row["after"]
    return [
        row["what"],
        f"{row['seconds']:.1f}",
        f"{row['zeros']:.1%}",
        *(_figure(each["numbers"][name]) for each in (before, after)),
        *(
            f"{value / 1e3:,.0f} kB"
            for value in (before["bytes"]["raw"], after["bytes"]["raw"], after["bytes"]["compact"])
        ),
    ]


def _figure(found: Any) -> str:
    """A number with its interval, where the record has one."""
    if not isinstance(found, dict):
        return f"{found:.4f}"
    told = f"{found['value']:.4f}"
    return told if found.get("low") is None else f"{told} ({found['low']:.4f} to {found['high']:.4f})"
