# SPDX-License-Identifier: Apache-2.0
"""What bench/language.py measured, as Markdown: a table for each format, and which goals are met."""

from __future__ import annotations

from itertools import groupby
from statistics import mean, median
from typing import Any

from language_formats import FORMATS, NAMES, SIDES
from results import table

Row = dict[str, Any]
TEXTS = ("wiki", "docs")
OURS = "fewbit"
ABOUT = """\
SmolLM2-135M off the 4-bit grid it came on, all linear layers of the blocks quantized, embedding and head in float.
Calibration is {samples} samples of 512 tokens, every seed others; perplexity is on two texts that hold none of it, by
the same code for all: weights are put into the plain float32 model, and where activations are rounded the side's own
model is asked. Mean over the seeds, the least and the most behind it. *Seconds* are of the whole job on a loaded
model, × is how many times a plain float32 forward of the same samples in the same process, medians both. hqq has zero
points, which it cannot do without; all others are symmetric. Without quantization: {floats}.

Damping, pull, sweeps and refits of fewbit's `gptq` were chosen by trial with seed 0 on two other texts (the beginning
of the same collection as wiki, and another manual); nothing was chosen on the texts judged here. Peers run with the
settings they recommend. The way named `50` of auto-round is its short run; where its long one is not in a table, it was
not run. Measurements that ran several at a time have perplexities and no seconds."""


def text(rows: list[Row]) -> str:
    """The whole section."""
    rows = sorted(rows, key=lambda row: (row["seed"], str(row["way"])))
    floats = next((row for row in rows if row["side"] == "float"), None)
    told = " / ".join(f"{floats[name]:.2f}" for name in TEXTS) if floats else "not measured"
    samples = rows[0]["samples"] if rows else "no"
    parts = [ABOUT.format(samples=samples, floats=told)]
    for format, one in FORMATS.items():
        if mine := [row for row in rows if row["format"] == format]:
            parts.append(f"### {one.title}\n\n{format_table(mine)}\n\n{verdict(mine)}".rstrip())
    return "\n\n".join(parts)


def format_table(rows: list[Row]) -> str:
    """A line for each way."""
    texts = [f"{name} perplexity" for name in TEXTS]
    head = ["", "seeds", "seconds", "× plain forward", "memory", *texts, "parts", "measured"]
    return table(head, [way_line(side, way, mine) for side, way, mine in ways(rows)])


def ways(rows: list[Row]) -> list[tuple[str, str, list[Row]]]:
    """The rows of each way, in the order of the sides."""

    def key(row: Row) -> tuple[int, str]:
        return list(SIDES).index(row["side"]), row["way"]

    return [(NAMES[list(SIDES)[index]], way, list(mine)) for (index, way), mine in groupby(sorted(rows, key=key), key)]


def way_line(name: str, way: str, rows: list[Row]) -> list[str]:
    """Times and perplexities of one way, or why there are none."""
    done = [row for row in rows if "failed" not in row]
    failed = [row["failed"].replace("|", "\\|") for row in rows if "failed" in row]
    title = name if way in ("auto", "hqq") and name in ("fewbit", "hqq") else f"{name}, {way}"
    if not done:
        return [title, "", f"failed: {failed[0]}", *[""] * 6]
    memory = max(row.get("device_peak", row["peak"]) for row in done)
    told = [title, str(len(done)), *timed([row for row in done if row.get("together", 1) == 1])]
    told.append(f"{memory / 1e9:.1f} GB")
    told += [spread([row[name] for row in done]) for name in TEXTS]
    # What was not measured in one go may have met another machine.
    when = ", ".join(dict.fromkeys(row["when"] for row in done))
    return [*told, f"failed: {failed[0]}" if failed else shares(done), when]


def timed(rows: list[Row]) -> list[str]:
    """Seconds, and how many plain forwards these are; of those that had the machine for themselves."""
    if not rows:
        return ["", ""]
    times = median(row["seconds"] / row["plain"] for row in rows)
    return [f"{median(row['seconds'] for row in rows):.1f}", f"{times:.2f}×"]


def spread(values: list[float]) -> str:
    """The mean of some values and how far they go."""
    return f"{mean(values):.2f}" + (f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else "")


def shares(rows: list[Row]) -> str:
    """The parts of the time that a side tells."""
    known = [row for row in rows if row.get("split")]
    if not known:
        return ""
    parts = {name: mean(row["split"][name] / row["seconds"] for row in known) for name in known[0]["split"]}
    rest = {"forwards and the rest": 1 - sum(parts.values())}
    return ", ".join(f"{name} {share:.0%}" for name, share in (parts | rest).items())


def verdict(rows: list[Row]) -> str:
    """Whether ours has the lowest perplexity on both texts, of the means."""
    means = {
        (name, way): {text: mean(row[text] for row in mine if "failed" not in row) for text in TEXTS}
        for name, way, mine in ways(rows)
        if any("failed" not in row for row in mine)
    }
    ours = [found for (name, _), found in means.items() if name == OURS]
    theirs = {key: found for key, found in means.items() if key[0] != OURS}
    if not ours or not theirs:
        return ""
    told = []
    for name in TEXTS:
        best = min(theirs, key=lambda key: theirs[key][name])
        mine, other = min(found[name] for found in ours), theirs[best][name]
        mark = "✓" if mine < other else "✗"
        told.append(f"{mark} {name}: {mine:.2f}, the best other {other:.2f} ({', '.join(best)})")
    return "; ".join(told)
