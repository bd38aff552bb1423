# SPDX-License-Identifier: Apache-2.0
"""2:4 on a GPU: are the answers those of the dense kernels, and how much time does it take of theirs?

Run on an NVIDIA GPU from Ampere on: `python bench/semi_structured.py [out.json]`; `--write out.json` writes what was
measured elsewhere into bench/RESULTS.md. Times are those of four layers in a
row: called one by one from Python, and replayed as a CUDA graph, where only the kernels are left.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fewbit.numerics.sparsity import Pattern, kept
from fewbit.sparsity.semi_structured import to_semi_structured
from results import table, write_section

SIZES = ((1024, 1024), (4096, 4096), (8192, 8192), (4096, 14336))
ROWS = (16, 256, 2048, 8192)
LAYERS, ROUNDS, WARM = 4, 20, 3
TOLERANCE = 5e-3
"""Of the largest answer: sums in another order, rounded to half precision layer by layer."""


def stack(columns: int, rows: int, dtype: torch.dtype) -> nn.Sequential:
    """Linear layers of one size there and back, pruned 2:4 by magnitude."""
    torch.manual_seed(0)
    sides = [(columns, rows) if number % 2 == 0 else (rows, columns) for number in range(LAYERS)]
    layers = [nn.Linear(*side, bias=False) for side in sides]
    for layer in layers:
        weight = layer.weight.data
        layer.weight.data = torch.where(kept(weight.abs(), Pattern.read("2:4")), weight, 0)
    return nn.Sequential(*layers).to("cuda", dtype).eval()


def replayed(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    """The kernels of one run, without Python between them."""
    graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(aside):  # what is set up once is set up outside of the graph
        model(x)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


def milliseconds(run: Callable[[], object]) -> float:
    """Of one run."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


@torch.inference_mode()
def measured(columns: int, rows: int, batch: int, dtype: torch.dtype) -> dict[str, Any]:
    """Dense and 2:4 in turns."""
    dense = stack(columns, rows, dtype)
    sparse = to_semi_structured(dense).model
    x = torch.randn(batch, columns, device="cuda", dtype=dtype)
    wanted, found = dense(x).float(), sparse(x).float()
    error = float((found - wanted).abs().max() / wanted.abs().max())
    found = {"layer": [rows, columns], "rows": batch, "dtype": str(dtype).removeprefix("torch."), "error": error}
    called = compared(lambda: dense(x), lambda: sparse(x))
    try:
        return found | {"called": called, "graph": compared(replayed(dense, x), replayed(sparse, x))}
    except RuntimeError as error:  # a kernel that cannot be captured
        return found | {"called": called, "no_graph": str(error).splitlines()[0]}


def compared(dense: Callable[[], object], sparse: Callable[[], object]) -> dict[str, Any]:
    """Milliseconds of both, in turns, and their ratio."""
    for _ in range(WARM):
        dense(), sparse()
    times = [(milliseconds(dense), milliseconds(sparse)) for _ in range(ROUNDS)]
    ratios = sorted(b / a for a, b in times)
    return {
        "dense_ms": statistics.median(a for a, _ in times), "sparse_ms": statistics.median(b for _, b in times),
        "ratio": statistics.median(ratios), "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
    }  # fmt: skip


def told(name: str, found: dict[str, Any]) -> str:
    """Some words."""
    low, high = found["ratio_quartiles"]
    times = f"dense {found['dense_ms']:.3f} ms, 2:4 {found['sparse_ms']:.3f} ms"
    return f"{name} {times}, ratio {found['ratio']:.2f} ({low:.2f} to {high:.2f})"


def text(found: dict[str, Any]) -> str:
    """The section of RESULTS.md."""
    head = ["layers", "rows", "type", "dense ms", "2:4 ms", "ratio", "as a graph: dense ms", "2:4 ms", "ratio", "error"]
    lines = [
        [
            f"{line['layer'][0]} x {line['layer'][1]}",
            f"{line['rows']:,}",
            line["dtype"],
            *_figures(line.get("called")),
            *_figures(line.get("graph")),
            f"{line['error']:.1e}",
        ]
        for line in found["lines"]
    ]
    about = "Four layers in a row: called one by one from Python, and replayed as a CUDA graph: kernels only."
    return f"{found['device']}, torch {found['torch']}. {about} A ratio below 1 is faster.\n\n{table(head, lines)}"


def _figures(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return [""] * 3
    return [f"{found['dense_ms']:.3f}", f"{found['sparse_ms']:.3f}", f"{found['ratio']:.2f}"]


def main() -> None:
    """Print a line for each size, and end with an error where answers are not those of the dense kernels."""
    if sys.argv[1:2] == ["--write"]:
        with open(sys.argv[2], encoding="utf-8") as file:
            write_section("2:4 on a GPU (`bench/semi_structured.py`)", text(json.load(file)))
        return
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cusparselt", torch.backends.cusparselt.version())
    lines = []
    for dtype in (torch.float16, torch.bfloat16):
        for columns, rows in SIZES:
            for batch in ROWS:
                line = measured(columns, rows, batch, dtype)
                lines.append(line)
                both = "; ".join(told(name, line[name]) for name in ("called", "graph") if name in line)
                rest = line.get("no_graph", "")
                print(f"{line['dtype']:>8} [{rows}, {columns}] x {batch:>5}: {both} error {line['error']:.1e} {rest}")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(
                {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "lines": lines}, file, indent=1
            )
    wrong = [line for line in lines if not line["error"] < TOLERANCE * (1 if line["dtype"] == "float16" else 8)]
    if wrong:
        raise SystemExit(f"{len(wrong)} answers are not those of the dense kernels: {wrong[:3]}")


if __name__ == "__main__":
    main()
