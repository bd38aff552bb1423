# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model get adapters, found by what they are and not by the names of one architecture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fewbit.errors import UsageError, nearest
from fewbit.schemes.patterns import fault_of, matches


def find_targets(model: nn.Module, targets: Sequence[str] | None = None) -> list[str]:
    """The names of the layers that get adapters.

    Args:
        model: float or quantized.
        targets: names, ends of names (`q_proj`), globs or `re:` and an expression; every linear layer but those of the
            head if not said.

    Raises:
        UsageError: an entry that names no linear layer, all of them at once; no layers at all.

    >>> find_targets(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    ['0']
    """
    layers = linear_layers(model)
    if targets is None:
        found = [name for name in layers if name not in heads(model)]
    else:
        _refuse(targets, layers)
        found = [name for name in layers if any(_names(entry, name) for entry in targets)]
    if not found:
        raise UsageError(
            f"{type(model).__name__} has no linear layer beside its head",
            where="targets",
            expected="layers to put adapters on",
            try_=f"targets={list(layers)[:3]!r}" if layers else "method='full'",
        )
    return found


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every `nn.Linear` and every `Conv1D` of transformers, quantized or not, whose own forward is what runs."""
    return {name: module for name, module in model.named_modules() if _is_linear(module)}


def heads(model: nn.Module) -> set[str]:
    """The linear layers that give the answer: those outside of the body of a Hugging Face model, else the last one."""
    layers = linear_layers(model)
    outside = _outside_body(model, layers)
    if outside is None:
        return set(list(layers)[-1:])
    return outside


def task_heads(model: nn.Module) -> set[str]:
    """Heads that are of a task and no vocabulary: new and small as a rule, they learn beside the adapters."""
    layers, own = linear_layers(model), getattr(model, "get_output_embeddings", None)
    if own is not None:
        return {name for name in heads(model) if layers[name] is not own()}
    words = max((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=None)
    return {name for name in heads(model) if getattr(layers[name], "out_features", None) != words}


def _outside_body(model: Any, layers: dict[str, nn.Module]) -> set[str] | None:
    body = getattr(model, "base_model", None)
    if isinstance(body, nn.Module) and body is not model:
        inside = {id(module) for module in body.modules()}
        return {name for name, module in layers.items() if id(module) not in inside}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None:
        return None
    return {name for name, module in layers.items() if module is head}


def _is_linear(module: nn.Module) -> bool:
    # `nn.MultiheadAttention` reads the weight of its last layer and never calls it.
    if isinstance(module, nn.Linear):
        return not isinstance(module, NonDynamicallyQuantizableLinear)
    return any(cls.__name__ == "Conv1D" and cls.__module__.startswith("transformers.") for cls in type(module).__mro__)


def _names(entry: str, name: str) -> bool:
    return matches(entry, name) or name.endswith(f".{entry}")


def _refuse(targets: Sequence[str], layers: Iterable[str]) -> None:
    names = list(layers)
    ends = {name.rpartition(".")[2] for name in names}
    faults = [fault for entry in targets if (fault := fault_of(entry)) is not None]
    for entry in targets:
        if fault_of(entry) is None and not any(_names(entry, name) for name in names):
            known = names if "." in entry and not entry.startswith("re:") else ends
            faults.append(f"{entry!r} names no linear layer; {nearest(entry, known)[:300]}")
    if faults:
        raise UsageError("; ".join(faults), where="targets", expected="names of linear layers, or ends of them")
