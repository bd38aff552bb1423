# SPDX-License-Identifier: Apache-2.0
"""Quantizing real ONNX models, beside NNCF and onnxruntime.quantization in their own environments, in one run.

    python bench/onnx_run.py                             everything, then its section of bench/RESULTS.md is written
    python bench/onnx_run.py --only mrz --tools fewbit   some models (or tools), printed only
    python bench/onnx_run.py --tools float               the float models' own figures
    python bench/onnx_run.py --quick                     20 calibration samples, short timings: to see that it runs

Each measurement is a process of its own (bench/onnx_tasks/_worker.py); models and data are those of bench/onnx_tasks.
Everything measured is kept in `.bench/onnx.json`, of a part in `.bench/onnx.part.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peers
from onnx_table import MEMORY_CAP, text
from results import table, write_section

ROOT = Path(__file__).parents[1]
WORK = ROOT / ".bench" / "onnx"
TASKS = sorted(path.stem for path in (ROOT / "bench" / "onnx_tasks").glob("[!_]*.py"))
# tool -> side; the first is ours
TOOLS = {
    "fewbit": "fewbit",
    "nncf": "nncf",
    "nncf_transformer": "nncf",
    "ort": "ort",
    "ort_per_channel": "ort",
    "ort_percentile": "ort",
    "ort_entropy": "ort",
}
TRANSFORMERS = ("sentences", "recognizer")
SMALL = ("recognizer", "orientation", "table_kind", "voice", "file_types")  # where keeping every activation can fit
HUNGRY = ("ort_percentile", "ort_entropy")
SHORT, TURNS = 10, 3  # what takes less than so many seconds is measured more than once
PATIENCE = 900  # seconds
QUICK_SAMPLES = 20


class Failed(Exception):
    """A measurement that did not come to an end; says why in a line."""


def ask(where: str, do: str, **question: Any) -> dict[str, Any]:
    """The answer of a fresh process in an environment: a peer's, or for `fewbit` this one."""
    python = Path(sys.executable) if where == "fewbit" else peers.python_of(where)
    command = [str(python), "-P", str(ROOT / "bench" / "onnx_tasks" / "_worker.py"), json.dumps({"do": do, **question})]
    try:
        done = subprocess.run(
            command, env=peers.environment(), cwd=WORK, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done in {PATIENCE} s") from None
    if done.returncode:
        (WORK / "failure.log").write_text(done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(" ")]
        raise Failed(lines[-1][:200] if lines else f"ended with {done.returncode}, saying nothing")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def applies(tool: str, task: str) -> bool:
    """Whether a tool's variant is for this model."""
    if tool == "nncf_transformer":
        return task in TRANSFORMERS
    return tool not in HUNGRY or task in SMALL


def measure(task: str, tools: list[str], quick: bool) -> dict[str, Any]:
    """Everything about one model."""
    samples = QUICK_SAMPLES if quick else None
    base = ask("fewbit", "describe", task=task)
    found: dict[str, Any] = {"float": base}
    if tools != ["float"]:
        base["plain"] = median_of(lambda: ask("fewbit", "plain", task=task, samples=samples), quick)
        base["operators"] = ask("fewbit", "operators", path=base["path"])
        say(task, "plain", base["plain"])
    for tool in tools:
        if tool in TOOLS and applies(tool, task):
            found[tool] = one_tool(task, tool, samples, quick)
            say(task, tool, found[tool])
    paths = {tool: one["path"] for tool, one in found.items() if "failed" not in one}
    for tool, judged in ask("fewbit", "judge", task=task, paths=paths).items():
        if "failed" in judged:
            found[tool] = judged
            del paths[tool]
        else:
            found[tool]["figures"] = judged
        say(task, tool, judged)
    if tools != ["float"]:
        for tool, median in ask("fewbit", "latency", task=task, paths=paths, seconds=5 if quick else 40).items():
            found[tool]["latency"] = median
            say(task, tool, f"{median * 1e3:.3g} ms")
    return found


def one_tool(task: str, tool: str, samples: int | None, quick: bool) -> dict[str, Any]:
    """Quantize with a tool, then look at what came out."""
    out, cap = WORK / "made" / task / tool / "model.onnx", MEMORY_CAP if tool in HUNGRY else None
    question = {"task": task, "out": str(out), "samples": samples, "variant": tool, "side": TOOLS[tool]}

    def quantize() -> dict[str, Any]:
        shutil.rmtree(out.parent, ignore_errors=True)
        out.parent.mkdir(parents=True)
        return ask(TOOLS[tool], "quantize", **question, memory_cap=cap)

    try:
        made = median_of(quantize, quick)
        return {**made, "path": str(out), "operators": ask("fewbit", "operators", path=str(out))}
    except Failed as failure:
        short = cap is not None and re.search("MemoryError|alloc", str(failure))
        return {"failed": f"{failure} (held to {cap} GB)" if short else str(failure)}


def median_of(measure: Callable[[], dict[str, Any]], quick: bool) -> dict[str, Any]:
    """What was measured in the middle one by time of several turns, where a turn is short."""
    turns = [measure()]
    while not quick and len(turns) < TURNS and turns[0]["seconds"] < SHORT:
        turns.append(measure())
    turns.sort(key=lambda turn: float(turn["seconds"]))
    return {**turns[len(turns) // 2], "turns": [turn["seconds"] for turn in turns]}


def figures(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in found.items())


def say(*parts: object) -> None:
    print(f"{time.strftime('%H:%M:%S')}", *parts, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TASKS), help="models, by the names of files in bench/onnx_tasks")
    parser.add_argument("--tools", default=",".join(TOOLS), help="float, or some of: " + ", ".join(TOOLS))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    tasks, tools = arguments.only.split(","), arguments.tools.split(",")
    if unknown := [*({*tasks} - {*TASKS}), *({*tools} - {*TOOLS, "float"})]:
        parser.error(f"unknown: {', '.join(unknown)}; models: {', '.join(TASKS)}; tools: float, {', '.join(TOOLS)}")
    WORK.mkdir(parents=True, exist_ok=True)
    whole = tasks == TASKS and tools == list(TOOLS) and not arguments.quick
    start, found = time.perf_counter(), {}
    for task in tasks:
        found[task] = measure(task, tools, arguments.quick)
        raw = {"when": time.strftime("%Y-%m-%d %H:%M"), "load": os.getloadavg(), "quick": arguments.quick, **found}
        (ROOT / ".bench" / ("onnx.json" if whole else "onnx.part.json")).write_text(json.dumps(raw, indent=1))
    if tools == ["float"]:
        rows = [[one["float"]["title"], figures(one["float"]["figures"])] for one in found.values()]
        print(table(["model", "figures in float32"], rows))
        return
    minutes = (time.perf_counter() - start) / 60
    made = text(found)
    print(made)
    if whole:
        about = f"NNCF 3.4.0, ONNX Runtime 1.31.1; {minutes:.0f} minutes, load {os.getloadavg()[0]:.1f}."
        write_section("ONNX models beside NNCF and ONNX Runtime's tool (`bench/onnx_run.py`)", f"{about}\n\n{made}")


if __name__ == "__main__":
    main()
