# SPDX-License-Identifier: Apache-2.0
"""A run that quantizes nothing is an error: a model that comes back unchanged looks like a success."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import torch
from torch import fx, nn

from fewbit.engine.plan import Plan
from fewbit.errors import UsageError
from fewbit.model.view import ModelView
from fewbit.record import Record

_CHANGED = frozenset(("quantized", "activation", "stored", "pruned"))
"""Lines of a record that say of a tensor that it was quantized or pruned."""
_DOUBTS = ("dtype-unscaled",)
"""Lines about the data that may explain why rounding loses too much."""
_REASONS, _NAMES = 3, 4


def require_something_planned(view: ModelView, plan: Plan) -> None:
    """Raise an error if a plan has nothing to quantize, before any expensive work.

    Raises:
        UsageError: no weight and no activation is planned; with the reasons, grouped.
    """
    if plan.weights or plan.activations:
        return
    model = None if "place" in view.can else view.signature()
    if isinstance(model, nn.Module) and (calls := _function_calls(model)):
        raise UsageError(
            "nothing to quantize: the model is a torch.fx.GraphModule (such as torch.export makes), "
            "and its layers are function calls, not nn.Module layers",
            where=_few(calls),
            expected="an nn.Module with layers such as nn.Linear or nn.Conv2d",
            try_="give the nn.Module that was exported; or torch.export.save the program and give the path of the .pt2 "
            "file, which works on the command line and in Python",
        )
    raise UsageError(
        "nothing to quantize: the configuration applies to no layer of the model",
        where=_grouped((kept.reason, kept.name) for kept in plan.kept) or "the model has no layers with weights",
        expected="at least one weight or activation to quantize",
        try_="ignore fewer layers, or another preset or mode; `fewbit plan MODEL` shows what becomes of each layer",
    )


def require_something_quantized(record: Record) -> None:
    """Raise an error if a run left every planned layer in float.

    Raises:
        UsageError: no line of the record says that a tensor was changed; with the reasons, grouped.
    """
    if any(line["what"] in _CHANGED for line in record.lines):
        return
    doubts = [line["reason"] for line in record.lines if line["what"] in _DOUBTS]
    left = ((line["reason"], line["where"] or "") for line in record.lines if line["what"] in ("float", "not-reached"))
    raise UsageError(
        "nothing was quantized: every layer stayed in float",
        where="; ".join([_grouped(left), *doubts]),
        expected="at least one quantized weight or activation",
        try_="calibration samples that reach the layers; more bits where rounding loses too much; for an ONNX model "
        "whose layers cost more in integers, compress_weights (fewbit compress), or price=inf (--price inf)",
    )


def _function_calls(model: nn.Module) -> list[str]:
    """The operators of a traced graph that read parameters themselves, each with the parameter."""
    if not isinstance(model, fx.GraphModule):
        return []
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return [
        f"{getattr(node.target, '__name__', node.target)}({argument.target})"
        for node in model.graph.nodes
        if node.op == "call_function"
        for argument in node.all_input_nodes
        if argument.op == "get_attr" and isinstance(parameters.get(str(argument.target)), torch.Tensor)
        and parameters[str(argument.target)].ndim > 1
    ]  # fmt: skip


def _grouped(reasons: Iterable[tuple[str, str]]) -> str:
    """Reasons, each once, with the number of layers and the first of their names."""
    groups: dict[str, list[str]] = {}
    for reason, name in reasons:
        groups.setdefault(reason, []).append(name)
    told = [f"{len(names)} × {reason} ({_few(names)})" for reason, names in islice(groups.items(), _REASONS)]
    return "; ".join(told) + (f"; {len(groups) - _REASONS} more reasons" if len(groups) > _REASONS else "")


def _few(names: list[str]) -> str:
    return ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
