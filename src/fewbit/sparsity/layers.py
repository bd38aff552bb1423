# SPDX-License-Identifier: Apache-2.0
"""Which weights of a model are pruned, whatever framework it comes from, and why the others are not.

By default these are the weights of linear layers and convolutions. The first layer of a network of convolutions and
the last layer of any have few weights that answer for everything; an embedding is looked up and not multiplied; a
depthwise convolution has one input to an output, and nothing to choose from. They stay dense unless they are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from fewbit.errors import UsageError, nearest
from fewbit.model.ops import ATTENTION, CONV, CONV_TRANSPOSE, EMBEDDING, EXPERTS, LINEAR
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.modules.huggingface import is_pretrained
from fewbit.schemes.patterns import covers, fault_of

_OPS = (LINEAR, CONV, CONV_TRANSPOSE, ATTENTION, EXPERTS)


@dataclass(frozen=True)
class Chosen:
    """What is pruned of a model.

    Args:
        points: the weights, each tensor once, in model order.
        dense: the layers that stay as they are, each with the reason.
    """

    points: tuple[Point, ...]
    dense: tuple[tuple[str, str], ...]


def choose_layers(view: ModelView, targets: Sequence[str] = (), ignore: Sequence[str] = ()) -> Chosen:
    """The weights that are pruned.

    Args:
        view: of the model.
        targets: names of layers or of what they lie in, globs, `re:` and an expression, or names of classes; the usual
            layers if empty.
        ignore: the same, of layers that stay dense whatever else is said.

    Raises:
        UsageError: entries that name no layer with a weight, all at once; nothing that is left to prune.

    >>> from fewbit.engine.run import view_of
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> [point.layer for point in choose_layers(view_of(model)).points]
    ['0']
    """
    weights = view.points(lambda point: point.role is Role.weight)
    _refuse(targets, ignore, weights, view)
    usual = _usual(view, weights)
    points: list[Point] = []
    dense: list[tuple[str, str]] = []
    seen: set[str] = set()
    for point in weights:
        if point.users[0] in seen:  # one tensor of several layers
            continue
        seen.add(point.users[0])
        if any(_names(entry, point, view) for entry in ignore):
            reason: str | None = "ignored, as was asked for"
        elif targets:
            reason = None if any(_names(entry, point, view) for entry in targets) else "not among the targets"
        else:
            reason = usual.get(point.name)
        if reason is None:
            points.append(point)
        else:
            dense.append((point.layer, reason))
    if not points:
        raise UsageError(
            "no layer is left to be pruned: " + "; ".join(f"{name}: {why}" for name, why in dense[:8]),
            where="targets",
            expected="at least one linear layer or convolution",
            try_=f"targets: [{weights[0].layer}]" if weights else None,
        )
    return Chosen(tuple(points), tuple(dense))


def _usual(view: ModelView, weights: Sequence[Point]) -> dict[str, str]:
    """Why weights stay dense if nobody names them."""
    tables = {user for point in weights if point.op is EMBEDDING for user in point.users}
    multiplied = [point for point in weights if point.op in _OPS]
    model = None if "place" in view.can else view.native()  # that of a graph is written out, which takes long
    ends = _ends(model, [point.layer for point in multiplied])
    found: dict[str, str] = {}
    for number, point in enumerate(weights):
        if point.op is EMBEDDING or point.name in tables:
            found[point.name] = "an embedding, which is looked up"
        elif point.op not in _OPS:
            found[point.name] = f"a {point.op.name} layer"
        elif point.layer in ends:
            found[point.name] = "the last layer" if point is multiplied[-1] else "the last layer of a head"
        elif number == 0 and point.op is CONV:
            found[point.name] = "the first layer of a network of convolutions"
        elif point.groups > 1 and point.shape[point.stack + 1] == 1:
            found[point.name] = "a depthwise convolution"
    return found


def _ends(model: Any, layers: Sequence[str]) -> set[str]:
    """The last layer, and that of each of the heads that a Hugging Face model has beside its body."""
    body = f"{model.base_model_prefix}." if isinstance(model, nn.Module) and is_pretrained(model) else "."
    outside = [layer for layer in layers if not layer.startswith(body)]
    heads = {layer.partition(".")[0]: layer for layer in outside} if len(outside) < len(layers) else {}
    return {*layers[-1:], *heads.values()}


def _names(entry: str, point: Point, view: ModelView) -> bool:
    return covers(entry, point.layer) or entry in view.types(point.layer)


def _refuse(targets: Sequence[str], ignore: Sequence[str], weights: Sequence[Point], view: ModelView) -> None:
    faults = []
    known = [point.layer for point in weights]
    known += sorted({kind for point in weights for kind in view.types(point.layer)})
    for what, entries in (("targets", targets), ("ignore", ignore)):
        for entry in entries:
            fault = fault_of(entry)
            if fault is None and not any(_names(entry, point, view) for point in weights):
                fault = f"{entry!r} names no layer with a weight; {nearest(entry, known)[:300]}"
            if fault is not None:
                faults.append(f"{what}: {fault}")
    if faults:
        raise UsageError("; ".join(faults), where="targets", expected="names, patterns or classes of layers")
