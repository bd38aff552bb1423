# SPDX-License-Identifier: Apache-2.0
"""What happens to each layer of a PyTorch module, decided before any data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from fewbit.backends._base import ModuleLayer
from fewbit.config.config import Config, QuantizationConfig
from fewbit.config.patterns import IgnoredScope, ancestors
from fewbit.config.presets import GROUP_SIZES
from fewbit.config.spec import QuantizationSpec
from fewbit.errors import FewbitError, ModelError, UsageError, nearest, raise_all
from fewbit.numerics.granularity import QSchemeType

SMALL, SMALL_SHARE = 1024, 0.001
"""A weight of at most so many elements that is a smaller share of all stays in float: it gains nothing."""


@dataclass(frozen=True)
class ModuleLayerPlan:
    """The decision for one layer.

    Args:
        layer: of the module.
        specs: complete specs of its tensors; `None` if all stay in float.
        reason: why it stays in float, or what of it does.
    """

    layer: ModuleLayer
    specs: QuantizationConfig | None
    reason: str = ""

    @property
    def quantized(self) -> bool:
        """Whether anything of it is quantized."""
        return self.specs is not None

    def spec(self, slot: str) -> QuantizationSpec | None:
        """The spec of a tensor, `None` if it stays in float."""
        value = None if self.specs is None else getattr(self.specs, slot)
        return value if isinstance(value, QuantizationSpec) else None

    @property
    def static(self) -> dict[str, QuantizationSpec]:
        """The activations whose scales come from calibration data: `input` and `output`."""
        sides = {side: self.spec(f"{side}_tensors") for side in ("input", "output")}
        return {side: spec for side, spec in sides.items() if spec is not None and not spec.is_dynamic}

    def row(self) -> dict[str, Any]:
        """For the record."""
        row: dict[str, Any] = {
            "name": self.layer.name, "type": self.layer.type, "quantized": self.quantized, "reason": self.reason
        }  # fmt: skip
        for slot in ("weight", "input_tensors", "output_tensors", "bias"):
            if (spec := self.spec(slot)) is not None:
                kind = f"{_dtype(spec)} {spec.qscheme.value}" if spec.qscheme else _dtype(spec)
                row[slot.removesuffix("_tensors")] = kind + (", dynamic" if spec.is_dynamic else "")
        weight = self.spec("weight")
        if weight is not None and weight.qscheme is QSchemeType.per_group:
            row["group_size"] = weight.group_size
        return row


@dataclass(frozen=True)
class ModulePlan:
    """Every layer of a module with its decision."""

    layers: tuple[ModuleLayerPlan, ...]

    @property
    def needs_data(self) -> bool:
        """Whether scales of activations come from calibration data."""
        return any(plan.static for plan in self.layers)

    def __repr__(self) -> str:
        """One line: `Plan(61 layers: 52 int8, 9 float)`."""
        counts: dict[str, int] = {}
        for plan in self.layers:
            spec = plan.spec("weight") or plan.spec("input_tensors") or plan.spec("output_tensors")
            kind = "float" if spec is None else _dtype(spec)
            counts[kind] = counts.get(kind, 0) + 1
        kinds = sorted(counts.items(), key=lambda item: item[0] == "float")
        return f"Plan({len(self.layers)} layers: {', '.join(f'{count} {kind}' for kind, count in kinds)})"


def plan_module(
    layers: Sequence[ModuleLayer], config: Config, ignore: Any = (), *, chooses_group: bool = False
) -> ModulePlan:
    """Decide for each layer.

    A tensor that several layers share has one decision: float if one of them is excluded, else the spec that is named
    for it; an embedding that a global configuration alone would reach follows the layer it is tied to.

    Args:
        layers: of the module.
        config: what was asked for.
        ignore: more layers to leave in float; whatever `IgnoredScope.of` takes.
        chooses_group: whether each layer may take the first of `GROUP_SIZES` that divides its inputs.

    Raises:
        UsageError: an entry that matches nothing; two specs for one tensor.
        ModelError: nothing would be quantized.
    """
    types = {layer.name: layer.types for layer in layers}
    ignored = set(IgnoredScope.of(ignore).select(types))
    _refuse_unused(config, layers)
    total = sum(prod(layer.shape) for layer in {layer.weight: layer for layer in layers}.values())
    plans = {layer.name: _decide(layer, config, ignored, total) for layer in layers}
    plans |= _with_ties(plans)
    if chooses_group:
        plans = {name: _with_group_size(plan) for name, plan in plans.items()}
    if not any(plan.quantized for plan in plans.values()):
        reasons = sorted({plan.reason for plan in plans.values() if plan.reason})
        raise ModelError(
            "nothing would be quantized" + (f": {'; '.join(reasons[:3])}" if reasons else ": the model has no layers"),
            code="nothing-quantized", expected="at least one linear layer, convolution or embedding",
            hint="remove {ignore}" if ignored else "another configuration, or another model",
        )  # fmt: skip
    return ModulePlan(tuple(plans.values()))


def _refuse_unused(config: Config, layers: Sequence[ModuleLayer]) -> None:
    """Entries that match nothing are mistakes."""
    names = {name for layer in layers for name in (layer.name, layer.module)}
    known = [*names, *(outer for name in names for outer in ancestors(name))]
    kinds = {kind for layer in layers for kind in layer.types}
    errors: list[FewbitError] = [
        UsageError(
            f"no layer matches {entry!r}",
            code="layer-unknown",
            param="config",
            expected=", ".join(nearest(entry, {*known, *kinds})) or "a layer of the model",
            hint="print(ModelQuantizer(config).plan(model).layers) lists every layer",
        )
        for entry in config.unused(names, kinds)
    ]
    raise_all(errors)


def _decide(layer: ModuleLayer, config: Config, ignored: set[str], total: int) -> ModuleLayerPlan:
    """Without ties."""
    if layer.reason:
        return ModuleLayerPlan(layer, None, layer.reason)
    if layer.name in ignored:
        return ModuleLayerPlan(layer, None, _EXCLUDED)
    resolved = config.resolve(layer.name, layer.types)
    if layer.name != layer.module and resolved.source not in ("name", "excluded"):
        resolved = config.resolve(layer.module, layer.types)
    if resolved.source == "excluded":
        return ModuleLayerPlan(layer, None, _EXCLUDED)
    if resolved.quantization is None:
        return ModuleLayerPlan(layer, None, resolved.reason)
    if layer.op == "gather" and resolved.source == "global":
        return ModuleLayerPlan(layer, None, _NOT_NAMED)
    size = prod(layer.shape)
    if resolved.source == "global" and size <= SMALL and size < SMALL_SHARE * total:
        return ModuleLayerPlan(layer, None, "too small to quantize")
    return _without_what_cannot_be(ModuleLayerPlan(layer, resolved.quantization))


_EXCLUDED = "excluded"
_NOT_NAMED = "embeddings are quantized only if their type or name is configured"


def _without_what_cannot_be(plan: ModuleLayerPlan) -> ModuleLayerPlan:
    """Activations that no hook can reach stay in float."""
    layer, specs = plan.layer, plan.specs
    assert specs is not None
    removed: dict[str, str] = {}
    if specs.input_tensors is not None and layer.op == "gather":
        removed["input_tensors"] = ""
    elif not layer.observable:
        for slot in ("input_tensors", "output_tensors"):
            if getattr(specs, slot) is not None:
                removed[slot] = f"its weights only: {layer.type} does not run a forward that could be observed"
    if specs.bias is not None and layer.bias is None:
        removed["bias"] = ""
    if not removed:
        return plan
    kept = QuantizationConfig.model_construct(**{**dict(specs), **dict.fromkeys(removed)})
    reason = next((text for text in removed.values() if text), "")
    empty = not any(getattr(kept, slot) is not None for slot in ("weight", "input_tensors", "output_tensors", "bias"))
    return ModuleLayerPlan(layer, None if empty else kept, reason)


def _with_ties(plans: Mapping[str, ModuleLayerPlan]) -> dict[str, ModuleLayerPlan]:
    """The layers whose tensor has other users, with one decision each."""
    users: dict[str, list[ModuleLayerPlan]] = {}
    for plan in plans.values():
        users.setdefault(plan.layer.weight, []).append(plan)
    changed: dict[str, ModuleLayerPlan] = {}
    for tied in users.values():
        if len(tied) < 2:
            continue
        names = ", ".join(plan.layer.name for plan in tied)
        specs = {spec for plan in tied if (spec := plan.spec("weight")) is not None}
        out = next((plan for plan in tied if not plan.quantized and plan.reason != _NOT_NAMED), None)
        if not specs:
            continue
        if out is not None:
            reason = f"its weight is that of {out.layer.name}, which stays in float: {out.reason}"
            others = [plan for plan in tied if plan.quantized]
            changed |= {plan.layer.name: replace(plan, specs=None, reason=reason) for plan in others}
            continue
        if len(specs) > 1:
            raise UsageError(
                f"the layers {names} share one weight, and the configuration has {len(specs)} specs for it",
                code="tied-weights", param="config", where=names, expected="one spec for a shared weight",
                hint="exclude one of them, or name all of them with the same spec",
            )  # fmt: skip
        weight = specs.pop()
        for plan in tied:
            if not plan.quantized:
                config = QuantizationConfig.model_construct(weight=weight)
                other = next(user.layer.name for user in tied if user.quantized)
                changed[plan.layer.name] = replace(plan, specs=config, reason=f"its weight is that of {other}")
    return changed


def _with_group_size(plan: ModuleLayerPlan) -> ModuleLayerPlan:
    """The first size that divides the inputs; the smallest if none does: its last group is shorter then."""
    spec = plan.spec("weight")
    if spec is None or spec.qscheme is not QSchemeType.per_group or spec.group_size != GROUP_SIZES[0]:
        return plan
    inputs = plan.layer.in_channels
    size = next((size for size in GROUP_SIZES if inputs % size == 0), GROUP_SIZES[-1])
    assert plan.specs is not None
    weight = spec.model_copy(update={"group_size": size})
    return replace(plan, specs=plan.specs.model_copy(update={"weight": weight}))


def _dtype(spec: QuantizationSpec) -> str:
    return str(getattr(spec.dtype, "name", spec.dtype))
