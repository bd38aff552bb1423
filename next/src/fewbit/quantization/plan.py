# SPDX-License-Identifier: Apache-2.0
"""What happens to each layer, decided before any data is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fewbit.backends._base import Layer
from fewbit.checkpoints._base import CheckpointFormat, LayerFormat
from fewbit.config.patterns import IgnoredScope
from fewbit.config.presets import GROUP_SIZES, Preset
from fewbit.errors import ModelError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.scales import ScaleType


@dataclass(frozen=True)
class LayerPlan:
    """The decision for one layer.

    Args:
        layer: of the model.
        format: what it becomes; `None` for float.
        reason: why it stays in float, or gets another format than the preset's.
    """

    layer: Layer
    format: LayerFormat | None
    reason: str = ""

    @property
    def quantized(self) -> bool:
        """Whether it does not stay in float."""
        return self.format is not None

    def row(self) -> dict[str, Any]:
        """For the record."""
        row: dict[str, Any] = {
            "name": self.layer.name, "type": self.layer.type, "quantized": self.quantized, "reason": self.reason
        }  # fmt: skip
        if self.format is not None:
            grid = self.format.weight
            row["weight"] = f"{grid.dtype.name} {grid.granularity.value}"
            if grid.granularity is QSchemeType.per_group:
                row["group_size"] = grid.group_size
            if self.format.activation is not None:
                row["input"] = self.format.activation.dtype.name
        return row


@dataclass(frozen=True)
class Plan:
    """Every layer of a model with its decision; `print` shows it as a table.

    Args:
        preset: resolved for the target.
        layers: in the order of the model.
        settings: that `quantize` takes to do exactly this, by parameter name.
        facts: about the run: model, target, size before and after, estimates.
    """

    preset: Preset
    layers: tuple[LayerPlan, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: `Plan(61 layers: 52 w8a16, 9 float)`."""
        count = sum(plan.quantized for plan in self.layers)
        return f"Plan({len(self.layers)} layers: {count} {self.preset.name}, {len(self.layers) - count} float)"

    def __str__(self) -> str:
        from fewbit.quantization.plan_text import plan_text

        return plan_text(self)

    def _repr_html_(self) -> str:
        from fewbit.quantization.plan_text import plan_html

        return plan_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        rows = [plan.row() for plan in self.layers]
        return {"preset": self.preset.name, "layers": rows, "settings": dict(self.settings), **self.facts}


def make_plan(
    layers: Sequence[Layer],
    preset: Preset,
    ignore: Any = (),
    *,
    group_size: int | None = None,
    formats: Sequence[CheckpointFormat] = (),
) -> Plan:
    """Decide for each layer.

    Args:
        layers: of the model.
        preset: resolved for the target.
        ignore: whatever `IgnoredScope.of` takes.
        group_size: weights that share a scale, instead of the preset's; -1 for a complete channel.
        formats: of the files that will be written: all of them must be able to hold a layer.

    Raises:
        UsageError: an entry of `ignore` matches nothing.
        ModelError: nothing would be quantized.
    """
    head = next((checkpoint.float_head for checkpoint in formats if checkpoint.float_head), "")
    ignored = set(IgnoredScope.of(ignore).select({layer.name: [layer.type] for layer in layers}))
    reasons = {layer.name: head for layer in layers if head and layer.role == "head"}
    reasons |= dict.fromkeys(ignored, "ignored")
    preset = _with_group_size(preset, [layer for layer in layers if layer.name not in reasons], group_size)
    plans = tuple(
        LayerPlan(layer, None, reasons[layer.name]) if layer.name in reasons else _decide(layer, preset, formats)
        for layer in layers
    )
    if not any(plan.quantized for plan in plans):
        texts = sorted({plan.reason for plan in plans if plan.reason})
        raise ModelError(
            "nothing would be quantized" + (f": {'; '.join(texts[:3])}" if texts else ""), code="nothing-quantized",
            expected="at least one layer with a constant weight",
            hint="remove {ignore}" if ignored else "another model, or another {preset}",
        )  # fmt: skip
    return Plan(preset, plans)


def _with_group_size(preset: Preset, layers: Sequence[Layer], group_size: int | None) -> Preset:
    """The size the user named, or the largest that divides the inputs of every layer."""
    if group_size is not None:
        return preset.with_group_size(group_size)
    if not preset.chooses_group or not layers:
        return preset
    widths = [layer.shape[1 - layer.channel_axis] for layer in layers if len(layer.shape) == 2]
    dividing = [size for size in GROUP_SIZES if all(width % size == 0 for width in widths)]
    size = dividing[0] if dividing else GROUP_SIZES[-1]
    return preset if size == preset.group_size else preset.with_group_size(size)


def _decide(layer: Layer, preset: Preset, formats: Sequence[CheckpointFormat]) -> LayerPlan:
    kind = layer_format(preset, layer.channel_axis)
    for checkpoint in formats:
        kind = checkpoint.adapt(kind)
    grid = kind.weight
    if grid.granularity is QSchemeType.per_group and grid.group_size > 0:
        width = layer.shape[1 - layer.channel_axis] if len(layer.shape) == 2 else 0
        if width % grid.group_size or not width:
            return LayerPlan(layer, None, f"groups of {grid.group_size} do not divide its {width} inputs")
    reasons = [checkpoint.refusal(kind, layer.shape) for checkpoint in formats]
    reason = next(filter(None, reasons), None)
    return LayerPlan(layer, None, reason) if reason else LayerPlan(layer, kind)


def layer_format(preset: Preset, channel_axis: int = 0) -> LayerFormat:
    """The grids of a preset for a weight with its channels on an axis.

    >>> from fewbit.config.presets import parse_preset
    >>> layer_format(parse_preset("w4a16g32")).weight.group_size
    32
    """
    from fewbit.config.spec import QuantizationSpec  # imports pydantic: not before a model is there

    if preset.is_gguf:  # the writer chooses types by layer; this is the most common one's width
        dtype = Dtype[f"int{preset.weight_bits}"]
        grid = QuantizationGrid(dtype, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float16)
        return LayerFormat(grid.replace(axis=channel_axis))
    weight = QuantizationSpec(**preset.slots["weight"]).complete("weight").grid().replace(axis=channel_axis)
    inputs = preset.slots.get("input_tensors")
    return LayerFormat(weight, None if inputs is None else QuantizationSpec(**inputs).complete("input_tensors").grid())
