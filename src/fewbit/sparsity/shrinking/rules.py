# SPDX-License-Identifier: Apache-2.0
"""Which rule an operator of PyTorch follows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewbit.data.tree import flatten
from fewbit.sparsity.shrinking.flow import Flow, Matrix
from fewbit.sparsity.shrinking.rules_coupling import couple, mix
from fewbit.sparsity.shrinking.rules_layers import by_channel, convolution, group_norm, product, table
from fewbit.sparsity.shrinking.rules_moving import move, pad

Values = Sequence[Tensor | Matrix | None]

_MOVES = re.compile(
    r"view|_unsafe_view|reshape|permute|transpose|t|expand|unsqueeze|squeeze|slice|select|split|split_with_sizes|chunk|"
    r"unbind|cat|stack|flip|roll|repeat|narrow|pixel_(un)?shuffle|(native_)?channel_shuffle|unfold|diagonal|index|"
    r"index_select|gather|movedim|unsafe_split|unsafe_chunk"
)
_SAME = re.compile(r"clone|alias|detach|_to_copy|lift_fresh|(zeros|ones|full|empty|rand|randn)_like|triu|tril")
_POINTWISE = re.compile(r"masked_fill_?|copy_|_prelu_kernel")
_MIXES = re.compile(
    r"mean|sum|amax|amin|var|var_mean|std|prod|logsumexp|argmax|argmin|max|min|any|all|linalg_vector_norm|norm|"
    r"_softmax|_safe_softmax|_log_softmax|cumsum|sort|topk"
)
_POOLS = re.compile(r"_?(adaptive_)?(max|avg)_pool(\d)d(_with_indices)?|upsample_\w+?(\d)d|\w+_pad(\d)d")
_BATCH_NORMS = re.compile(r"(cudnn|miopen|native|_native)_batch_norm(_legit)?(_no_training)?|_batch_norm_no_update")


def values_of(flow: Flow, func: Any, args: Sequence[Any], kwargs: dict[str, Any], outs: Sequence[Tensor]) -> Values:
    """What the results of an operator carry.

    Args:
        flow: what its arguments carry; classes that it couples are joined there.
        func: the operator.
        args: what it was called with.
        kwargs: the same, by name.
        outs: its results.
    """
    tensors = [leaf for _, leaf in flatten([args, kwargs]) if isinstance(leaf, Tensor)]
    if not any(tensor in flow.values for tensor in tensors):
        return [None] * len(outs)
    flow.op = name = func._schema.name.partition("::")[2]
    given = {each.name: value for each, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    why = f"fewbit does not know how channels go through {name}"
    try:
        found = _by_kind(flow, func, name, given, tensors, outs, args, kwargs)
    except (RuntimeError, IndexError, KeyError, TypeError, ValueError) as error:  # a use that no rule foresaw
        found, why = None, f"{why} as it is used here: {str(error)[:200]}"
    if found is None:
        for tensor in tensors:
            if tensor in flow.values:
                flow.keep(flow.values[tensor], why)
        found = []
    return [*found, *[None] * (len(outs) - len(found))]


def _by_kind(
    flow: Flow,
    func: Any,
    name: str,
    given: dict[str, Any],
    tensors: Sequence[Tensor],
    outs: Sequence[Tensor],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> Values | None:
    first = tensors[0]
    value = flow.values.get(first)
    restrided = name == "as_strided_" and isinstance(value, Tensor) and value.shape == outs[0].shape
    if restrided or _SAME.fullmatch(name):
        return [value]
    if _MOVES.fullmatch(name):
        return move(flow, func, args, kwargs)
    if torch.Tag.pointwise in func.tags or _POINTWISE.fullmatch(name):
        return [couple(flow, tensors, outs[0].shape)]
    if _MIXES.fullmatch(name):
        axes = given.get("dim")
        axes = [] if axes is None else [axes] if isinstance(axes, int) else list(axes)
        if not axes and name in ("sort", "topk"):
            axes = [-1]
        return mix(flow, flow.labels(first), axes, outs)
    if pooled := _POOLS.fullmatch(name):
        spatial = int(next(digit for digit in pooled.groups() if digit and digit.isdigit()))
        return mix(flow, flow.labels(first), range(-spatial, 0), outs)
    if name == "constant_pad_nd":
        return [pad(flow, first, given["pad"], outs[0])]
    return _layer(flow, name, given, outs)


def _layer(flow: Flow, name: str, given: dict[str, Any], outs: Sequence[Tensor]) -> Values | None:
    if name in ("mm", "bmm"):
        return [product(flow, given["self"], given["mat2"])]
    if name in ("addmm", "baddbmm"):
        a, b = (given["mat1"], given["mat2"]) if name == "addmm" else (given["batch1"], given["batch2"])
        found = product(flow, a, b)
        added = flow.values.get(given["self"])
        if isinstance(added, Matrix) and len(added.axes) == 1:
            by_channel(flow, found, -1, [given["self"]])
            return [found]
        flow.note(outs[0], found)
        return [couple(flow, [outs[0], given["self"]], outs[0].shape)]
    if name == "convolution":
        found = convolution(
            flow, given["input"], given["weight"], transposed=given["transposed"], groups=given["groups"], out=outs[0]
        )
        by_channel(flow, found, 1 - given["weight"].ndim, [given["bias"]])
        return [found]
    if _BATCH_NORMS.fullmatch(name):
        labels = flow.labels(given["input"])
        by_channel(flow, labels, 1, [given.get(each) for each in ("weight", "bias", "running_mean", "running_var")])
        return [labels]
    if name == "native_layer_norm":
        axes = range(-len(given["normalized_shape"]), 0)
        labels = flow.labels(given["input"])
        flow.merge(labels, axes)
        parameters = [given[each] for each in ("weight", "bias") if given.get(each) is not None]
        flow.note(outs[0], labels)
        return [couple(flow, [outs[0], *parameters], outs[0].shape)]
    if name == "native_group_norm":
        return [group_norm(flow, given["input"], given["group"], [given["weight"], given["bias"]])]
    if name == "embedding":
        return [table(flow, given["weight"], outs[0])]
    return None
