# SPDX-License-Identifier: Apache-2.0
"""Everything that speaks against writing a model as compressed-tensors, gathered and told at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fewbit.errors import UsageError, nearest
from fewbit.exporters._base import Destined
from fewbit.exporters._compressed_experts import expert_faults
from fewbit.exporters._compressed_limits import format_faults, is_stack
from fewbit.exporters._compressed_scheme import scheme_for
from fewbit.exporters._compressed_vllm import apart, vllm_faults

RUNTIMES = ("transformers", "vllm")


def for_vllm(runtime: str) -> bool:
    """Whether vLLM's rules count for a runtime.

    Raises:
        UsageError: there is no such runtime.
    """
    if runtime not in RUNTIMES:
        raise UsageError(f"runtime={runtime!r}", where="runtime", expected=nearest(str(runtime), RUNTIMES))
    return runtime == "vllm"


def weight_faults(weights: Sequence[Destined], floats: Iterable[str], *, vllm: bool) -> list[tuple[str, str]]:
    """Every reason against writing weights as codes, with its layer.

    Args:
        weights: the quantized ones.
        floats: the layers that stay in float.
        vllm: whether vLLM's rules count, and not only the format's.
    """
    found = [(each.layer, reason) for each in weights for reason in format_faults(each)]
    wrong = {layer for layer, _ in found}
    fine = [each for each in weights if each.layer not in wrong]
    stacks = [each for each in fine if is_stack(each)]
    found += [(each.layer, reason) for each in stacks for reason in expert_faults(scheme_for(each), vllm=vllm)]
    if len({scheme_for(each) for each in stacks}) > 1:
        found += [(each.layer, "experts of several schemes: readers take one for all") for each in stacks]
    if not vllm:
        return found
    found += [(each.layer, reason) for each in fine for reason in vllm_faults(each)]
    linears = {each.layer: scheme_for(each) for each in fine if not is_stack(each)}
    for family in apart({**dict.fromkeys(floats), **linears}):
        found += [(name, f"another scheme than its neighbours: vLLM fuses {', '.join(family)}") for name in family]
    return found


def inner(weights: Sequence[Destined]) -> list[Destined]:
    """The weights of a plan that a checkpoint may have as codes: no tables, no head, no vectors.

    A head is known by its name, or by having as many rows as the largest table.
    """
    rows = max((weight.shape[0] for weight in weights if weight.embedding), default=-1)
    heads = [weight for weight in weights if weight.layer.rpartition(".")[2] == "lm_head" or weight.shape[0] == rows]
    return [each for each in weights if not each.embedding and each not in heads and len(each.shape) > 1]


def refuse(faults: Sequence[tuple[str, str]], runtime: str) -> None:
    """Raise all reasons at once, each with its layers.

    Raises:
        UsageError: there is a reason.
    """
    layers: dict[str, list[str]] = {}
    for layer, reason in faults:
        layers.setdefault(reason, []).append(layer)
    if layers:
        more = ", or runtime='transformers', which takes more" if runtime == "vllm" else ""
        raise UsageError(
            f"compressed-tensors for {runtime} cannot hold this model: "
            + "; ".join(f"{reason} ({few(names)})" for reason, names in layers.items()),
            where=few(list(dict.fromkeys(layer for layer, _ in faults))),
            expected="linear layers of schemes that the format and its runtime have",
            try_="another scheme for these layers, or leave them in float" + more,
        )


def few(names: Sequence[str]) -> str:
    """The first names of a list.

    >>> few(["a", "b", "c", "d", "e"])
    'a, b, c, d and 1 more'
    """
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
