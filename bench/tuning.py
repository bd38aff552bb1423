# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning against what people use today.

    python bench/tuning.py                              every section, then its part of bench/RESULTS.md is written
    python bench/tuning.py loader idle --device cuda    some sections, printed only
    python bench/tuning.py loader --rows 2000           a small trial, which is not kept
    python bench/tuning.py --write FILE                 nothing is measured: what was kept is written

Every measurement runs in a process of its own; the sides of a ratio alternate. What was found is kept in `--out`, by
section, so that sections may be measured one by one and on another machine: there with `--packages`, and its file is
brought here and given to `--write`. `--recovery` adds lines of bench/tuning_recovery.py to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import language_pack
import peers
from results import write_section
from tuning_loader import BATCH, FIRST, SIDES
from tuning_table import texts

HERE = Path(__file__).parent
WORK = HERE.parent / ".bench"
REPEATS = 3
LOADER_ROWS, FIRST_ROWS, TRIAL_STEPS = 20_000, 100_000, 12
# of the model, samples in a batch, tokens of a sample
STEPS = {"cpu": [("small", 8, 128)], "cuda": [("small", 8, 128), ("135m", 8, 512)]}
IDLE = {"cpu": ["small"], "cuda": ["small", "135m"]}
Line = dict[str, Any]


def loader(given: argparse.Namespace) -> Line:
    """Each loader's fastest epoch, and the time to a first batch."""
    count, first = given.rows or LOADER_ROWS, given.rows or FIRST_ROWS
    found: dict[str, list[Line]] = {side: [] for side in SIDES}
    for _ in range(given.repeats):
        for side, runs in found.items():
            runs += child(given, "tuning_loader.py", side, count, given.device)
    waits = [child(given, "tuning_loader.py", FIRST, first, given.device)[0] for _ in range(given.repeats)]
    best = {side: min(runs, key=lambda run: float(run["seconds"])) for side, runs in found.items()}
    return {"rows": count, "batch_size": BATCH, "best": best, "first_rows": first, "first": _least(waits)}


def packing(given: argparse.Namespace) -> Line:
    """The share of places that hold tokens, by each way to make batches."""
    count = given.rows or LOADER_ROWS
    return {"rows": count, "ways": child(given, "tuning_packing.py", count)}


def step(given: argparse.Namespace) -> Line:
    """A step of ours beside one of a bare loop."""
    found: list[Line] = []
    for size, batch, length in STEPS[given.device]:
        trial = ("--steps", TRIAL_STEPS, "--blocks", 1) if given.rows else ()
        sizes = ("--size", size, "--batch-size", batch, "--length", length)
        found += child(given, "tuning_step.py", "--device", given.device, *sizes, *trial)
    return {"runs": found}


def idle(given: argparse.Namespace) -> Line:
    """How long the device waits for data in a run."""
    found: list[Line] = []
    for size in IDLE[given.device]:
        trial = ("--rows", given.rows, "--steps", TRIAL_STEPS) if given.rows else ()
        found += child(given, "tuning_idle.py", "--device", given.device, "--size", size, *trial)
    return {"runs": found}


SECTIONS: dict[str, Callable[[argparse.Namespace], Line]] = {
    "loader": loader,
    "packing": packing,
    "step": step,
    "idle": idle,
}


def child(given: argparse.Namespace, script: str, *arguments: Any) -> list[Line]:
    """The lines of JSON that a measurement in a process of its own says."""
    variables = peers.environment()
    if given.packages is not None:
        variables = language_pack.environment(variables, given.packages, "fewbit")
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []])
    parser.add_argument("--device", default="cpu", choices=STEPS)
    parser.add_argument("--rows", type=int, help="so few, as a trial")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--packages", type=Path, help="from bench/language_pack.py, where there is no network")
    parser.add_argument("--out", type=Path, help="where it is kept: .bench/tuning-DEVICE.json")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write what is kept there, and measure nothing")
    parser.add_argument("--recovery", type=Path, nargs="*", default=[], help="output of bench/tuning_recovery.py")
    given = parser.parse_args()
    place = given.write or given.out or WORK / f"tuning-{given.device}.json"
    kept: Line = json.loads(place.read_text()) if place.exists() and not given.rows else {"device": given.device}
    if given.recovery:
        lines = [line for file in given.recovery for line in file.read_text().splitlines() if line.startswith("{")]
        kept["recovery"] = {"when": time.strftime("%Y-%m-%d"), "lines": [json.loads(line) for line in lines]}
    for name in () if given.write else given.sections or SECTIONS:
        kept[name] = {"when": time.strftime("%Y-%m-%d"), "machine": machine(given.device), **SECTIONS[name](given)}
        print(f"### {name}\n\n{texts({name: kept[name]})[name]}\n", flush=True)
        if not given.rows:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(kept, indent=1))
    if given.write:
        place.write_text(json.dumps(kept, indent=1))
    if given.write or not (given.sections or given.rows):
        made = "\n\n".join(f"### {name}\n\n{text}" for name, text in texts(kept).items())
        write_section(f"Fine-tuning, on {kept['device']} (bench/tuning.py)", made)


def machine(device: str) -> str:
    """What it is measured on."""
    cores = f"{len(os.sched_getaffinity(0))} cores"
    if device == "cpu":
        return cores
    import torch

    return f"{torch.cuda.get_device_name()}, {cores}"


def _least(runs: list[Line]) -> float:
    return min(float(run["seconds"]) for run in runs)


if __name__ == "__main__":
    main()
