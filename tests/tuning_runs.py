# SPDX-License-Identifier: Apache-2.0
"""Small runs for the tests of training: a tiny language model and texts of different lengths, made of a seed."""

from __future__ import annotations

import sys
from typing import Any

import torch

from fewbit.data.dataset import Dataset
from fewbit.data.findings import Progress


def language_model(**changes: Any) -> Any:
    """A tiny Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    fields = {**sizes, "num_key_value_heads": 2, "vocab_size": 40, "max_position_embeddings": 32, **changes}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**fields)).eval()


def texts(count: int = 24, seed: int = 0) -> Dataset:
    """Samples of 3 to 10 tokens, each one more than the one before; some of the first are not learned."""
    draw = torch.Generator().manual_seed(seed)
    samples = []
    for _ in range(count):
        length = int(torch.randint(3, 11, (), generator=draw))
        first = int(torch.randint(0, 36, (), generator=draw))
        ids = [4 + (first + place) % 36 for place in range(length)]
        prompt = int(torch.randint(0, length - 1, (), generator=draw))
        samples.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return Dataset(samples, batched=False)


class KillAt(Progress):
    """Ends a run when a step is reached: with an exception, or as `kill -9` does."""

    def __init__(self, step: int, *, really: bool = False):
        self._step, self._really = step, really

    def advance(self, label: str, done: int, total: int | None) -> None:
        if done >= self._step:
            if self._really:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt


SETTINGS: dict[str, Any] = {
    "task": "causal_lm",
    "max_steps": 9,
    "batch_size": 3,
    "accumulation": 2,
    "lr": 1e-2,
    "save_every": 2,
    "eval_every": 3,
    "log_every": 1,
    "device": "cpu",
    "workers": 0,
    "tensorboard": False,
}


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    """Whether two models have the same weights, bit by bit."""
    mine, other = first.state_dict(), second.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


if __name__ == "__main__":  # a run that kills itself
    from fewbit.tuning.finetune import finetune

    output, step = sys.argv[1], int(sys.argv[2])
    model = language_model(attention_dropout=0.1)
    finetune(model, texts(), validation=texts(6, 1), output=output, progress=KillAt(step, really=True), **SETTINGS)
