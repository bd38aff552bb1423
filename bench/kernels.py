# SPDX-License-Identifier: Apache-2.0
"""Frozen linear layers beside float ones and torchao's, taking turns in one process.

    python bench/kernels.py           the table, then its part of bench/RESULTS.md is written
    python bench/kernels.py 4096      layers with that many features only, printed only

The process runs in torchao's environment (`bench/peers.py` makes it) if that is there, so that all sides meet the same
machine at the same moment. A figure is the best of its turns: other work on the machine only ever makes one slower.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from fewbit.modules.activation import ActivationQuantizer
from fewbit.modules.freezing import freeze
from fewbit.modules.quantized import set_weight
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.qparams import from_range
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType
from results import table, write_section

TORCHAO = Path(__file__).parents[1] / ".bench" / "envs" / "torchao"
SIZES = ((384, 384), (1536, 384), (4096, 1024), (4096, 4096))  # outputs, features
TOKENS = (1, 16, 128, 512)
SECONDS = 0.6  # for all the turns of one side
INT8 = Grid(Dtype.int8, QSchemeType.per_channel)
INT4 = Grid(Dtype.uint4, QSchemeType.per_group, group_size=128, symmetric=False, scale_type=ScaleType.bfloat16)
FP4 = Grid(Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu)
TOKEN = Grid(Dtype.int8, QSchemeType.per_token)
FIXED = from_range(torch.tensor(-4.0), torch.tensor(4.0), Grid(Dtype.int8, symmetric=False), ())

Run = Callable[[], Tensor]


def frozen(
    shape: tuple[int, int],
    grid: Grid,
    activation: ActivationQuantizer | None = None,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A frozen layer."""
    layer = nn.Linear(shape[1], shape[0]).to(dtype)
    block = grid.weight_block(shape)
    blocks = Blocks(shape, block)
    rows = blocks.rows(layer.weight.detach().float())
    qparams = from_range(rows.amin(1).reshape(blocks.counts), rows.amax(1).reshape(blocks.counts), grid, block)
    set_weight(layer, "weight", QTensor.encode(layer.weight.detach().float(), qparams))
    layer.input_quantizer = activation
    freeze(layer)
    return layer.eval()


def sides(shape: tuple[int, int], tokens: int) -> dict[str, Run]:
    """Every side's call, by name."""
    x = torch.randn(tokens, shape[1])
    half = x.bfloat16()
    models: dict[str, tuple[nn.Module, Tensor]] = {
        "float32": (nn.Linear(shape[1], shape[0]), x),
        "bfloat16": (nn.Linear(shape[1], shape[0]).bfloat16(), half),
        "int8 dynamic": (frozen(shape, INT8, ActivationQuantizer(TOKEN)), x),
        "int8 static": (frozen(shape, INT8, ActivationQuantizer(FIXED.grid, fixed=FIXED)), x),
        "int8 weights": (frozen(shape, INT8), x),
        "int4 weights": (frozen(shape, INT4), x),
        "int4 weights, bf16 model": (frozen(shape, INT4, dtype=torch.bfloat16), half),
        "fp4 weights": (frozen(shape, FP4), x),
    }
    for name, (config, dtype) in theirs().items():
        from torchao.quantization import quantize_

        model = nn.Sequential(nn.Linear(shape[1], shape[0])).to(dtype)
        quantize_(model, config)
        models[name] = (model, x if dtype is torch.float32 else half)
    return {name: (lambda model=model, given=given: model(given)) for name, (model, given) in models.items()}


def theirs() -> dict[str, tuple[object, torch.dtype]]:
    """torchao's configurations, if it is here."""
    try:
        from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig
    except ImportError:
        return {}
    return {
        "torchao int8 dynamic": (Int8DynamicActivationInt8WeightConfig(), torch.float32),
        "torchao int8 weights": (Int8WeightOnlyConfig(), torch.float32),
        "torchao int4 weights, bf16 model": (PrototypeInt4WeightOnlyConfig(group_size=128), torch.bfloat16),
    }


def measured(runs: dict[str, Run]) -> dict[str, float]:
    """The best time of each side in microseconds, in turns."""
    # One thread's own clock stands still while other work has the processor.
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + SECONDS * len(runs)
    turns = 0
    while time.perf_counter() < end or turns < 3:
        turns += 1
        for name, run in runs.items():
            run()  # what the side before left in the cache is not this side's doing
            start = clock()
            run()
            best[name] = min(best[name], (clock() - start) * 1e6)
    return best


def compared(found: dict[str, float]) -> tuple[list[str], list[str]]:
    """The cells of a line: ours beside float32, and torchao's beside ours."""
    ours = [f"{found['float32']:.0f}"]
    beside = []
    for name, own in found.items():
        if name.startswith("torchao"):
            mine = found[name.removeprefix("torchao ")]
            beside.append(f"{own:.0f} / {mine:.0f} = {own / mine:.1f}×")
        elif name != "float32":
            ours.append(f"{own:.0f} ({found['float32'] / own:.1f}×)")
    return ours, beside


def main() -> None:
    if (TORCHAO / "ready").exists() and Path(sys.prefix) != TORCHAO:
        python = str(TORCHAO / "bin" / "python")
        source = str(Path(__file__).parents[1] / "src")
        os.execve(python, [python, *sys.argv], {**os.environ, "PYTHONPATH": source})
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    only = {int(argument) for argument in sys.argv[1:]}
    ours: list[list[str]] = []
    beside: list[list[str]] = []
    for shape in SIZES:
        for tokens in TOKENS if not only or shape[1] in only else ():
            found = measured(sides(shape, tokens))
            place = [f"{shape[1]} → {shape[0]}", str(tokens)]
            for lines, cells in zip((ours, beside), compared(found)):
                lines.append([*place, *cells])
            print(" | ".join(ours[-1]), "||", " | ".join(beside[-1][2:]), flush=True)
    mine = [name for name in found if not name.startswith("torchao")]
    peers = [name for name in found if name.startswith("torchao")]
    text = (
        f"Microseconds a call, {torch.get_num_threads()} threads; in brackets how many times faster than float32.\n\n"
    )
    text += table(["layer", "tokens", *mine], ours)
    if peers:
        text += "\n\nThe same beside torchao, theirs / ours:\n\n" + table(["layer", "tokens", *peers], beside)
    print("\n" + text)
    if not only:
        write_section("Frozen layers (bench/kernels.py)", text)


if __name__ == "__main__":
    main()
