# SPDX-License-Identifier: Apache-2.0
"""2:4 on a GPU: are the answers those of the dense kernels, and how much time does it take of theirs?

Run on an NVIDIA GPU from Ampere on: `python bench/semi_structured.py [out.json]`.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import torch
from torch import nn

from fewbit.numerics.sparsity import Pattern, kept
from fewbit.sparsity.semi_structured import to_semi_structured

SIZES = ((1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192), (4096, 14336), (14336, 4096))
ROWS = (16, 256, 2048, 8192)
LAYERS, ROUNDS, WARM = 4, 30, 5
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


def milliseconds(model: nn.Module, x: torch.Tensor) -> float:
    """Of one run."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    model(x)
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
    for _ in range(WARM):
        dense(x), sparse(x)
    times = [(milliseconds(dense, x), milliseconds(sparse, x)) for _ in range(ROUNDS)]
    ratios = sorted(b / a for a, b in times)
    return {
        "layer": [rows, columns], "rows": batch, "dtype": str(dtype).removeprefix("torch."), "error": error,
        "dense_ms": statistics.median(a for a, _ in times), "sparse_ms": statistics.median(b for _, b in times),
        "ratio": statistics.median(ratios), "ratio_quartiles": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]],
    }  # fmt: skip


def main() -> None:
    """Print a line for each size, and end with an error where answers are not those of the dense kernels."""
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "cusparselt", torch.backends.cusparselt.version())
    lines = []
    for dtype in (torch.float16, torch.bfloat16):
        for columns, rows in SIZES:
            for batch in ROWS:
                line = measured(columns, rows, batch, dtype)
                lines.append(line)
                low, high = line["ratio_quartiles"]
                print(
                    f"{line['dtype']:>8} [{rows}, {columns}] x {batch:>5}: dense {line['dense_ms']:8.3f} ms, "
                    f"2:4 {line['sparse_ms']:8.3f} ms, ratio {line['ratio']:.2f} ({low:.2f} to {high:.2f}), "
                    f"error {line['error']:.1e}"
                )
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
