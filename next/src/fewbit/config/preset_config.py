# SPDX-License-Identifier: Apache-2.0
"""The configuration of a model from a preset and the options next to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fewbit.config.config import FLOAT, Config, QuantizationConfig
from fewbit.config.patterns import IgnoredScope
from fewbit.config.presets import Preset, parse_preset
from fewbit.config.rules import SLOTS
from fewbit.config.spec import QuantizationSpec
from fewbit.errors import UsageError

EMBEDDINGS = ("Embedding", "EmbeddingBag")
"""The types of embedding layers; a global configuration alone leaves them in float."""
NARROW = 4
"""Up to this many bits embeddings and the output layer lose most and save least: they get the backup precision."""
_BACKUP = {
    "dtype": "uint8", "symmetric": False, "qscheme": "per_channel", "ch_axis": 0, "scale_type": "float32",
}  # fmt: skip


def preset_config(
    preset: str | Preset,
    *,
    group_size: int | None = None,
    algorithm: str | None = None,
    backup_precision: str = "none",
    output_layer: str | None = None,
    kv_cache: str = "none",
    ignore: Any = (),
    **changes: Any,
) -> Config:
    """The configuration that a preset stands for.

    Args:
        preset: its name, or as a target resolved it.
        group_size: instead of the preset's own; -1 is a complete channel.
        algorithm: for weights.
        backup_precision: of embeddings and the output layer: `int8`, `none` (float), or `same` as the preset.
        output_layer: the name of the layer that computes the logits, if there is one.
        kv_cache: `none`, `fp8` or `int8`.
        ignore: layers that stay in float, by name; types and subgraphs need the model, see `IgnoredScope.select`.
        changes: fields of the weight's spec, or slots with the fields to change: `input_tensors={"symmetric": True}`.

    Raises:
        UsageError: a type of GGUF; a field that does not exist or contradicts the preset.

    >>> config = preset_config("int4", group_size=64, backup_precision="int8", output_layer="lm_head")
    >>> [config.resolve(name, ["Linear"]).quantization.weight.dtype.name for name in ("layers.0.fc1", "lm_head")]
    ['int4', 'uint8']
    """
    chosen = parse_preset(preset) if isinstance(preset, str) else preset
    if chosen.is_gguf:
        raise UsageError(
            f"{chosen.name} is a type of GGUF files and no configuration of layers", code="preset-format",
            param="preset", expected="{format=gguf}", hint="{preset=w4a16} for other formats",
        )  # fmt: skip
    chosen = chosen if group_size is None else chosen.with_group_size(group_size)
    slots: dict[str, Any] = {slot: QuantizationSpec.from_dict(fields) for slot, fields in chosen.slots.items()}
    own = {name: value for name, value in changes.items() if name not in SLOTS}
    own |= {} if algorithm is None else {"algorithm": algorithm}
    for slot, change in [*((slot, changes[slot]) for slot in SLOTS if slot in changes), ("weight", own)]:
        slots[slot] = _changed(slots.get(slot), change)
    layers = QuantizationConfig(**slots)
    backup = _backup(layers, backup_precision, algorithm)
    exclude = IgnoredScope.of(ignore).names
    by_type, by_name = {}, {}
    if backup is not None:
        by_type = dict.fromkeys(EMBEDDINGS, backup)
        by_name = {output_layer: backup} if output_layer and backup.weight != layers.weight else {}
    elif output_layer and _is_narrow(layers):
        exclude = (*exclude, output_layer)
    return Config(
        global_quant_config=layers,
        layer_type_quant_config=by_type,
        layer_quant_config=by_name,
        exclude=exclude,
        kv_cache_quant_config=None if kv_cache == "none" else cache_spec(kv_cache),
        optional=EMBEDDINGS if by_type else (),
    )


def _changed(base: QuantizationSpec | None, change: Any) -> Any:
    """A slot with some fields changed, by the rules of inheritance."""
    if not change:
        return base
    spec = QuantizationSpec.from_dict(change) if isinstance(change, Mapping) else change
    return spec.over(base) if isinstance(spec, QuantizationSpec) and base is not None else spec


def _backup(layers: QuantizationConfig, precision: str, algorithm: str | None) -> QuantizationConfig | None:
    """What embeddings and the output layer become; `None` if they stay in float."""
    if precision == "none":
        return None
    weight = layers.weight
    if precision == "int8" and _is_narrow(layers):
        weight = QuantizationSpec(algorithm=algorithm, full_range=False).over(QuantizationSpec.from_dict(_BACKUP))
    return QuantizationConfig(weight=weight, input_tensors=FLOAT)


def _is_narrow(layers: QuantizationConfig) -> bool:
    return isinstance(layers.weight, QuantizationSpec) and (layers.weight.bits or 16) <= NARROW


def candidate_specs(
    names: Sequence[str], *, group_size: int | None = None, algorithm: str | None = None
) -> dict[str, QuantizationSpec]:
    """The weight specs of presets that are used next to each other in one model.

    Eight bits get the groups of the narrower ones: runtimes with several widths have them in the same groups.

    >>> candidate_specs(["w4a16", "w8a16"], group_size=64)["w8a16"].group_size
    64
    """
    specs = {}
    groups = [size for name in names if (size := parse_preset(name).group_size) is not None]
    for name in names:
        preset = parse_preset(name)
        size = group_size or (groups[-1] if groups and preset.group_size is None else None)
        layers = preset_config(preset, group_size=size, algorithm=algorithm).global_quant_config
        assert layers is not None and isinstance(layers.weight, QuantizationSpec)
        # Set here, because an entry inherits what it does not set from the narrow preset around it.
        wide = preset.weight_bits == 8 and layers.weight.symmetric
        specs[name] = QuantizationSpec(full_range=False).over(layers.weight) if wide else layers.weight
    return specs


def cache_spec(name: str, *, dynamic: bool = False) -> QuantizationSpec:
    """The spec of a key/value cache: one static scale per layer, or one per token computed in each call.

    >>> cache_spec("fp8").dtype.name
    'fp8_e4m3'
    """
    if name not in ("fp8", "int8"):
        raise UsageError(
            f"no cache of {name!r}", code="preset-cache", param="kv_cache", expected="none, fp8 or int8",
            hint="{kv_cache=fp8}",
        )  # fmt: skip
    fields = {"qscheme": "per_token"} if dynamic else {"is_dynamic": False}
    return QuantizationSpec.from_dict({"dtype": name, **fields})
