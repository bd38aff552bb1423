# SPDX-License-Identifier: Apache-2.0
"""What bench/tuning.py kept, as text for bench/RESULTS.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from results import table
from tuning_shares import TOO_LITTLE

Line = dict[str, Any]


def texts(kept: Line) -> dict[str, str]:
    """A text for each section that there is."""
    made = {}
    for name, write in WRITERS.items():
        if name in kept:
            where = ", ".join(kept[name][key] for key in ("machine", "when") if key in kept[name])
            made[name] = f"{write(kept[name])}\n\n({where})"
    return made


def loader(found: Line) -> str:
    """Tokens a second, padding left out of them."""
    best = found["best"]
    speed = {side: run["tokens"] / run["seconds"] for side, run in best.items()}
    lines = [
        [
            f"{side}, from {run['from']}" if "from" in run else side,
            f"{speed[side]:,.0f}",
            f"{1 - run['tokens'] / run['places']:.1%}",
            f"{speed[side] / speed['trainer']:.2f}×",
            f"{run['workers']} {run['kind']}" if "workers" in run else "",
        ]
        for side, run in best.items()
    ]
    return (
        f"{found['rows']:,} ragged rows, tokens made before, in batches of {found['batch_size']} on the device; "
        "padding does not count.\n\n"
        + table(["loader", "tokens/s", "padding", "against the Trainer's", "workers"], lines)
        + f"\n\nFirst batch of {found['first_rows']:,} rows, lengths grouped, from tokens kept on disk: "
        f"{found['first']:.2f} s."
    )


def packing(found: Line) -> str:
    """Shares of places."""
    lines = [
        [way["way"], f"{way['batch_size']}", f"{way['samples']:,}", f"{way['places']:,}", f"{way['useful']:.1%}"]
        for way in found["ways"]
    ]
    return (
        f"{found['rows']:,} ragged rows, {found['ways'][0]['tokens']:,} tokens, all of them in each way. Packed rows "
        "count with their whole length.\n\n" + table(["batches", "of", "rows", "places", "useful"], lines)
    )


def step(found: Line) -> str:
    """Milliseconds."""
    lines = []
    for run in found["runs"]:
        sides = [_spread(run["seconds"][side], run["median"][side]) for side in ("bare", "fewbit")]
        sizes = f"{run['batch_size']} × {run['length']}"
        lines.append([run["model"], run["precision"], sizes, *sides, f"{run['ratio']:.3f}"])
    return (
        "A Llama of random weights, AdamW, clipping, a cosine rate. Milliseconds a step: the median of blocks of "
        "steps, the sides in turns (the least and the most behind it).\n\n"
        + table(["model", "precision", "tokens", "a bare loop", "finetune", "ratio, ours / bare"], lines)
    )


def idle(found: Line) -> str:
    """Shares of time."""
    lines = [
        [
            run["model"],
            run["precision"],
            f"{run['batch_size']}",
            f"{1000 * run['seconds'] / run['steps']:.1f}",
            f"{1000 * run['waited'] / run['steps']:.2f}",
            f"{1000 * run['longest']:.2f}",
            f"{run['idle']:.2%}",
            str(run["workers"]),
        ]
        for run in found["runs"]
    ]
    head = ["model", "precision", "batch", "ms a step", "of it waiting for data", "the longest wait", "idle", "workers"]
    return (
        f"`finetune(folder, 'rows.jsonl')` with {found['runs'][0]['rows']:,} ragged rows, {found['runs'][0]['steps']} "
        "steps after the first ten. Waiting is time in which the device had nothing to do because a batch was not "
        "there.\n\n" + table(head, lines)
    )


def recovery(found: Line) -> str:
    """What came back of what was lost."""
    pictures = [line for line in found["lines"] if "net" in line]
    language = [line for line in found["lines"] if "way" in line]
    return "\n\n".join(text for text in (_of_language(language), _of_pictures(pictures)) if text)


def _of_language(lines: list[Line]) -> str:
    if not lines:
        return ""
    rows = [
        [
            f"{line['way']}, {text}",
            *(f"{line[when][text]:.2f}" for when in ("float", "before", "after")),
            f"{line['recovered'][text]:.0%}",
            f"{line['steps']}",
            f"{line['seconds']:.0f}",
        ]
        for line in lines
        for text in line["float"]
    ]
    head = ["SmolLM2-135M, int4 by", "float", "before", "after", "recovered", "steps", "seconds"]
    ((batch, many, rate),) = {(line["batch_size"], line["rows"], line["lr"]) for line in lines}
    return (
        "Perplexity on texts that nothing was learned from; `distill` from the float model, in steps of "
        f"{batch} × 512 tokens out of {many:,} rows, at a rate of {rate:g}.\n\n" + table(head, rows)
    )


def _of_pictures(lines: list[Line]) -> str:
    if not lines:
        return ""
    rows = []
    for line in lines:
        start = [line["net"], line["scheme"], line["method"], f"{line['float']:.2%}"]
        end = [f"{line['after']:.2%}", _share(line), f"{line['epochs']:.1f}", f"{line['seconds']:.0f}"]
        lost = ["", ""]
        if "before" in line:
            lost = [f"{line['before']:.2%}", f"{100 * line['loss']:.2f} ({_between(line['loss_95'], '.2f')})"]
        rows.append([*start, *lost, *end])
    head = ["CIFAR-10", "scheme", "method", "float", "before", "lost", "after", "recovered", "epochs", "seconds"]
    return (
        f"Accuracy on {lines[0]['judged']:,} test pictures, of the weights of the last step. In brackets what 95 % of "
        "draws of these pictures lie in; no share is told of a loss that could be none. `float, full` is the float "
        "network trained on for as long: what more training is worth without few bits.\n\n" + table(head, rows)
    )


def _share(line: Line) -> str:
    if "before" not in line:
        return ""
    if line["recovered_95"] is None or line["loss"] < TOO_LITTLE:
        return "too little lost"
    return f"{line['recovered']:.0%} ({_between(line['recovered_95'], '.0f')})"


def _between(ends: list[float], form: str) -> str:
    return " to ".join(f"{100 * end:{form}}" for end in ends)


def _spread(seconds: list[float], middle: float) -> str:
    return f"{1000 * middle:.2f} ({1000 * min(seconds):.2f} to {1000 * max(seconds):.2f})"


WRITERS: dict[str, Callable[[Line], str]] = {
    "loader": loader,
    "packing": packing,
    "step": step,
    "idle": idle,
    "recovery": recovery,
}
