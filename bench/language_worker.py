# SPDX-License-Identifier: Apache-2.0
"""One measurement of bench/language.py, in a process of its own: a question as JSON in, the answer as JSON out.

    python -P bench/language_worker.py '{"do": "quantize", "side": "hqq", "way": "hqq", "format": "w4g64", …}'

`-P` keeps this folder out of the path, and a side's file is loaded by its place: bench/kernels.py, data.py and
models.py must not hide packages of these names.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

BATCH = 8
TEXTS = ("wiki", "docs")


def quantize(
    side: str, way: str, format: str, folder: str, tokens: str, first: int, samples: int, judged: int, device: str,
    split: bool, out: str | None, bench: str = "language",
) -> dict[str, Any]:  # fmt: skip
    """Seconds of a side's whole job on a loaded model, beside a plain forward of the same samples.

    What loading the side's package takes is apart. With `out` the weights are left there, to be judged in the plain
    model; without it the side's own model is judged.
    """
    model, ids = load(folder, device), load_file(tokens)
    calibration = ids["calibration"][first : first + samples]
    answer: dict[str, Any] = {"plain": plain(model, calibration), "tokens": calibration.numel()}
    start = time.perf_counter()
    tool = side_file(side, bench)
    answer["import"] = time.perf_counter() - start
    tool_split = tool.split() if split and hasattr(tool, "split") else None
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    start = time.perf_counter()
    made = tool.quantize(model, calibration, format=format, way=way, folder=folder)
    synchronize(device)
    answer["seconds"] = time.perf_counter() - start
    answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if device == "cuda":
        answer["device_peak"] = torch.cuda.max_memory_allocated()
    if tool_split is not None:
        answer["split"] = tool_split
    if out is None:
        return answer | {text: perplexity(made.eval(), ids[text][:judged]) for text in TEXTS}
    found = {name: value.detach().float().cpu().contiguous() for name, value in tool.weights(made).items()}
    save_file(found, out)
    return answer


def judge(
    folder: str, tokens: str, judged: int, device: str, weights: str | None, group: int, levels: int | None
) -> dict[str, Any]:
    """Perplexities of the plain model, with some weights in place of its own; refused if they are not of the format."""
    model, ids = load(folder, device), load_file(tokens)
    answer: dict[str, Any] = {}
    if weights is not None:
        found = load_file(weights)
        layers = {f"{name}.weight" for name, layer in blocks_linears(model)}
        if missing := layers - set(found):
            raise SystemExit(f"{len(missing)} layers were not quantized, the first {min(missing)}")
        answer["levels"] = max(most_values(found[name], group) for name in layers)
        if levels is not None and answer["levels"] > levels:
            raise SystemExit(f"a group of {group} has {answer['levels']} values, the format has {levels}")
        if unknown := model.load_state_dict(found, strict=False).unexpected_keys:
            raise SystemExit(f"weights the model does not have: {unknown[:3]}")
    return answer | {text: perplexity(model, ids[text][:judged]) for text in TEXTS}


@torch.no_grad()
def perplexity(model: Any, ids: Tensor) -> float:
    """Over every next token of the samples."""
    total = 0.0
    device = next(model.parameters()).device
    for batch in ids.split(BATCH):
        batch = batch.to(device)
        logits = model(batch, use_cache=False).logits[:, :-1].float()
        total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
    return math.exp(total / (ids.numel() - len(ids)))


@torch.no_grad()
def plain(model: Any, ids: Tensor) -> float:
    """Seconds of a float32 forward of all samples, after a first one."""
    device = next(model.parameters()).device
    model(ids[:BATCH].to(device), use_cache=False)
    synchronize(device.type)
    start = time.perf_counter()
    for batch in ids.split(BATCH):
        model(batch.to(device), use_cache=False)
    synchronize(device.type)
    return time.perf_counter() - start


def most_values(weight: Tensor, group: int) -> int:
    """How many different values a group of a row has at most; zero counts once."""
    rows = (weight.reshape(-1, group) + 0.0).sort(1).values
    return int((rows[:, 1:] != rows[:, :-1]).sum(1).max()) + 1


def blocks_linears(model: Any) -> list[tuple[str, Any]]:
    """The linear layers of the blocks: what every side quantizes. Embedding and head stay in float."""
    return [(n, layer) for n, layer in model.named_modules() if isinstance(layer, torch.nn.Linear) and ".layers." in n]


def load(folder: str, device: str) -> Any:
    """The model in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.to(device).eval().requires_grad_(False)


def side_file(side: str, bench: str = "language") -> Any:
    """The side's own file for a benchmark, as a module."""
    path = Path(__file__).parent / "sides" / f"{bench}_{side}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def synchronize(device: str) -> None:
    """Wait for a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {"quantize": quantize, "judge": judge}

if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    question = json.loads(sys.argv[1])
    with answers:
        answers.write(json.dumps(ANSWERS[question.pop("do")](**question)))
