# SPDX-License-Identifier: Apache-2.0
"""scale_search beside plain rounding, side by side in one run: what is left of the error, and what it costs.

    python bench/scale_search.py [SIDE]      a [SIDE, SIDE] weight, 4096 by default

Weights are drawn from Student's t with five degrees of freedom, whose tails are like those of trained weights; with
data, the importance is lognormal. `error` is the weighted squared error over that of plain rounding. Times are of the
whole of `solve` (ranges, search, judging, codes, packing), both sides alternately, best of three, in nanoseconds a
weight; `memory` is the peak of what PyTorch allocated beside the weight, over the weight's own size.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from fewbit.algorithms import rtn, scale_search
from fewbit.algorithms._base import Problem
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType

CHANNEL, TENSOR = {"granularity": QSchemeType.per_channel}, {"granularity": QSchemeType.per_tensor}


def group(size: int) -> dict[str, object]:
    return {"granularity": QSchemeType.per_group, "group_size": size}


GRIDS = {
    "int2 g32": Grid(Dtype.int2, **group(32)),
    "int2 g32 full range": Grid(Dtype.int2, **group(32), full_range=True),
    "int3 g128": Grid(Dtype.int3, **group(128)),
    "int4 g32": Grid(Dtype.int4, **group(32)),
    "int4 g128": Grid(Dtype.int4, **group(128)),
    "int4 g128 full range": Grid(Dtype.int4, **group(128), full_range=True),
    "int4 channel": Grid(Dtype.int4, **CHANNEL),
    "uint4 g32 asymmetric": Grid(Dtype.uint4, **group(32), symmetric=False),
    "uint4 g128 asymmetric": Grid(Dtype.uint4, **group(128), symmetric=False),
    "int8 g128": Grid(Dtype.int8, **group(128)),
    "int8 channel": Grid(Dtype.int8, **CHANNEL),
    "int8 tensor": Grid(Dtype.int8, **TENSOR),
    "fp8 channel": Grid(Dtype.fp8_e4m3, **CHANNEL),
    "mxfp4": Grid(Dtype.fp4, **group(32), scale_type=ScaleType.float8_e8m0fnu),
    "nvfp4": Grid(Dtype.fp4, **group(16), scale_type=ScaleType.float8_e4m3fn),
    "nf4 g64": Grid(Dtype.nf4, **group(64)),
}


def heavy(side: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    squares = torch.zeros(side, side)
    for _ in range(5):
        squares += torch.randn(side, side, generator=draw).square_()
    return torch.randn(side, side, generator=draw).div_(squares.div_(5).sqrt_())


def best(runs: dict[str, Callable[[], object]], repeats: int = 3) -> dict[str, float]:
    """The shortest wall time of each, taken in turns."""
    times = {name: float("inf") for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name] = min(times[name], time.perf_counter() - start)
    return times


def peak(run: Callable[[], object]) -> int:
    """The most bytes that one call had allocated at the same time."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    now = most = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def main(side: int) -> None:
    weight = heavy(side)
    h = torch.exp(torch.randn(1, side, generator=torch.Generator().manual_seed(1)))
    print(f"[{side}, {side}], {torch.get_num_threads()} threads, ns a weight")
    print("| grid | error | error, with data | rtn | scale_search | with data | memory |")
    print("|---|---|---|---|---|---|---|")
    for name, grid in GRIDS.items():
        block = grid.weight_block((side, side))
        plain, data = Problem(weight, grid, block), Problem(weight, grid, block, importance=h)
        facts, with_data = scale_search.solve(plain).facts, scale_search.solve(data).facts
        times = best(
            {
                "rtn": lambda problem=plain: rtn.solve(problem),
                "search": lambda problem=plain: scale_search.solve(problem),
                "data": lambda problem=data: scale_search.solve(problem),
            }
        )
        memory = peak(lambda problem=data: scale_search.solve(problem)) / (4 * weight.numel())
        nanoseconds = [f"{times[key] / weight.numel() * 1e9:.1f}" for key in ("rtn", "search", "data")]
        ratios = [f"{each['error'] / each['error_rtn']:.3f}" for each in (facts, with_data)]
        print("|", " | ".join([name, *ratios, *nanoseconds, f"{memory:.2f}×"]), "|", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4096)
