# SPDX-License-Identifier: Apache-2.0
"""Block-wise GPTQ in several processes: seconds, and that the bytes are equal. The shape of SmolLM2-135M, on CPUs.

    OMP_NUM_THREADS=4 torchrun --standalone --nproc-per-node 4 bench/processes.py

Efficiency at n processes is the time of one process divided by n times this time, the threads per process being equal.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fewbit.algorithms.gptq import ALGORITHM
from fewbit.backends.torch.block_model import BlockModel, linear_layers
from fewbit.backends.torch.blockwise import BlockStream
from fewbit.backends.torch.processes import Processes
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.scales import ScaleType
from fewbit.progress import Run, make_progress
from fewbit.quantization.blockwise import quantize_blocks
from fewbit.quantization.journal import Journal

BLOCKS, SAMPLES, LENGTH, BATCH = (int(os.environ.get(name, value)) for name, value in (
    ("BLOCKS", 4), ("SAMPLES", 64), ("LENGTH", 512), ("BATCH", 4)
))  # fmt: skip


def main() -> None:
    processes = Processes.from_environment()
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3,
        num_hidden_layers=BLOCKS, vocab_size=4096,
    )  # fmt: skip
    model = BlockModel(LlamaForCausalLM(config).eval(), device=torch.device("cpu"), dtype=torch.float32)
    ids = torch.randint(0, 4096, (SAMPLES, LENGTH))
    grid = QuantizationGrid(
        Dtype.int4, QSchemeType.per_group, group_size=64, full_range=True, scale_type=ScaleType.bfloat16
    )
    names = [f"{n}.{layer}" for n, block in zip(model.block_names, model.blocks) for layer, _ in linear_layers(block)]
    folder = Path(tempfile.gettempdir()) / f"fewbit-processes-{processes.size}"
    processes.wait()
    start = time.perf_counter()
    stream = BlockStream(model, [{"input_ids": batch} for batch in ids.split(BATCH)], processes=processes)
    run = Run(make_progress(False))
    run.begin([("quantize", 1)])
    journal = Journal(folder / str(time.time_ns() if processes.rank == 0 else 0), {})
    with run.phase("quantize", len(stream), "block") as bar:
        quantize_blocks(stream, dict.fromkeys(names, grid), ALGORITHM, journal, bar)
    seconds = time.perf_counter() - start
    stream.close()
    if processes.rank == 0:
        content = b"".join(file.read_bytes() for file in sorted(journal.folder.glob("block-*.safetensors")))
        print(json.dumps({
            "processes": processes.size, "threads": torch.get_num_threads(), "seconds": round(seconds, 2),
            "sha256": hashlib.sha256(content).hexdigest()[:16],
        }))  # fmt: skip


if __name__ == "__main__":
    main()
