# SPDX-License-Identifier: Apache-2.0
"""A training step of ours beside a bare PyTorch loop that does the same: the ratio of their times, side by side.

    python bench/tuning_step.py [--device cuda] [--precision bf16] [--size 135m | --model FOLDER] [--length 512]

Both train the same model on the same batches with AdamW, clipping and a cosine rate, in turns, a block of steps each;
the ratio is that of the medians over blocks. Evaluations and checkpoints are left out of both. A line of JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time

import torch
from torch.utils.data import DataLoader

import tuning_llama
from fewbit.data.findings import Progress
from fewbit.tuning.finetune import finetune


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="bf16" if torch.cuda.is_available() else "fp32")
    parser.add_argument("--size", choices=tuning_llama.SIZES, default="small", help="of a Llama of random weights")
    parser.add_argument("--model", help="a Hugging Face folder, instead")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20, help="of a block")
    parser.add_argument("--blocks", type=int, default=5)
    given = parser.parse_args()
    model = tuning_llama.make(given.size) if given.model is None else _opened(given.model)
    ids = torch.randint(5, model.config.vocab_size, (given.steps * given.batch_size, given.length))
    rows = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in ids]
    loader = DataLoader(rows, batch_size=given.batch_size)
    sides = {"bare": _bare, "fewbit": _ours}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(given.blocks + 1):
        for name, side in sides.items():
            taken = side(model, loader, given)
            if block:  # the first one warms up
                seconds[name].append(taken)
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    told = {"device": given.device, "model": given.model or given.size, "precision": given.precision}
    told |= {"batch_size": given.batch_size, "length": given.length, "seconds": seconds}
    print(json.dumps(told | {"median": middle, "ratio": middle["fewbit"] / middle["bare"]}), flush=True)


def _opened(folder: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model


def _bare(model: torch.nn.Module, loader: DataLoader, given: argparse.Namespace) -> float:
    """What one would write by hand; seconds a step, without the first ones."""
    model = copy.deepcopy(model).to(given.device).train()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader))
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(given.precision)
    scaler = torch.amp.GradScaler(given.device, enabled=given.precision == "fp16")
    watch = _Watch(given.device)
    for step, batch in enumerate(loader):
        batch = {name: tensor.to(given.device, non_blocking=True) for name, tensor in batch.items()}
        with torch.autocast(given.device, dtype, enabled=dtype is not None):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        rate.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 9:
            loss.item()
        if step in (_FIRST - 1, len(loader) - 1):
            watch.mark()
    return watch.elapsed() / (len(loader) - _FIRST)


def _ours(model: torch.nn.Module, loader: DataLoader, given: argparse.Namespace) -> float:
    """The same through `finetune`; progress is told after each block of numbers."""
    watch = _Marks(_Watch(given.device), len(loader))
    settings = {"epochs": 1, "lr": 1e-5, "warmup": 0, "log_every": _FIRST, "precision": given.precision}
    finetune(model, loader, task="causal_lm", device=given.device, progress=watch, **settings)
    return watch.watch.elapsed() / (len(loader) - _FIRST)


_FIRST = 10
"""Steps that are left out: kernels are chosen and memory is taken in them."""


class _Watch:
    def __init__(self, device: str):
        self._device, self._times = device, []

    def mark(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
        self._times.append(time.perf_counter())

    def elapsed(self) -> float:
        return self._times[-1] - self._times[0]


class _Marks(Progress):
    def __init__(self, watch: _Watch, total: int):
        self.watch, self._total = watch, total

    def advance(self, label: str, done: int, total: int | None) -> None:
        if done in (_FIRST, self._total):
            self.watch.mark()


if __name__ == "__main__":
    main()
