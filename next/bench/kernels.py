# SPDX-License-Identifier: Apache-2.0
"""Frozen linear layers next to float ones, and next to the kernels of the old version in a process of its own.

    python bench/kernels.py            sizes and tokens below, new and old taking turns
    python bench/kernels.py 4096       layers with that many inputs only

A figure is the best of its runs in microseconds: other work on the machine only makes one slower.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

SIZES = ((384, 384), (1536, 384), (4096, 1024), (4096, 4096))
TOKENS = (1, 16, 128, 512)
SECONDS = 0.3
OLD = Path(__file__).parents[2] / ".venv" / "bin" / "python"
KINDS = (
    "float32",
    "int8 dynamic",
    "int8 static",
    "int8 weights",
    "int4 weights",
    "int4 weights, bf16 model",
    "fp4 weights",
    "int8 conv",
)


def new_layer(shape, kind, dtype):
    """A frozen layer of this version."""
    import torch
    from torch import nn

    from fewbit.backends.torch.kernels import freeze
    from fewbit.backends.torch.layers import ActivationQuantizer, set_weight
    from fewbit.numerics.dtypes import Dtype
    from fewbit.numerics.granularity import BlockShape, QSchemeType
    from fewbit.numerics.grid import QuantizationGrid
    from fewbit.numerics.qtensor import QTensor
    from fewbit.numerics.quantize import qparams_from_min_max
    from fewbit.numerics.scales import ScaleType

    int8 = QuantizationGrid(Dtype.int8, QSchemeType.per_channel)
    grids = {
        "int4": QuantizationGrid(
            Dtype.uint4, QSchemeType.per_group, group_size=128, symmetric=False, scale_type=ScaleType.bfloat16
        ),
        "fp4": QuantizationGrid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu),
    }
    layer = (nn.Conv2d(64, 64, 3, padding=1) if kind == "int8 conv" else nn.Linear(shape[1], shape[0])).to(dtype)
    grid = grids.get(kind[: kind.index(" ")], int8)
    weight = layer.weight.detach().float()
    size = tuple(weight.shape)
    block = grid.weight_block(size)
    qparams = qparams_from_min_max(*BlockShape(size, block).extremes(weight), grid, block)
    set_weight(layer, "weight", QTensor.encode(weight, qparams))
    asymmetric = QuantizationGrid(Dtype.int8, symmetric=False)
    fixed = qparams_from_min_max(torch.tensor([-4.0]), torch.tensor([4.0]), asymmetric, (1,))
    if kind == "int8 dynamic":
        layer.input_quantizer = ActivationQuantizer(QuantizationGrid(Dtype.int8, QSchemeType.per_token))
    if kind in ("int8 static", "int8 conv"):
        layer.input_quantizer = ActivationQuantizer(asymmetric, -3 if kind == "int8 conv" else -1, fixed)
    freeze(layer)
    return layer.eval()


def old_layer(shape, kind, dtype):
    """The same of the old version."""
    import torch
    from fewbit.modules.activation import ActivationQuantizer
    from fewbit.modules.freezing import freeze
    from fewbit.modules.quantized import set_weight
    from fewbit.numerics.blocks import Blocks, QSchemeType
    from fewbit.numerics.qparams import from_range
    from torch import nn

    from fewbit.numerics.dtypes import Dtype
    from fewbit.numerics.grid import Grid
    from fewbit.numerics.qtensor import QTensor
    from fewbit.numerics.scales import ScaleType

    int8 = Grid(Dtype.int8, QSchemeType.per_channel)
    grids = {
        "int4": Grid(
            Dtype.uint4, QSchemeType.per_group, group_size=128, symmetric=False, scale_type=ScaleType.bfloat16
        ),
        "fp4": Grid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu),
    }
    layer = (nn.Conv2d(64, 64, 3, padding=1) if kind == "int8 conv" else nn.Linear(shape[1], shape[0])).to(dtype)
    grid = grids.get(kind[: kind.index(" ")], int8)
    weight = layer.weight.detach().float()
    size = tuple(weight.shape)
    block = grid.weight_block(size)
    blocks = Blocks(size, block)
    rows = blocks.rows(weight)
    qparams = from_range(rows.amin(1).reshape(blocks.counts), rows.amax(1).reshape(blocks.counts), grid, block)
    set_weight(layer, "weight", QTensor.encode(weight, qparams))
    fixed = from_range(torch.tensor(-4.0), torch.tensor(4.0), Grid(Dtype.int8, symmetric=False), ())
    if kind == "int8 dynamic":
        layer.input_quantizer = ActivationQuantizer(Grid(Dtype.int8, QSchemeType.per_token))
    if kind in ("int8 static", "int8 conv"):
        layer.input_quantizer = ActivationQuantizer(fixed.grid, -3 if kind == "int8 conv" else -1, fixed=fixed)
    freeze(layer)
    return layer.eval()


def serve(version: str) -> None:
    """Answer questions (outputs, inputs, tokens, kind) on standard input with microseconds."""
    import torch
    from torch import nn

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make = new_layer if version == "new" else old_layer
    layers: dict = {}
    for line in sys.stdin:
        outputs, inputs, tokens, kind = json.loads(line)
        dtype = torch.bfloat16 if "bf16" in kind else torch.float32
        key = (outputs, inputs, kind)
        if key not in layers:
            layers = {key: nn.Linear(inputs, outputs) if kind == "float32" else make((outputs, inputs), kind, dtype)}
        layer = layers[key]
        x = torch.randn(1, 64, 28, 28) if kind == "int8 conv" else torch.randn(tokens, inputs, dtype=dtype)
        best, end, runs = float("inf"), time.perf_counter() + SECONDS, 0
        while time.perf_counter() < end or runs < 3:
            start = time.thread_time()
            layer(x)
            best, runs = min(best, time.thread_time() - start), runs + 1
        print(json.dumps(best * 1e6), flush=True)


def ask(process: subprocess.Popen, *question: object) -> float:
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def start(python: str, version: str) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    command = [python, __file__, "--serve", version]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def main() -> None:
    only = {int(word) for word in sys.argv[1:]}
    processes = {"new": start(sys.executable, "new")}
    if OLD.exists():
        processes["old"] = start(str(OLD), "old")
    print(f"{'layer':<14}{'tokens':>7}  {'kind':<26}{'new us':>9}{'old us':>9}{'old/new':>9}{'float/new':>11}")
    for outputs, inputs in SIZES:
        for tokens in TOKENS if not only or inputs in only else ():
            base = 0.0
            for kind in KINDS:
                if kind == "int8 conv" and (tokens, outputs) != (TOKENS[0], SIZES[0][0]):
                    continue
                times = {name: ask(process, outputs, inputs, tokens, kind) for name, process in processes.items()}
                for name, process in processes.items():  # a second turn
                    times[name] = min(times[name], ask(process, outputs, inputs, tokens, kind))
                base = times["new"] if kind == "float32" else base
                old = times.get("old", float("nan"))
                row = f"{f'{inputs} > {outputs}':<14}{tokens:>7}  {kind:<26}{times['new']:>9.0f}{old:>9.0f}"
                print(f"{row}{old / times['new']:>9.2f}{base / times['new']:>11.2f}", flush=True)
    for process in processes.values():
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    serve(sys.argv[2]) if "--serve" in sys.argv else main()
