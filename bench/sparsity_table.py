# SPDX-License-Identifier: Apache-2.0
"""What parts `language` and `cnn` of bench/sparsity.py measured, as Markdown, and which goals are met."""

from __future__ import annotations

import math
from itertools import groupby
from statistics import mean, median
from typing import Any

from language_table import TEXTS, shares, spread, timed
from results import table
from sparsity_cnn import AWARE, ONE_SHOT
from sparsity_cnn import SIDES as CNN_SIDES
from sparsity_language import FORMATS
from sparsity_language import SIDES as LANGUAGE_SIDES

Row = dict[str, Any]
OURS = "fewbit"
NAMES = {"fewbit": "fewbit", "llmcompressor": "llm-compressor", "nncf": "NNCF", "sparseml": "SparseML"}
TIME_SHARE, POINTS = 1 / 3, 0.5
LANGUAGE = """\
SmolLM2-135M off the 4-bit grid it came on, all linear layers of the blocks pruned, embedding and head dense.
Calibration is {samples} samples of 512 tokens, every seed others; perplexity is on two texts that hold none of it, by
the same code for all: weights are put into the plain float32 model, after their zeros and levels were counted. Mean
over the seeds, the least and the most behind it. *Seconds* are of the whole job on a loaded model, × is how many times
a plain float32 forward of the same samples in the same process, medians both; of measurements that ran several at a
time, only those under the same load compare. Dense: {floats}.

llm-compressor 0.14 rounds to int4 after its zeros: plainly, with scales by squared error (`_mse`), or with GPTQ
(`_gptq`), which fills zeros again and is refused for that. Its magnitude pruning waits for a training loop and leaves a
one-shot model as it was. SparseML is this tool's predecessor and has no code in its newest version; see bench/peers.

Goals: perplexity below every peer's on both texts, in at most a third of the time of the best of them."""
CNN = f"""\
Two small networks that bench/sparsity_nets.py trains on CIFAR-10 with its own loop; *float, longer* goes on for as long
as sides with training have. {ONE_SHOT:.0%} zeros in one go are judged as weights of the plain network,
{AWARE:.0%} zeros with int8 in training as each side's own model; fewbit trains by its own loop and defaults, the others
by that of the benchmark. Convolutions are pruned but the first and those of one channel each, which stay dense on every
side, as does the head. Accuracy is on the {{judged}} test pictures with its 95 % interval (Wilson); *lost* are points
against float, and against float, longer. *Bytes* are of all tensors, and without their zeros as fewbit's files have
them; *file* is what fewbit wrote, with all that its format tells.
That `alps` and not `stepwise` prunes convolutions was decided on half of these test pictures. The MobileNet's float
weights were trained on a GPU by the same code.
NNCF 3.4 prunes by magnitude; SparseML 1.8.0 is the last that has code, 1.9.0 refuses to be installed.

Goal: at most {POINTS:g} points lost in training-aware."""


def language(rows: list[Row]) -> str:
    """The whole section of part `language`."""
    rows = sorted(rows, key=lambda row: (row["seed"], str(row["way"])))
    floats = next((row for row in rows if row["side"] == "float"), None)
    told = " / ".join(f"{floats[name]:.2f}" for name in TEXTS) if floats else "not measured"
    parts = [LANGUAGE.format(samples=rows[0]["samples"] if rows else "no", floats=told)]
    head = ["", "seeds", "seconds", "× plain forward", "memory", "zeros", *(f"{name} perplexity" for name in TEXTS)]
    for format, one in FORMATS.items():
        mine = _ways([row for row in rows if row["format"] == format], list(LANGUAGE_SIDES))
        if mine:
            lines = [_way_line(side, way, found) for side, way, found in mine]
            parts.append(f"### {one.title}\n\n{table([*head, 'parts'], lines)}\n\n{_verdict(mine)}".rstrip())
    return "\n\n".join(parts)


def _ways(rows: list[Row], sides: list[str]) -> list[tuple[str, str, list[Row]]]:
    """The rows of each way, in the order of the sides."""

    def key(row: Row) -> tuple[int, str]:
        return sides.index(row["side"]), row["way"]

    return [(sides[index], way, list(mine)) for (index, way), mine in groupby(sorted(rows, key=key), key)]


