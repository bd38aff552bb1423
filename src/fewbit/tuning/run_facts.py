# SPDX-License-Identifier: Apache-2.0
"""What a run found out, as the record has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from fewbit.tuning.loop import Loop

_HARDLY = 0.01
"""Of the loss: a change below it is none."""


def facts_of(loop: Loop, model: nn.Module, learning: list[nn.Parameter]) -> dict[str, Any]:
    """What a run found out, as JSON values."""
    place, machine = loop.place, loop.machine
    steps = loop.log.of("step")
    return {
        "steps": place.step,
        "epochs": place.epoch + (1 if place.offset else 0),
        "stopped_early": place.done,
        "best_step": place.best_step,
        "before": loop.before,
        "after": loop.after,
        "loss": [[line["step"], line["loss"]] for line in steps],
        "evaluations": [{k: v for k, v in line.items() if k != "kind"} for line in loop.log.of("eval")],
        "sparsity": [[line["step"], line["sparsity"]] for line in loop.log.of("prune")],
        "seconds": place.seconds,
        "tokens": place.tokens,
        "tokens_per_second": place.tokens / place.seconds if place.seconds else None,
        "precision": machine.precision,
        "device": str(machine.device),
        "processes": machine.world,
        "sharding": _sharding(model, machine.world),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "learning": sum(parameter.numel() for parameter in learning),
    }


def nothing_gained(facts: Mapping[str, Any], rate: float) -> str | None:
    """What is to be said of a run after which the model is the one that came; nothing if it is a better one.

    Args:
        facts: of a run that keeps its best weights.
        rate: the highest learning rate.
    """
    losses = [line["loss"] for line in facts["evaluations"]]
    if facts["best_step"] != 0 or not facts["steps"] or not losses:
        return None
    still = all(abs(loss - losses[0]) <= _HARDLY * abs(losses[0]) for loss in losses)
    hardly, way = (", and the loss hardly moved", "higher") if still else ("", "lower")
    return f"no evaluation was better than that of the model as it came{hardly}: try a {way} lr than {rate:g}"


def _sharding(model: nn.Module, world: int) -> str | None:
    """How processes share a model, told by its parameters."""
    if world == 1:
        return None
    return "fsdp" if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()) else "ddp"
