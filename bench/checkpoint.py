# SPDX-License-Identifier: Apache-2.0
"""A checkpoint compressed file to file, beside copying the same files, in one run.

    python bench/checkpoint.py [--gigabytes 8] [--mode int4_sym] [--algorithm rtn] [--repeats 3]

The checkpoint is of the shape of Mistral-7B (4096 wide, 14336 inside, 8 key heads, 32000 words) in bfloat16, with as
many layers as fill the gigabytes, in files of 2 GB; it stays in .bench/. Both sides are taken in turns, everything
written to disk before each: `copy` reads and writes the files in blocks of 16 MB, ours is `compress_checkpoint` in a
process of its own, whose peak memory is what the system says of it, imports included. Times are of the call alone, with
the libraries imported, best of all.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from results import table, write_section

PLACE = Path(__file__).parent.parent / ".bench"
GOAL_SPEED, GOAL_MEMORY = 0.6, 1.5
WIDTH, INSIDE, KEYS, WORDS = 4096, 14336, 1024, 32000
LAYER = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (KEYS, WIDTH),
    "self_attn.v_proj": (KEYS, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INSIDE, WIDTH),
    "mlp.up_proj": (INSIDE, WIDTH),
    "mlp.down_proj": (WIDTH, INSIDE),
}
ENDS = {"model.embed_tokens.weight": (WORDS, WIDTH), "lm_head.weight": (WORDS, WIDTH), "model.norm.weight": (WIDTH,)}


def checkpoint(gigabytes: float) -> Path:
    """The folder of a synthetic checkpoint of about this size; made where there is none."""
    import torch
    from transformers import LlamaConfig

    from fewbit.exporters._checkpoint_files import write_files
    from fewbit.modules.tensor_file import Entry

    layer = 2 * (sum(rows * columns for rows, columns in LAYER.values()) + 2 * WIDTH)
    ends = 2 * (2 * WORDS * WIDTH + WIDTH)
    layers = max(round((gigabytes * 1e9 - ends) / layer), 1)
    folder = PLACE / f"checkpoint-{layers}"
    if folder.exists():
        return folder
    shapes: dict[str, tuple[int, ...]] = dict(ENDS)
    for number in range(layers):
        prefix = f"model.layers.{number}."
        shapes |= {f"{prefix}{name}.weight": shape for name, shape in LAYER.items()}
        shapes |= {f"{prefix}{name}.weight": (WIDTH,) for name in ("input_layernorm", "post_attention_layernorm")}
    noise = torch.randn(1 << 24, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()

    def pieces(shape: tuple[int, ...], seed: int) -> Any:
        left = torch.Size(shape).numel()
        while left:
            piece = noise.roll(seed * 977)[:left]
            left, seed = left - len(piece), seed + 1
            yield piece

    entries = [
        Entry(name, torch.bfloat16, shape, lambda: noise, partial(pieces, shape, number))
        for number, (name, shape) in enumerate(shapes.items())
    ]
    making = PLACE / f"{folder.name}.unfinished"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=INSIDE, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=WORDS, dtype="bfloat16", architectures=["LlamaForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(making)
    write_files(making, entries, 2 << 30)
    making.rename(folder)
    return folder


def copy(source: Path, target: Path) -> float:
    """Seconds to copy a folder's files."""
    begin = time.perf_counter()
    target.mkdir()
    block = memoryview(bytearray(16 << 20))
    for path in sorted(source.iterdir()):
        with path.open("rb", buffering=0) as read, (target / path.name).open("wb", buffering=0) as write:
            while count := read.readinto(block):
                write.write(block[:count])
    return time.perf_counter() - begin


def compress(source: Path, target: Path, mode: str, algorithm: str) -> dict[str, float]:
    """What our own process tells of itself."""
    command = [sys.executable, __file__, "--child", str(source), str(target), "--mode", mode, "--algorithm", algorithm]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(source: str, target: str, mode: str, algorithm: str) -> None:
    from transformers import LlamaForCausalLM  # noqa: F401  importing it takes seconds, whatever the size

    from fewbit.engine.checkpoint import compress_checkpoint

    begin, before = time.perf_counter(), time.process_time()
    compress_checkpoint(source, target, mode=mode, algorithm=algorithm)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--mode", default="int4_sym")
    parser.add_argument("--algorithm", default="rtn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        child(*options.child, options.mode, options.algorithm)
        return
    source = checkpoint(options.gigabytes)
    size = sum(path.stat().st_size for path in source.iterdir())
    copies, ours = [], []
    for _ in range(options.repeats):
        for side in ("copy", "compressed"):
            target = PLACE / f"{source.name}-{side}"
            shutil.rmtree(target, ignore_errors=True)
            os.sync()
            if side == "copy":
                copies.append(copy(source, target))
            else:
                ours.append(compress(source, target, options.mode, options.algorithm))
                written = sum(path.stat().st_size for path in target.iterdir())
            shutil.rmtree(target)
    best, peak = min(ours, key=lambda each: each["seconds"]), max(each["peak"] for each in ours)
    copied = min(copies)
    rows = [
        ["copy", f"{copied:.1f} s", f"{size / copied / 1e9:.2f} GB/s", "", f"{size / 1e9:.2f} GB", ""],
        [
            f"{options.mode}, {options.algorithm}", f"{best['seconds']:.1f} s",
            f"{size / best['seconds'] / 1e9:.2f} GB/s", f"{copied / best['seconds']:.0%}", f"{written / 1e9:.2f} GB",
            f"{peak / 1e9:.2f} GB",
        ],
    ]  # fmt: skip
    text = table(["", "time", "of the float files", "speed of copying", "written", "peak memory"], rows)
    text += (
        f"\n\nA {size / 1e9:.2f} GB bfloat16 checkpoint, file to file; best of {options.repeats} in turns; "
        f"{best['cpu']:.1f} s of processor time. Goals: {GOAL_SPEED:.0%} of the speed of copying, {GOAL_MEMORY} GB."
    )
    print(text)
    write_section("A checkpoint file to file (`bench/checkpoint.py`)", text)


if __name__ == "__main__":
    main()
