# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: a process in its own environment that measures what it is asked, one question at a time.

    python bench/worker.py SIDE           SIDE is a file of bench/sides/, or `float` for PyTorch alone

A question is a line of JSON on standard input, `{"do": NAME, ...}`; the answer a line on standard output. Staying alive
between questions, sides take turns without paying for their imports each time.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

import models

STATIC = ("w8a8", "fp8")
SIDE = sys.argv[1]


def quantize(model: str, scheme: str, judge: bool = False, **options: Any) -> dict[str, Any]:
    """Seconds of quantize + freeze; with `judge`, also the error of the weights. The copy is made before the clock."""
    own = copy.deepcopy(base(model))
    batches = models.calibration(model) if scheme in STATIC else None
    gc.collect()
    start = time.perf_counter()
    frozen = side().quantize(own, scheme, batches, **options)
    answer: dict[str, Any] = {"seconds": time.perf_counter() - start}
    if judge:
        answer |= error(frozen, model)
    return answer


def error(frozen: nn.Module, model: str) -> dict[str, Any]:
    """The sum over layers of ‖W - Ŵ‖ / ‖W‖, and the same with each input feature weighed by its mean square.

    Every side must have quantized the same layers.
    """
    wanted, found = models.linears(base(model)), side().weights(frozen)
    if set(wanted) != set(found):
        raise SystemExit(f"{SIDE} quantized other layers: {sorted(set(wanted) ^ set(found))[:5]}")
    plain_error = weighed_error = 0.0
    for name, layer in wanted.items():
        weight, root = layer.weight, squares(model)[name].sqrt().float()
        difference = found[name].float() - weight
        plain_error += length(difference) / length(weight)
        weighed_error += length(difference.mul_(root)) / length(weight * root)
    return {"error": plain_error, "weighed": weighed_error, "layers": len(found)}


def length(values: torch.Tensor) -> float:
    """The Euclidean norm, summed in float64."""
    return torch.linalg.vector_norm(values, dtype=torch.float64).item()


@cache
def squares(model: str) -> dict[str, torch.Tensor]:
    """What each layer reads on inputs no calibration saw: the mean square of every feature, padding left out."""
    sums: dict[str, torch.Tensor] = {}
    network = base(model)
    for batch in models.judging(model):
        mask = batch["attention_mask"].bool()

        def hook(name: str, mask: torch.Tensor = mask) -> Callable[..., None]:
            def add(_: nn.Module, read: tuple[torch.Tensor, ...]) -> None:
                x = read[0][mask] if read[0].shape[:2] == mask.shape else read[0]
                sums[name] = sums.get(name, 0) + x.double().square().flatten(0, -2).sum(0)

            return add

        hooks = [layer.register_forward_pre_hook(hook(name)) for name, layer in models.linears(network).items()]
        with torch.no_grad():
            network(**batch)
        for one in hooks:
            one.remove()
    return sums


def plain(model: str) -> dict[str, Any]:
    """Seconds of running the float model over the calibration set: what any static calibration takes at least."""
    network, batches = copy.deepcopy(base(model)), models.calibration(model)

    def run() -> None:
        with torch.no_grad():
            for batch in batches:
                network(**batch)

    with torch.no_grad():
        network(**batches[0])
    return {"seconds": seconds(run, 1)}


def memory(model: str, scheme: str, **options: Any) -> dict[str, Any]:
    """The peak of resident memory above the loaded model, in bytes; asked of a process that did nothing else."""
    own = copy.deepcopy(base(model))
    sizes = [layer.weight.numel() * 4 for layer in models.linears(own).values()]
    bytes_before = models.held_bytes(own)
    base.cache_clear()
    tiny = nn.Sequential(nn.Linear(128, 128)).eval().requires_grad_(False)
    side().quantize(tiny, scheme, [torch.randn(4, 128)] if scheme in STATIC else None, **options)  # loads what is lazy
    gc.collect()
    before = reset_peak()
    frozen = side().quantize(own, scheme, models.calibration(model) if scheme in STATIC else None, **options)
    grown = status("VmHWM") - before
    new = max(0, models.held_bytes([own, frozen]) - bytes_before)  # beside a caller's model that is left alone
    del own
    gc.collect()
    kept, resident = models.held_bytes(frozen), reset_peak() - before  # the second one checks the first one
    facts = {"largest": max(sizes), "model": bytes_before, "frozen": kept, "new": new, "resident": resident}
    return {"grown": grown, **facts}


def infer(
    model: str,
    scheme: str | None,
    batch: int,
    length: int,
    dtype: str = "float32",
    compiled: bool = False,
    judge: bool = False,
) -> dict[str, Any]:
    """The median seconds of one forward pass of a frozen model; with `judge`, also its cosine with the float one."""
    network = ready(model, scheme, dtype, compiled)
    tokens = models.inputs(batch, length)

    def run() -> None:
        with torch.no_grad():
            network(**tokens)

    run()  # what is compiled or lazy
    answer = {"seconds": seconds(run, max(1, min(15, int(1 / seconds(run, 1)))))}
    if judge:
        with torch.no_grad():
            found, wanted = (m(**tokens).last_hidden_state.double().flatten() for m in (network, base(model)))
        answer["cosine"] = torch.nn.functional.cosine_similarity(found, wanted, dim=0).item()
    return answer


@cache
def ready(model: str, scheme: str | None, dtype: str, compiled: bool) -> Any:
    """A frozen model, ready to run."""
    network = copy.deepcopy(base(model)).to(getattr(torch, dtype))
    frozen = network if scheme is None else side().quantize(network, scheme, None)
    return torch.compile(frozen) if compiled else frozen


def forget() -> dict[str, Any]:
    """Drop every model."""
    ready.cache_clear()
    squares.cache_clear()
    base.cache_clear()
    gc.collect()
    return {}


@cache
def base(model: str) -> nn.Module:
    """The float model, mapped from its file: only to be copied."""
    made = {"minilm": models.minilm, "decoder": models.decoder, "blocks": lambda: models.decoder(layers=2).model}
    return made[model]()


def side() -> Any:
    """The side's own file."""
    return importlib.import_module(f"sides.{SIDE}")


def seconds(run: Callable[[], object], times: int) -> float:
    """The median time of a call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def reset_peak() -> int:
    """Make the kernel forget the peak so far; the resident bytes now."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return status("VmHWM")


def status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


ANSWERS = {"quantize": quantize, "plain": plain, "memory": memory, "infer": infer, "forget": forget}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    models.load_transformers()
    if SIDE != "float":
        side()
    for line in sys.stdin:
        question = json.loads(line)
        answer = ANSWERS[question.pop("do")](**question)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
