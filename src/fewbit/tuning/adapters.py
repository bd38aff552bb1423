# SPDX-License-Identifier: Apache-2.0
"""LoRA and DoRA on a model: peft's layers around ours, over codes and over zeros that hold.

An update B·A is added to a weight W (LoRA, arXiv 2106.09685); DoRA (arXiv 2402.09353) learns the lengths of the rows of
their sum as well. Where W is pruned the update is masked, W + m∘(B·A), in training as in merging: so what is learned is
what is merged, and no zero is filled.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbit.errors import UsageError, require
from fewbit.modules.coded import Quantized
from fewbit.modules.freezing import unfreeze
from fewbit.tuning.dressing import dress
from fewbit.tuning.frozen_base import FrozenBase
from fewbit.tuning.masks import pruned_zeros
from fewbit.tuning.pruned_codes import pruned_codes
from fewbit.tuning.targets import find_targets, linear_layers, task_heads

ADAPTER = "default"


def add_adapters(
    model: nn.Module,
    *,
    rank: int,
    alpha: float,
    dropout: float = 0.0,
    targets: Sequence[str] | None = None,
    dora: bool = False,
    zeros: bool = True,
) -> nn.Module:
    """Put adapters on linear layers, in place; they, and the head of a task, are all that learns.

    Args:
        model: float or quantized; codes stay as they are, kernels are taken off.
        rank: of the update.
        alpha: the update is multiplied by `alpha / rank`.
        dropout: of what the update reads.
        targets: see `find_targets`.
        dora: learn the lengths of the weight's rows apart from their directions.
        zeros: add nothing where a weight is pruned.

    Raises:
        UsageError: targets that are not there, a model that has adapters already.
        MissingLibrary: peft is not installed.
    """
    peft = require("peft", extra="tune", purpose="LoRA")
    if any(adapted(model)):
        raise UsageError(f"{type(model).__name__} has adapters already", try_="merge them first: merge_adapters(model)")
    chosen = find_targets(model, targets)
    layers, learning_heads = linear_layers(model), task_heads(model) - set(chosen)
    vars(model)["learned_before"] = {name for name, p in model.named_parameters() if p.requires_grad}
    for module in model.modules():
        if isinstance(module, Quantized):
            vars(module)["terms_before"] = module.frozen_terms
    unfreeze(model)
    for name in chosen:
        if isinstance(layers[name], Quantized):
            dress(layers[name], FrozenBase)
    # An expression, for peft takes a name as the end of names: `a.b` would be `x.a.b` too.
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=dropout, use_dora=dora, target_modules="|".join(map(re.escape, chosen))
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set")  # it finds the right one a layer itself
        model = peft.inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    for _, layer in adapted(model):
        for part in (layer.lora_A, layer.lora_B, layer.lora_magnitude_vector):
            part.float()  # learned in float32, whatever the base is kept in
        base = layer.get_base_layer()
        coded = isinstance(base, Quantized) and "weight" in base.coded
        pruned = pruned_codes(base, "weight") if coded else pruned_zeros(base.weight)
        if zeros and pruned is not None:
            hold_zeros(layer, pruned)
    for name in learning_heads:
        for parameter in layers[name].parameters():
            parameter.requires_grad_(parameter.is_floating_point())
    return model


def hold_zeros(layer: Any, pruned: Tensor) -> None:
    """Mask the update of one adapted layer, in place: nothing is added where the base is pruned."""
    layer.register_buffer("kept", ~_rows(layer, pruned), persistent=False)
    dress(layer, MaskedUpdate)


def adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every layer with an adapter, by name."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "get_base_layer"):
            yield name, module


def update_of(layer: Any) -> Tensor:
    """The update of an adapted layer, `[out, in]`, in float32 and masked."""
    factors = layer.lora_B[ADAPTER].weight.float() @ layer.lora_A[ADAPTER].weight.float()
    update: Tensor = factors * layer.scaling[ADAPTER]
    kept = getattr(layer, "kept", None)
    return update if kept is None else update * kept


def lengths_of(layer: Any, weight: Tensor, update: Tensor) -> Tensor | None:
    """What DoRA multiplies the rows of weight and update with; none for LoRA. Their own lengths count as constants."""
    if ADAPTER not in layer.lora_magnitude_vector:
        return None
    norm = (weight + update).norm(dim=1).detach()
    wanted: Tensor = layer.lora_magnitude_vector[ADAPTER].weight.float()
    return torch.where(norm > 0, wanted / norm, 1.0)  # a row of zeros has no direction


@torch.no_grad()
def merged_weight(layer: Any) -> Tensor:
    """The weight that alone does what base and adapter do, in float32 and in the base's own layout."""
    weight, update = _rows(layer, layer.get_base_layer().weight.float()), update_of(layer)
    lengths = lengths_of(layer, weight, update)
    found = weight + update
    return _rows(layer, found if lengths is None else found * lengths[:, None])


class MaskedUpdate:
    """Mixed in front of peft's layer: the update as a matrix, masked, where peft multiplies by its factors in turn."""

    kept: Tensor

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        layer: Any = self
        if layer.disable_adapters or layer.merged:
            plain: Tensor = super().forward(x, *args, **kwargs)  # type: ignore[misc]
            return plain
        base = layer.get_base_layer()
        answer: Tensor = base(x, *args, **kwargs)
        update = update_of(layer)
        added = functional.linear(layer.lora_dropout[ADAPTER](x), update.to(x.dtype))
        lengths = lengths_of(layer, _rows(layer, base.weight.float()), update)
        if lengths is None:
            return answer + added.to(answer.dtype)
        lengths = lengths.to(answer.dtype)
        bias = 0 if base.bias is None else base.bias
        return (answer - bias + added.to(answer.dtype)) * lengths + bias


def _rows(layer: Any, own: Tensor) -> Tensor:
    """Between a base's own layout and `[out, in]`; Conv1D has the other one."""
    return own.T if layer.fan_in_fan_out else own
