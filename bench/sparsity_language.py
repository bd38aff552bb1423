# SPDX-License-Identifier: Apache-2.0
"""Part `language` of bench/sparsity.py: half of SmolLM2's weights zero, beside llm-compressor.

Model, texts and judge are those of bench/language.py: weights are put into the plain float32 model, and refused where
they have fewer zeros than were asked for, or more levels than the format has. What is pruned is every linear layer of
the blocks; embedding and head stay dense.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import language_pack
import peers
from language import SAMPLES, WORK, Failed, ask

ROOT = Path(__file__).parents[1]
WORKER = "sparsity_worker.py"
KEYS = ("device", "blocks", "samples", "judged", "format", "side", "way", "seed")
Row = dict[str, Any]


@dataclass(frozen=True)
class Format:
    """What every side is asked for.

    Args:
        title: for the table.
        structure: of the zeros; N:M keeps N of M.
        levels: values a group of 64 may have; none where weights stay floats.
    """

    title: str
    structure: str
    levels: int | None = None
    share: float = 0.5


FORMATS = {
    "half": Format("50 % zeros, unstructured", "unstructured"),
    "half_w4": Format("50 % zeros, unstructured, int4 in groups of 64", "unstructured", 16),
    "2of4": Format("2:4", "2:4"),
    "2of4_w4": Format("2:4, int4 in groups of 64", "2:4", 16),
}
_ALL, _INT4 = tuple(FORMATS), ("half_w4", "2of4_w4")
# side -> way -> formats; the first side is ours, and `auto` what it does with nothing said
SIDES: dict[str, dict[str, tuple[str, ...]]] = {
    "fewbit": {"auto": _ALL, "wanda": _ALL, "alps": _ALL, "magnitude": _ALL},
    "llmcompressor": {
        "sparsegpt": _ALL,
        "sparsegpt_mse": _INT4,
        "sparsegpt_gptq": _INT4,
        "wanda": _ALL,
        "magnitude": ("half", "half_w4"),
    },
}


def chosen(asked: list[str]) -> list[tuple[str, str]]:
    """The ways that are asked for: `SIDE` for all of a side, `SIDE:WAY` for one.

    >>> chosen(["fewbit:alps", "llmcompressor"])[:2]
    [('fewbit', 'alps'), ('llmcompressor', 'sparsegpt')]
    """
    found: list[tuple[str, str]] = []
    for one in asked:
        side, _, way = one.partition(":")
        if side not in SIDES:
            raise SystemExit(f"there is no side {side!r}; there are {', '.join(SIDES)}")
        if way and way not in SIDES[side] and side != "fewbit":  # ours takes any algorithm it has
            raise SystemExit(f"{side} has no way {way!r}; it has {', '.join(SIDES[side])}")
        found += [(side, way)] if way else [(side, way) for way in SIDES[side]]
    return found


def measure(row: Row, given: Row, options: argparse.Namespace) -> Row:
    """One way to one format, with one seed; or why there is none."""
    format = FORMATS[row["format"]]
    common = {"judged": row["judged"], "device": row["device"], "worker": WORKER, **given}
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        out = str(Path(folder) / "weights.safetensors")
        try:
            row |= {"when": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg()[0]}
            found = ask(
                row["side"], options, do="language.sparsify", side=row["side"], way=row["way"], format=row["format"],
                first=row["seed"] * SAMPLES, samples=row["samples"], out=out,
                split=options.split or row["device"] == "cpu", **common,
            )  # fmt: skip
            wanted = {"group": 64, "levels": format.levels, "share": format.share, "structure": format.structure}
            return row | found | ask("fewbit", options, do="language.judge", weights=out, **wanted, **common)
        except Failed as failure:
            return row | {"failed": str(failure)}


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """Every measurement that is asked for, as it comes in; the float model's first."""
    WORK.mkdir(parents=True, exist_ok=True)
    cut = [] if options.blocks is None else [str(options.blocks)]
    prepare = [sys.executable, str(ROOT / "bench" / "language_data.py"), *cut]
    variables = peers.environment()
    if options.packages is not None:
        language_pack.unpack(options.packages)
        variables = language_pack.environment(variables, options.packages, "fewbit")
    folder, tokens = subprocess.run(prepare, env=variables, check=True, capture_output=True, text=True).stdout.split()
    given = {"folder": folder, "tokens": tokens}
    base = {key: getattr(options, key) for key in ("device", "blocks", "samples", "judged")}
    dense = {"judged": options.judged, "device": options.device, "weights": None, "group": 0, "levels": None}
    yield {**base, "format": "", "side": "float", "way": "", "seed": 0} | ask(
        "fewbit", options, do="language.judge", worker=WORKER, share=0.0, structure="unstructured", **dense, **given
    )
    asked = [
        {**base, "format": format, "side": side, "way": way, "seed": seed, "together": options.together}
        for seed in map(int, options.seeds.split(","))
        for format in options.formats.split(",")
        for side, way in chosen(options.sides.split(","))
        if format in SIDES[side].get(way, _ALL)
    ]
    with ThreadPoolExecutor(options.together) as pool:
        waiting = [pool.submit(measure, row, given, options) for row in asked]
        for one in as_completed(waiting):
            yield one.result()
