# SPDX-License-Identifier: Apache-2.0
"""A language model's weights in few bits, beside llm-compressor, auto-round, Quark, hqq and torchao, each in its own
environment: perplexity on two texts, and seconds beside a plain forward of the same calibration set.

    python bench/language.py                                           everything: many hours on a CPU
    python bench/language.py --formats w4g64 --sides fewbit,autoround:50 --seeds 0,1,2
    python bench/language.py --blocks 2 --samples 8 --judged 4         two blocks of the model: to see that it runs
    python bench/language.py --table                                   what was measured so far, again
    python bench/language.py --table --write                           the same as a section of bench/RESULTS.md

Model and texts are those of bench/language_data.py, formats and ways those of bench/language_formats.py, each
measurement is a process of its own (bench/language_worker.py). Results gather in `.bench/language.json`, a measurement
made again in the place of the old one; those of a part of the model or of the samples in `.bench/language.part.json`.
Where there is no network and are no environments, `--packages DIR` takes what bench/language_pack.py made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import language_pack
import peers
from language_formats import FORMATS, SIDES, applies, chosen
from language_table import text
from results import write_section

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench" / "language"
SAMPLES, SEEDS, JUDGED = 64, 3, 64
KEYS = ("device", "blocks", "samples", "judged", "format", "side", "way", "seed")
Row = dict[str, Any]


class Failed(Exception):
    """A measurement that did not come to an end; says why in a line."""


def ask(where: str, options: argparse.Namespace, worker: str = "language_worker.py", **question: Any) -> Row:
    """The answer of a fresh process in a side's environment; `fewbit` is this one."""
    packages, patience = options.packages, options.patience
    variables = peers.environment()
    python = Path(sys.executable)
    if packages is not None:
        variables = language_pack.environment(variables, packages, where)
    elif where != "fewbit":
        python = peers.python_of(where)
    command = [str(python), "-P", str(ROOT / "bench" / worker), json.dumps(question)]
    try:
        done = subprocess.run(command, env=variables, cwd=WORK, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done in {patience:.0f} s") from None
    if done.returncode:
        (WORK / f"failure-{where}.log").write_text(done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
        raise Failed(lines[-1][:200] if lines else f"ended with {done.returncode}, saying nothing")
    answer: Row = json.loads(done.stdout)
    return answer


def measure(row: Row, given: Row, options: argparse.Namespace) -> Row:
    """One way to one format, with one seed; or why there is none."""
    format = FORMATS[row["format"]]
    common = {"judged": row["judged"], "device": row["device"], **given}
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        out = None if format.rounds_inputs else str(Path(folder) / "weights.safetensors")
        try:
            row |= {"when": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg()[0]}
            found = ask(
                row["side"], options, do="quantize", side=row["side"], way=row["way"], format=row["format"],
                first=row["seed"] * SAMPLES, samples=row["samples"], out=out,
                split=options.split or row["device"] == "cpu", **common,
            )  # fmt: skip
            if out is not None:
                grid = {"group": format.group, "levels": format.levels}
                found |= ask("fewbit", options, do="judge", weights=out, **grid, **common)
            return row | found
        except Failed as failure:
            return row | {"failed": str(failure)}


def float_row(row: Row, given: Row, options: argparse.Namespace) -> Row:
    """The float model itself."""
    question = {"judged": row["judged"], "device": row["device"], "weights": None, "group": 0, "levels": None, **given}
    return row | ask("fewbit", options, do="judge", **question)


def keep(rows: list[Row], new: Row, path: Path) -> list[Row]:
    """All rows, a new one in the place of an old one of the same question; written at once."""
    rows = [row for row in rows if [row[key] for key in KEYS] != [new[key] for key in KEYS]] + [new]
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    unfinished.replace(path)
    return rows


def run(options: argparse.Namespace, path: Path, rows: list[Row]) -> list[Row]:
    """Every measurement that is asked for."""
    cut = [] if options.blocks is None else [str(options.blocks)]
    prepare = [sys.executable, str(ROOT / "bench" / "language_data.py"), *cut]
    variables = peers.environment()
    if options.packages is not None:
        language_pack.unpack(options.packages)
        variables = language_pack.environment(variables, options.packages, "fewbit")
    folder, tokens = subprocess.run(prepare, env=variables, check=True, capture_output=True, text=True).stdout.split()
    given = {"folder": folder, "tokens": tokens}
    base = {key: getattr(options, key) for key in ("device", "blocks", "samples", "judged")}
    start = {**base, "format": "", "side": "float", "way": "", "seed": 0}
    rows = keep(rows, float_row(start, given, options), path)
    say(rows[-1])
    asked = [
        {**base, "format": format, "side": side, "way": way, "seed": seed, "together": options.together}
        for seed in map(int, options.seeds.split(","))
        for format in options.formats.split(",")
        for side, way in chosen(options.sides.split(","))
        if applies(side, way, format)
    ]
    with ThreadPoolExecutor(options.together) as pool:
        waiting = [pool.submit(measure, row, given, options) for row in asked]
        for one in as_completed(waiting):
            rows = keep(rows, one.result(), path)
            say(rows[-1])
    return rows


def say(row: Row) -> None:
    told = " ".join(str(row[key]) for key in ("format", "side", "way", "seed"))
    figures = {key: value for key, value in row.items() if key not in KEYS}
    print(time.strftime("%H:%M:%S"), told, json.dumps(figures), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--sides", default=",".join(SIDES), help="SIDE or SIDE:WAY, such as autoround:50")
    parser.add_argument("--seeds", default=",".join(map(str, range(SEEDS))), help="which calibration samples")
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"of 512 tokens, {SAMPLES} at most")
    parser.add_argument("--judged", type=int, default=JUDGED, help="samples of each text that are judged on")
    parser.add_argument("--blocks", type=int, help="only the first blocks of the model")
    parser.add_argument("--packages", type=Path, help="folder of bench/language_pack.py, instead of environments")
    parser.add_argument("--patience", type=float, default=7200, help="seconds for one measurement")
    parser.add_argument("--together", type=int, default=1, help="measurements at a time; seconds tell nothing then")
    parser.add_argument("--split", action="store_true", help="where the time goes on a GPU too, which costs some")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--write", action="store_true", help="write the section of bench/RESULTS.md")
    options = parser.parse_args()
    if unknown := {*options.formats.split(",")} - {*FORMATS}:
        parser.error(f"no formats: {', '.join(sorted(unknown))}; there are {', '.join(FORMATS)}")
    chosen(options.sides.split(","))
    if not {*options.seeds.split(",")} <= {*map(str, range(SEEDS))} or not 0 < options.samples <= SAMPLES:
        parser.error(f"seeds are below {SEEDS}, samples up to {SAMPLES}")
    WORK.mkdir(parents=True, exist_ok=True)
    whole = options.blocks is None and options.samples == SAMPLES and options.judged == JUDGED
    path = ROOT / ".bench" / ("language.json" if whole else "language.part.json")
    rows = json.loads(path.read_text()) if path.exists() else []
    if not options.table:
        rows = run(options, path, rows)
    like = {key: getattr(options, key) for key in ("device", "blocks", "samples", "judged")}
    made = text([row for row in rows if all(row[key] == value for key, value in like.items())])
    print(made)
    if options.write:
        where = "on a GPU" if options.device == "cuda" else "on the CPU"
        write_section(f"SmolLM2-135M in few bits {where} (`bench/language.py`)", made)


if __name__ == "__main__":
    main()
