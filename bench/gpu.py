# SPDX-License-Identifier: Apache-2.0
"""Frozen layers on a GPU beside bfloat16 ones.

    PYTHONPATH=src:bench python bench/gpu.py          print the tables

Microseconds a call, weights not in the cache. Three ways to call: as it is (what Python and the launches cost is most
of a small layer's time), as a CUDA graph (what the GPU does), and compiled into a CUDA graph (what fusing adds).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from triton.testing import do_bench

from fewbit.kernels import _int4, dequantize, int8_weight_only
from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.freezing import freeze
from fewbit.modules.frozen import Terms, thaw_layer
from fewbit.modules.quantized import set_weight
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType
from results import table

SHAPES = ((4096, 4096), (14336, 4096))  # outputs, features
TOKENS = (1, 16, 128, 2048)
COMPILED = ("fp8 static", "fp8 dynamic", "int8 dynamic")
COMPILING = float(os.environ.get("COMPILE_SECONDS", "100"))  # what is not compiled by then is left out
DEVICE = torch.device("cuda")

FP8 = Grid(Dtype.fp8_e4m3)
FP8_CHANNEL = Grid(Dtype.fp8_e4m3, QSchemeType.per_channel)
FP8_TOKEN = Grid(Dtype.fp8_e4m3, QSchemeType.per_token)
INT8 = Grid(Dtype.int8, QSchemeType.per_channel)
INT8_TOKEN = Grid(Dtype.int8, QSchemeType.per_token)
INT4 = Grid(Dtype.int4, QSchemeType.per_group, group_size=128, scale_type=ScaleType.bfloat16)


def frozen(
    shape: tuple[int, int], grid: Grid, activation: ActivationQuantizer | None = None, member: Any = None
) -> Any:
    """A frozen bfloat16 layer, with the kernel that `freeze` chooses or one of our choice."""
    layer: Any = nn.Linear(shape[1], shape[0], device=DEVICE).bfloat16()
    blocks = Blocks(shape, grid.weight_block(shape))
    weight = layer.weight.detach().float()
    rows = blocks.rows(weight)
    low, high = rows.amin(1).reshape(blocks.counts), rows.amax(1).reshape(blocks.counts)
    set_weight(layer, "weight", QTensor.encode(weight, from_range(low, high, grid, blocks.block)))
    layer.input_quantizer = None if activation is None else activation.to(DEVICE)
    print(freeze(layer))
    if member is not None:
        thaw_layer(layer)
        layer.kernel = member.Kernel(layer, Terms(DEVICE))
    return layer.eval()


def sides(shape: tuple[int, int]) -> dict[str, Any]:
    """Every side's layer, by name."""
    fixed = from_range(torch.tensor(-5.0), torch.tensor(5.0), FP8, ())
    return {
        "bfloat16": nn.Linear(shape[1], shape[0], device=DEVICE).bfloat16(),
        "fp8 static": frozen(shape, FP8, ActivationQuantizer(FP8, fixed=fixed)),
        "fp8 dynamic": frozen(shape, FP8_CHANNEL, ActivationQuantizer(FP8_TOKEN)),
        "int8 dynamic": frozen(shape, INT8, ActivationQuantizer(INT8_TOKEN)),
        "int4 weights": frozen(shape, INT4),
        "int8 weights, bytes": frozen(shape, INT8, member=int8_weight_only),
        "int8 weights, dequantized": frozen(shape, INT8, member=dequantize),
    }


def microseconds(run: Callable[[], object]) -> float:
    """The median time of a call."""
    return float(do_bench(run, warmup=5, rep=25, return_mode="median")) * 1000


def as_graph(run: Callable[[], object]) -> Callable[[], object]:
    """A call recorded as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], object] = graph.replay
    return replay


def compile_and_time(layer: nn.Module, x: Tensor) -> float:
    """The time of a call of the compiled layer."""
    torch._dynamo.reset()
    fast = torch.compile(layer, fullgraph=True)
    try:
        fast(x)
    except Exception as error:
        print(f"not compiled: {type(error).__name__}: {str(error)[:300]}", flush=True)
        return float("nan")
    return microseconds(as_graph(partial(fast, x)))


def error(layer: Any, x: Tensor) -> float:
    """How far a frozen layer's output is from its own forward's, as a share of it."""
    right = layer.own_forward(x).float()
    return float((layer(x).float() - right).norm() / right.norm())


def int4_ways(kernel: Any, features: int) -> None:
    """From how many tokens on it is better to dequantize."""
    for tokens in (1, 8, 16, 32, 48, 64, 96, 128, 256):
        x = torch.randn(tokens, features, device=DEVICE).bfloat16()
        given = (x, kernel.weight, kernel.scales, kernel.group)
        few, many = (microseconds(as_graph(partial(way, *given))) for way in (_int4.int4_few, _int4._many_cuda))
        print(f"int4, {tokens} tokens: {few:.0f} by the kernel, {many:.0f} dequantized", flush=True)


def main() -> None:
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    ways: dict[str, list[list[str]]] = {"As it is": [], "As a CUDA graph": [], "Compiled, as a CUDA graph": []}
    began = time.perf_counter()
    for shape in SHAPES:
        layers = sides(shape)
        for tokens in TOKENS:
            x = torch.randn(tokens, shape[1], device=DEVICE).bfloat16()
            lines = [[f"{shape[1]} → {shape[0]}", str(tokens)] for _ in ways]
            first: list[float] = []
            for name, layer in layers.items():
                run = partial(layer, x)
                found = [microseconds(run), microseconds(as_graph(run))]
                if name in COMPILED and time.perf_counter() - began < COMPILING:
                    found.append(compile_and_time(layer, x))
                first = first or [*found, found[1]]
                for line, own, base in zip(lines, found, first):
                    line.append(f"{own:.0f} ({base / own:.2f}×)")
            for rows, line in zip(ways.values(), lines):
                rows.append(line)
            print(" | ".join(lines[1]), "||", " | ".join(lines[2][2:]), flush=True)
        x = torch.randn(128, shape[1], device=DEVICE).bfloat16()
        for name, layer in list(layers.items())[1:]:
            print(f"{name}: differs from its own forward by {error(layer, x):.1e}", flush=True)
        int4_ways(layers["int4 weights"].kernel, shape[1])
    for way, rows in ways.items():
        names = COMPILED if "Compiled" in way else tuple(layers)
        print(f"\n{way}:\n" + table(["layer", "tokens", *names], rows))


if __name__ == "__main__":
    main()