def _way_line(side: str, way: str, rows: list[Row]) -> list[str]:
    done = [row for row in rows if "failed" not in row]
    failed = [f"failed: {row['failed']}".replace("|", "\\|") for row in rows if "failed" in row]
    title = f"{NAMES[side]}, {way}"
    if not done:
        return [title, "", failed[0], *[""] * 6]
    memory = max(row.get("device_peak", row["peak"]) for row in done)
    many = {row.get("together", 1) for row in done}
    told = [
        title,
        str(len(done)),
        *timed(done if len(many) == 1 else [row for row in done if row.get("together", 1) == 1]),
    ]
    told[2] += f" ({min(many)} at a time)" if many and min(many) > 1 else ""
    told += [f"{memory / 1e9:.1f} GB", f"{mean(row['zeros'] for row in done):.1%}"]
    told += [spread([row[name] for row in done]) for name in TEXTS]
    return [*told, failed[0] if failed else shares(done)]


def _verdict(ways: list[tuple[str, str, list[Row]]]) -> str:
    """Whether ours, with nothing said, is better than every peer on both texts, and in what share of the time."""
    done = {(side, way): [row for row in rows if "failed" not in row] for side, way, rows in ways}
    ours = done.get((OURS, "auto"))
    theirs = {key: rows for key, rows in done.items() if key[0] != OURS and rows}
    if not ours or not theirs:
        return ""
    told, bests = [], dict[tuple[str, str], str]()
    for name in TEXTS:
        best = min(theirs, key=lambda key: mean(row[name] for row in theirs[key]))
        mine, other = (mean(row[name] for row in rows) for rows in (ours, theirs[best]))
        told.append(f"{_mark(mine < other)} {name}: {mine:.2f}, the best other {other:.2f} ({', '.join(best)})")
        bests[best] = best[1]
    for best, way in bests.items():
        sides = [ours, theirs[best]]
        if len({row.get("together", 1) for rows in sides for row in rows}) == 1:  # under the same load
            share = median(row["seconds"] for row in ours) / median(row["seconds"] for row in theirs[best])
            told.append(f"{_mark(share <= TIME_SHARE)} time: {share:.2f} of that of {way}")
    return "; ".join(told)


def cnn(rows: list[Row]) -> str:
    """The whole section of part `cnn`."""
    judged = next((f"{row['count']:,}" for row in rows if "count" in row), "")
    parts = [CNN.format(judged=judged)]
    head = [
        "",
        "seconds",
        "zeros",
        "accuracy",
        "lost",
        "lost to longer",
        "bytes",
        "without zeros",
        "file",
        "in ONNX Runtime",
    ]
    for net in dict.fromkeys(row["net"] for row in rows):
        mine = [row for row in rows if row["net"] == net]
        floats = {row["what"]: row for row in mine if row["side"] == "float"}
        parts.append(f"### {net}\n\n{table(head, [_cnn_line(row, floats) for row in sorted(mine, key=_order)])}")
    return "\n\n".join(parts)


def _order(row: Row) -> tuple[int, int]:
    kinds, sides = ["float", "float, longer", "one-shot", "training-aware"], ["float", *CNN_SIDES]
    return kinds.index(row["what"]), sides.index(row["side"])


def _cnn_line(row: Row, floats: dict[str, Row]) -> list[str]:
    side = row["side"]
    title = row["what"] if side == "float" else f"{row['what']}: {NAMES[side]}, {row['way']}"
    if "failed" in row:
        return [title, f"failed: {row['failed']}".replace("|", "\\|"), *[""] * 8]
    lost = ["", ""] if side == "float" else [_lost(row, floats.get(name), side) for name in ("float", "float, longer")]
    return [
        title,
        f"{row['seconds']:.1f}" if "seconds" in row else "",
        f"{row['zeros']:.1%}",
        _accuracy(row["right"], row["count"]),
        *lost,
        *(f"{row[name] / 1e3:,.0f} kB" if name in row else "" for name in ("raw", "compact", "file")),
        _accuracy(row["deployed_right"], row["deployed_count"]) if "deployed_right" in row else "",
    ]


def _lost(row: Row, base: Row | None, side: str) -> str:
    """Points of accuracy less than a float network has."""
    if base is None:
        return ""
    points = 100 * (base["right"] / base["count"] - row["right"] / row["count"])
    is_goal = side == OURS and row["what"] == "training-aware"
    return f"{_mark(points <= POINTS)} {points:.2f}" if is_goal else f"{points:.2f}"


def _accuracy(right: int, count: int) -> str:
    low, high = wilson(right, count)
    return f"{right / count:.2%} ({low:.2%} to {high:.2%})"


def wilson(right: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's interval of a share.

    >>> [round(end, 4) for end in wilson(8, 10)]
    [0.4902, 0.9433]
    """
    share, more = right / count, z * z / count
    middle, reach = share + more / 2, z * math.sqrt((share * (1 - share) + more / 4) / count)
    return (middle - reach) / (1 + more), (middle + reach) / (1 + more)


def _mark(met: bool) -> str:
    return "✓" if met else "✗"
