# SPDX-License-Identifier: Apache-2.0
"""Seconds, memory and GPU-busy share of block-wise GPTQ on the shape of Llama-3.1-8B, random weights.

    python bench/blocks.py --blocks 4 --samples 128 --length 2048 [--batch 8] [--held-out 8] [--no-correct]

Each phase is printed with its floor: the floating-point operations it cannot avoid, at the peak rate of an H200.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from contextlib import contextmanager

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fewbit.algorithms._base import InputMoments, LayerProblem
from fewbit.algorithms.gptq import ALGORITHM
from fewbit.backends.torch.block_model import BlockModel
from fewbit.backends.torch.blockwise import BlockStream
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.scales import ScaleType

PEAK = 790e12
"""Dense bfloat16 operations per second that an H200 reaches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("blocks", 4), ("samples", 128), ("length", 2048), ("batch", 8), ("held-out", 8), ("bits", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--no-correct", action="store_true")
    parser.add_argument("--small", action="store_true", help="the shape of SmolLM2-135M")
    options = parser.parse_args()
    device = torch.device("cuda")
    torch.manual_seed(0)
    shape = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    if options.small:
        shape = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    config = LlamaConfig(**shape, num_hidden_layers=options.blocks, vocab_size=8192, rope_theta=500000.0)
    with torch.device("cpu"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    ids = torch.randint(0, 8192, (options.samples + options.held_out, options.length))
    batches = [{"input_ids": batch} for batch in ids[: options.samples].split(options.batch)]
    held_out = [{"input_ids": batch} for batch in ids[options.samples :].split(options.batch)]
    grid = QuantizationGrid(
        Dtype[f"int{options.bits}"], QSchemeType.per_group, group_size=64 if options.small else 128, full_range=True,
        scale_type=ScaleType.bfloat16,
    )  # fmt: skip
    seconds: Counter[str] = Counter()

    @contextmanager
    def phase(name: str):
        torch.cuda.synchronize()
        start = time.perf_counter()
        yield
        torch.cuda.synchronize()
        seconds[name] += time.perf_counter() - start

    blocks = BlockModel(model, device=device, dtype=torch.bfloat16)
    with phase("first inputs"):
        stream = BlockStream(blocks, batches, held_out, correct=not options.no_correct)
    _run_block(stream, 0, grid, phase)  # compiles kernels
    start_up = dict(seconds)
    seconds.clear()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for index in range(1, len(stream)):
        _run_block(stream, index, grid, phase)
    torch.cuda.synchronize()
    count = len(stream) - 1
    total = (time.perf_counter() - begin) / count
    peak = torch.cuda.max_memory_allocated() / 1e9
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        block = stream.open(len(stream) - 1)
        for group in block.groups():
            _solve_group(block, group, grid)
        block.advance()
        torch.cuda.synchronize()
        wall = time.perf_counter() - begin
    longest = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6
    stream.close()
    tokens = options.samples * options.length
    hidden, wide = shape["hidden_size"], shape["intermediate_size"]
    weights = sum(p.numel() for p in model.model.layers[0].parameters())
    print(json.dumps({
        "seconds per block": round(total, 2), "peak GB": round(peak, 2),
        "phases": {name: round(value / count, 3) for name, value in seconds.items()},
        "floor": {
            "Hessians": round(2 * tokens * (3 * hidden**2 + wide**2) / PEAK, 3),
            "one forward": round(2 * tokens * weights / PEAK, 3),
        },
        "GPU busy": round(busy / wall, 3), "wall of the profiled block": round(wall, 2), "first block": start_up,
        "kernels": {event.key[:60]: round(event.self_device_time_total / 1e6, 3) for event in longest[:14]},
        "streams": stream.quantized.place,
    }, indent=1))  # fmt: skip


def _run_block(stream, index, grid, phase) -> None:
    with phase("load"):
        block = stream.open(index)
    with phase("groups"):
        groups = block.groups()
    for group in groups:
        with phase("forward + moments"):
            moments = block.moments(group)
        with phase("solve"):
            _solve(block, group, moments, grid)
    with phase("forward out"):
        block.advance()


def _solve_group(block, group, grid) -> None:
    _solve(block, group, block.moments(group), grid)


def _solve(block, group, moments, grid) -> None:
    shared: dict = {}
    for layer in group.layers:
        statistics = InputMoments(
            moments.tokens, hessian=moments.hessian, input_gap=moments.input_gap, output_gap=moments.output_gap
        )
        problem = LayerProblem(layer, block.weight(layer), grid, statistics, shared)
        block.set_weight(layer, ALGORITHM.quantize(problem).dequantize())


if __name__ == "__main__":
    main()
