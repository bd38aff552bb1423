# SPDX-License-Identifier: Apache-2.0
"""What bench/onnx_run.py measured, as Markdown: a table for each model, and which goals are met."""

from __future__ import annotations

from typing import Any

from results import table

Found = dict[str, Any]
OURS = "fewbit"
NAMES = {
    "float": "float32",
    "fewbit": "fewbit",
    "nncf": "NNCF",
    "nncf_transformer": "NNCF, TRANSFORMER",
    "ort": "ORT, per tensor",
    "ort_per_channel": "ORT, per channel",
    "ort_percentile": "ORT, percentile",
    "ort_entropy": "ORT, entropy",
}
MEMORY_CAP = 10  # GB, for tools that keep every activation: the machine is to survive
TIME_FACTOR, TIME_MORE, MEMORY_FACTOR, SIZE = 1.5, 2.0, 2.0, 0.3
DOMINATE = 0.9  # the share of a file from which its weights dominate it

ABOUT = f"""\
Every tool as its documentation calls it, with its defaults; ORT is `onnxruntime.quantization` (static, QDQ, after its
own preparation; percentile and entropy keep every activation, so they run on small models only and are held to
{MEMORY_CAP} GB here). With its defaults, entropy has as many bins as levels and so one range to choose from, the whole:
it gives what per channel gives. *Seconds* from a file to a file in a fresh process, loading the tool left out, the
median of three where that is short; × is how many times plain float inference of the same samples. *Memory* is how far
resident memory rose, and × against plain inference, loading included. *Integer / float* counts the convolutions, matrix
products and recurrences that ONNX Runtime runs after its own optimizations. *Agreement* is with the float model's
answers, *error* ‖y - ŷ‖ / ‖y‖ of its outputs, on samples that no tool saw and fewbit was not tuned on; the models
themselves it was tuned on, the peers were not. *Latency* is of one sample on 2 threads, all models of a table in turns
in one process.

Goals: time ≤ {TIME_FACTOR:g} × plain inference + {TIME_MORE:g} s; memory ≤ {MEMORY_FACTOR:g} × plain inference; no
tool loses less, by the task's own figure, agreement or error; faster than float32 and than every tool's; size
≤ {SIZE:g} × where weights are more than {DOMINATE:.0%} of the file."""


def text(found: dict[str, Found]) -> str:
    """The whole section."""
    parts = [ABOUT]
    if any("figures" in one.get(OURS, {}) for one in found.values()):
        rows = [goals_row(one) for one in found.values()]
        parts.append("### Goals\n\n" + table(["model", "time", "memory", "accuracy", "latency", "size"], rows))
    parts += [f"### {one['float']['title']}\n\n{model_table(one)}" for one in found.values()]
    return "\n\n".join(parts)


def model_table(found: Found) -> str:
    """A line for each tool."""
    main = found["float"]["main"]
    head = ["tool", "seconds", "memory", "size", "integer / float"]
    head += list(dict.fromkeys([main, "agreement", "error", "latency", "float32 / it"]))
    return table(head, [tool_row(tool, one, found["float"], head, main) for tool, one in found.items()])


def tool_row(tool: str, one: Found, base: Found, head: list[str], main: str) -> list[str]:
    """Times, sizes and figures of one tool, or why there are none."""
    if "failed" in one:
        return [NAMES[tool], f"failed: {one['failed']}".replace("|", "\\|"), *[""] * (len(head) - 2)]
    plain, figures = base["plain"], one["figures"]
    cost = one if tool != "float" else plain
    ops = one["operators"]
    cells = [
        NAMES[tool],
        f"{cost['seconds']:.1f} ({cost['seconds'] / plain['seconds']:.1f}×)",
        f"{cost['grown'] / 1e6:,.0f} MB ({cost['grown'] / plain['grown']:.1f}×)",
        f"{one['bytes'] / 1e6:.2f} MB ({one['bytes'] / base['bytes']:.2f}×)",
        f"{ops['integer']} / {ops['float']}",
        *(f"{figures[key]:.4f}" for key in dict.fromkeys([main, "agreement"])),
        f"{figures['error']:.4f}",
    ]
    return [*cells, f"{one['latency'] * 1e3:.3g} ms", f"{base['latency'] / one['latency']:.2f}×"]


def goals_row(found: Found) -> list[str]:
    """Met or not, and by what."""
    ours, base = found.get(OURS, {"failed": "not run"}), found["float"]
    title = base["title"]
    if "failed" in ours:
        return [title, f"✗ {ours['failed']}", "✗", "✗", "✗", "✗"]
    plain = base["plain"]
    allowed = TIME_FACTOR * plain["seconds"] + TIME_MORE
    memory, size = ours["grown"] / plain["grown"], ours["bytes"] / base["bytes"]
    big = base["weights"] >= DOMINATE
    return [
        title,
        mark(ours["seconds"] <= allowed, f"{ours['seconds']:.1f} of {allowed:.1f} s"),
        mark(memory <= MEMORY_FACTOR, f"{memory:.1f}×"),
        accuracy_cell(base["main"], found),
        latency_cell(found),
        mark(size <= SIZE, f"{size:.2f}×") if big else f"{size:.2f}×, weights are {base['weights']:.0%}",
    ]


def accuracy_cell(main: str, found: Found) -> str:
    """Who loses less than we do, and by which figure."""
    ours = found[OURS]["figures"]
    better = []
    for tool, one in others(found).items():
        theirs = one["figures"]
        won = [key for key in dict.fromkeys([main, "agreement"]) if theirs[key] > ours[key]]
        if won + ["error"] * (theirs["error"] < ours["error"]):
            better.append(f"{NAMES[tool]} ({', '.join([*won, *['error'] * (theirs['error'] < ours['error'])])})")
    drop = found["float"]["figures"][main] - ours[main]
    return mark(not better, f"drop {drop:.4f}" + "".join(f"; {name}" for name in better))


def latency_cell(found: Found) -> str:
    """Against float32 and against the fastest other tool."""
    ours = found[OURS]["latency"]
    rivals = {tool: one["latency"] for tool, one in {"float": found["float"], **others(found)}.items()}
    fastest = min(rivals, key=lambda tool: rivals[tool])
    told = f"{rivals['float'] / ours:.2f}× float32" + (
        f", {rivals[fastest] / ours:.2f}× {NAMES[fastest]}" if fastest != "float" else ""
    )
    return mark(ours < rivals[fastest], told)


def others(found: Found) -> Found:
    """Every other tool that came to a result."""
    return {tool: one for tool, one in found.items() if tool not in ("float", OURS) and "failed" not in one}


def mark(met: bool, told: str) -> str:
    """A figure and whether it reaches the goal."""
    return f"{'✓' if met else '✗'} {told}"
