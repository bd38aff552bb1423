# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning against what people use today.

    python bench/tuning.py                    every section, then its part of bench/RESULTS.md is written
    python bench/tuning.py loader             some sections, printed only
    python bench/tuning.py loader --rows 2000 --device cuda

Every measurement runs in a process of its own; the sides of a ratio alternate and the best of three runs counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import table, write_section
from tuning_loader import BATCH, FIRST, SIDES

HERE = Path(__file__).parent
REPEATS = 3
LOADER_ROWS = 20_000
FIRST_ROWS = 100_000


def loader(rows: int | None, device: str) -> str:
    """Tokens a second of each loader, padding left out of them, and the time to a first batch."""
    count = rows or LOADER_ROWS
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(REPEATS):
        for side in SIDES:
            found[side].append(child("tuning_loader.py", side, count, device))
    best = {side: min(runs, key=lambda run: float(run["seconds"])) for side, runs in found.items()}
    speed = {side: run["tokens"] / run["seconds"] for side, run in best.items()}
    lines = [
        [
            side,
            f"{speed[side]:,.0f}",
            f"{1 - run['tokens'] / run['places']:.1%}",
            f"{speed[side] / speed['trainer']:.2f}×",
            f"{run['workers']} {run['kind']}" if "workers" in run else "",
        ]
        for side, run in best.items()
    ]
    first = min(child("tuning_loader.py", FIRST, rows or FIRST_ROWS, device)["seconds"] for _ in range(REPEATS))
    return (
        f"{count:,} ragged rows, tokens made before, in batches of {BATCH} on {device}; padding does not count.\n\n"
        + table(["loader", "tokens/s", "padding", "against the Trainer's", "workers"], lines)
        + f"\n\nFirst batch of {rows or FIRST_ROWS:,} rows, lengths grouped, from tokens kept on disk: {first:.2f} s."
    )


SECTIONS: dict[str, Callable[[int | None, str], str]] = {"loader": loader}


def child(script: str, *arguments: Any) -> dict[str, Any]:
    """What a measurement in a process of its own says last."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    texts = [f"### {name}\n\n{SECTIONS[name](given.rows, given.device)}" for name in given.sections or SECTIONS]
    print("\n\n".join(texts))
    if not given.sections and given.rows is None:
        write_section(f"Fine-tuning, on {given.device} (bench/tuning.py)", "\n\n".join(texts))


if __name__ == "__main__":
    main()
