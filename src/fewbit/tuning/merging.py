# SPDX-License-Identifier: Apache-2.0
"""Adapters put into the weights they adapt: exactly where these are floats, by rounding once more where they are codes.

Codes cannot hold a small update exactly, so merging into them loses something. How much is measured on batches that
were kept aside: of each layer its output with the merged weight against that with the adapter, for the inputs it really
has, and of the model its answers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.algorithms import scale_search
from fewbit.algorithms._base import Problem
from fewbit.errors import UsageError
from fewbit.modules.coded import Quantized
from fewbit.modules.frozen import device_of, freeze_layer
from fewbit.modules.layout import to_ours
from fewbit.modules.quantized import set_weight
from fewbit.numerics.qtensor import QTensor
from fewbit.tuning.adapters import adapted, merged_weight
from fewbit.tuning.calling import run
from fewbit.tuning.dressing import undress
from fewbit.tuning.frozen_base import FrozenBase

Run = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class MergeReport:
    """What merging changed. Every error is relative: the length of the difference over that of what was there.

    Args:
        layers: by name, `weight_error` (what rounding did to the merged weight; zero for floats of the base's dtype)
            and, with batches, `output_error`.
        worst: the layer that lost most.
        output_error: of the model's answers on the batches; none without batches.
        batches: how many there were.
    """

    layers: dict[str, dict[str, float]] = field(default_factory=dict)
    worst: str | None = None
    output_error: float | None = None
    batches: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def merge_adapters(model: nn.Module, batches: Iterable[Any] = (), *, call: Run = run) -> MergeReport:
    """Put every adapter of a model into the weight it adapts, in place; layers are then what they were before.

    A weight of codes is rounded again on the grid it has, with the scales it had or new ones, whichever lose less.

    Args:
        model: with adapters.
        batches: kept aside from training, on the model's device, to measure by.
        call: runs the model on one of them.

    Raises:
        UsageError: no adapters.
    """
    layers = dict(adapted(model))
    if not layers:
        raise UsageError(f"{type(model).__name__} has no adapters to merge", expected="a model that add_adapters gave")
    batches, was = list(batches), model.training
    model.eval()
    twins = {name: _merged(layer) for name, layer in layers.items()}
    found = {name: {"weight_error": error} for name, (_, error) in twins.items()}
    errors = {name: _Error() for name in layers}
    hooks = [
        layer.register_forward_hook(_measure(twins[name][0], errors[name]), with_kwargs=True)
        for name, layer in layers.items()
    ]
    before = [_answers(call, model, batch) for batch in batches]
    for hook in hooks:
        hook.remove()
    _put_back(model, {name: twin for name, (twin, _) in twins.items()})
    whole = _Error()
    for batch, wanted in zip(batches, before):
        whole.add(_answers(call, model, batch), wanted)
    model.train(was)
    if batches:
        for name, error in errors.items():
            found[name]["output_error"] = error.value
    key = "output_error" if batches else "weight_error"
    worst = max(found, key=lambda name: found[name][key])
    return MergeReport(found, worst, whole.value if batches else None, len(batches))


def _merged(layer: Any) -> tuple[nn.Module, float]:
    """A copy of an adapted layer's base with the merged weight, and what rounding did to that."""
    base = layer.get_base_layer()
    weight = merged_weight(layer)
    tensors = (*base._parameters.values(), *base._buffers.values())
    twin = copy.deepcopy(base, {id(tensor): tensor for tensor in tensors if tensor is not None})
    if not isinstance(base, Quantized) or "weight" not in base.coded:
        kept = weight.to(base.weight.dtype)
        twin.weight = nn.Parameter(kept, base.weight.requires_grad)
        return twin, _relative(kept.float() - weight, weight)
    coded = base.coded["weight"]
    ours = to_ours(weight, coded.axes, coded.groups)
    codes = rounded_again(ours, base.codes_of("weight"))
    set_weight(twin, "weight", codes, coded.axes, coded.groups)
    return twin, _relative(codes.dequantize() - ours, ours)


def rounded_again(weight: Tensor, before: QTensor) -> QTensor:
    """A weight in fewbit's layout on the grid of other codes, with their scales or with those found anew."""
    again = QTensor.encode(weight, before.qparams)
    found = scale_search.solve(Problem(weight, before.grid, before.block)).qtensor
    return min((found, again), key=lambda codes: _relative(codes.dequantize() - weight, weight))


def _put_back(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """The layers in the places of those with adapters, and what learned before may learn again."""
    for name, layer in layers.items():
        parent, _, own = name.rpartition(".")
        model.get_submodule(parent)._modules[own] = layer
    for module in model.modules():
        if isinstance(module, FrozenBase):
            undress(module)  # type: ignore[arg-type]
        terms = vars(module).pop("terms_before", None)
        if terms is not None:
            freeze_layer(module, replace(terms, device=device_of(module)))
    learned = vars(model).pop("learned_before")
    vars(model).pop("peft_config", None)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in learned)


class _Error:
    """The relative length of a difference, summed over batches."""

    def __init__(self) -> None:
        self.off, self.all = 0.0, 0.0

    def add(self, given: Tensor, wanted: Tensor) -> None:
        self.off += float((given.double() - wanted.double()).square().sum())
        self.all += float(wanted.double().square().sum())

    @property
    def value(self) -> float:
        return float((self.off / self.all if self.all else self.off) ** 0.5)


def _measure(twin: nn.Module, error: _Error) -> Callable[..., None]:
    def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        error.add(twin(*args, **kwargs), out)

    return hook


@torch.no_grad()
def _answers(call: Run, model: nn.Module, batch: Any) -> Tensor:
    """Everything a model answers that is a float, in one row."""
    out = call(model, batch)
    values = [out] if isinstance(out, Tensor) else list(out.values() if hasattr(out, "values") else out)
    floats = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    return torch.cat([value.flatten().float().cpu() for value in floats])


def _relative(off: Tensor, of: Tensor) -> float:
    size = float(of.norm())
    return float(off.norm()) / size if size else float(off.norm())
