# SPDX-License-Identifier: Apache-2.0
"""Ten thousand damaged datasets: each must end in samples or in a typed finding, within a second's work and memory.

    python bench/fuzz.py [--inputs 10000] [--seed 0] [--json]

Worker processes are watched: a crash, a hang or an untyped error is counted with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

SECONDS = 20
MEMORY = 6 << 30


def work(kind: str, start: int, count: int, seed: int) -> None:
    """Run `count` damaged copies of one kind and print one line for each."""
    from mutation import MAKERS, damaged_copy, outcome

    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    folder = Path(tempfile.mkdtemp())
    os.environ["FEWBIT_CACHE"] = str(folder / "cache")
    MAKERS[kind](folder / "valid")
    for number in range(start, start + count):
        print(f"begin {number}", flush=True)
        signal.alarm(SECONDS)
        damaged_copy(folder / "valid", folder / "damaged", random.Random(f"{kind} {seed} {number}"))
        try:
            print(outcome(folder / "damaged"), flush=True)
        except Exception as error:
            print(f"untyped {type(error).__name__}: {error}"[:300].replace("\n", " "), flush=True)
        signal.alarm(0)


def run_kind(kind: str, count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """One kind through watched processes; a process that dies is started again behind the input that killed it."""
    found: Counter[str] = Counter()
    bad: list[str] = []
    done = 0
    while done < count:
        command = [sys.executable, __file__, "--work", kind, str(done), str(count - done), str(seed)]
        lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        begun = [int(line.split()[1]) for line in lines if line.startswith("begin ")]
        ends = [line for line in lines if not line.startswith("begin ")]
        for number, end in zip(begun, ends):
            found[end.split()[0]] += 1
            if end.startswith("untyped"):
                bad.append(f"{kind} {seed} {number}: {end}")
        if len(ends) < len(begun):
            hung = "hang" if lines and len(begun) == len(ends) + 1 and _alarmed(command, begun[-1]) else "crash"
            found[hung] += 1
            bad.append(f"{kind} {seed} {begun[-1]}: {hung}")
        done = begun[-1] + 1 if begun else count
    return found, bad


def _alarmed(command: list[str], number: int) -> bool:
    again = [*command[:4], str(number), "1", command[-1]]
    return subprocess.run(again, capture_output=True).returncode == -signal.SIGALRM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", nargs=4)
    given = parser.parse_args()
    if given.work:
        kind, *numbers = given.work
        work(kind, *map(int, numbers))
        return
    from mutation import MAKERS

    found: Counter[str] = Counter()
    bad: list[str] = []
    for kind in MAKERS:
        ends, wrong = run_kind(kind, -(-given.inputs // len(MAKERS)), given.seed)
        found += ends
        bad += wrong
        if not given.json:
            print(f"{kind:<14} {dict(ends)}", flush=True)
    summary = {
        "inputs": sum(found.values()),
        "kinds": len(MAKERS),
        **{name: found[name] for name in ("samples", "findings")},
        "crashes": found["crash"],
        "hangs": found["hang"],
        "untyped": found["untyped"],
        "bad": bad,
    }
    print(json.dumps(summary) if given.json else "\n".join([*bad, f"{summary['inputs']:,} inputs"]))


if __name__ == "__main__":
    main()
