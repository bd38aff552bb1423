# SPDX-License-Identifier: Apache-2.0
"""Readers of channels that went, made up for: what is left says what was there, as far as it can.

At each position the channels that went are about a linear function of those that stay, the one that the data fits
best: x_gone = A · x_left + b. So a reader's weights on what stays take over W_gone · A, and its bias what is missing on
average, padding as it is. With A = 0 it is the mean alone that moves into the bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fewbit.backends.graph.layers import Layer, layer_of
from fewbit.backends.graph.nodes import real
from fewbit.backends.graph.view import GraphView
from fewbit.backends.graph.weights import read_weight, write_weight
from fewbit.numerics.sparsity import is_pruned
from fewbit.sparsity.shrinking.graph_statistics import Seen
from fewbit.sparsity.shrinking.graph_walk import Walk

Array = NDArray[np.float64]
_DAMP = 1e-3  # of the mean variance


@dataclass
class Change:
    """What a reader takes over.

    Args:
        weight: its weight on what stays; none where it is left as it is.
        shift: what is added to its output.
        reason: why its weight is left as it is, where that is not what was asked for.
    """

    weight: Array | None
    shift: Array
    reason: str = ""


def changes(view: GraphView, walk: Walk, gone: set[int], seen: Mapping[str, Seen], *, refit: bool) -> dict[str, Change]:
    """What each reader of channels that went takes over, for the channels that it keeps itself.

    Args:
        view: of the graph before.
        walk: through it.
        gone: the classes that go.
        seen: what layers read.
        refit: change weights; otherwise biases alone.
    """
    out = np.array(sorted(gone), np.int64)
    named = {node.name: node for node in view.model.graph}
    made = {node.name: ~np.isin(walk.classes.roots(labels), out) for node, labels in walk.made}
    found = {}
    for read in walk.reads:
        left = ~np.isin(walk.classes.roots(read.labels), out)
        layer = layer_of(named[read.node.name])
        if left.all() or layer is None or layer.stack or layer.name not in seen:
            continue
        weight = read_weight(layer).double().numpy()
        reason = _unfit(layer, weight, seen[layer.name]) if refit else ""
        change = _change(layer, weight, left, seen[layer.name], refit and not reason)
        stays = made[layer.name]
        fitted = None if change.weight is None else change.weight[stays]
        found[layer.name] = Change(fitted, change.shift[stays], reason)
    return found


def apply(small: GraphView, found: Mapping[str, Change]) -> None:
    """Let the readers of a graph take over what they should."""
    named = {node.name: node for node in small.model.graph}
    for name, change in found.items():
        layer = layer_of(named[name])
        assert layer is not None
        if change.weight is not None:
            write_weight(small.model.graph, layer, torch.from_numpy(np.ascontiguousarray(change.weight)))
        small.shift(name, torch.from_numpy(change.shift))


def _unfit(layer: Layer, weight: Array, seen: Seen) -> str:
    """Why a weight is left as it is."""
    if is_pruned(weight.size - int(np.count_nonzero(weight)), weight.size):
        return "its weight is pruned, and keeps its zeros"
    if len(layer.weight_value.uses()) > 1:
        return "other layers read the same weight"
    return "it reads too many features" if seen.moments is None else ""


def _change(layer: Layer, weight: Array, left: NDArray[np.bool_], seen: Seen, fits: bool) -> Change:
    """The weight on what stays and the shift, group by group, for all outputs."""
    inner, each = weight.shape[1], weight.shape[0] // layer.groups
    taps = np.asarray(seen.taps).reshape(len(left), *weight.shape[2:]) / max(1, seen.windows)
    weights, shifts = [], []
    for group in range(layer.groups):
        part = weight[group * each : (group + 1) * each]
        place = np.arange(group * inner, (group + 1) * inner)
        kept, lost = place[left[place]], place[~left[place]]
        share = _fit(seen, kept, lost) if fits else np.zeros((len(lost), len(kept)))
        on_lost = part[:, lost - group * inner]
        weights.append(part[:, kept - group * inner] + np.einsum("ol...,lk->ok...", on_lost, share))
        missing = taps[lost] - np.einsum("lk,k...->l...", share, taps[kept])
        shifts.append(on_lost.reshape(len(part), -1) @ missing.reshape(-1))
    alpha = real(layer.node, "alpha", 1.0) if layer.node.op_type == "Gemm" else 1.0
    return Change(np.concatenate(weights) if fits else None, np.concatenate(shifts) * alpha)


def _fit(seen: Seen, kept: NDArray[np.int64], lost: NDArray[np.int64]) -> Array:
    """A in x_lost = A · x_kept + b."""
    covariance = seen.covariance()
    among = covariance[np.ix_(kept, kept)]
    # The fewer positions there were for so many channels, the less is believed of what they do together.
    share = _DAMP + min(1.0, len(kept) / seen.rows)
    within = among + np.eye(len(kept)) * (share * float(np.trace(among)) / max(1, len(kept)) + 1e-12)
    return np.asarray(np.linalg.solve(within, covariance[np.ix_(kept, lost)]).T, np.float64)
