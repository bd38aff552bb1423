# SPDX-License-Identifier: Apache-2.0
"""The plan: which point gets which scheme by which algorithm, and what it will cost; made before any data is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

import orjson

from fewbit.engine import plan_text
from fewbit.engine.observing import range_observer
from fewbit.errors import UsageError, nearest
from fewbit.model.ops import CACHE, EMBEDDING
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.packing import is_packed
from fewbit.numerics.scales import ScaleType, is_power
from fewbit.schemes.config import Config, Resolved
from fewbit.schemes.spec import QuantizationSpec

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class WeightPlan:
    """What one weight (or bias) becomes.

    Args:
        point: the weight; a tied one is planned once, at its first user.
        spec: the scheme.
        grid: the scheme as a grid.
        block: the block shape of its scales.
        algorithm: how codes and scales are found.
        why: where in the configuration the scheme came from.
    """

    point: Point
    spec: QuantizationSpec
    grid: Grid
    block: tuple[int, ...]
    algorithm: str
    why: str

    @property
    def bytes_before(self) -> int:
        """Bytes of the float weight."""
        return self.point.elements * _BYTES.get(self.point.dtype, 4)

    @property
    def bytes_after(self) -> int:
        """Bytes of codes, scales and zero points."""
        return stored_bytes(self.grid, self.point.shape, self.block)


@dataclass(frozen=True)
class ActivationPlan:
    """What one activation becomes: scales found at run time (`dynamic`), or beforehand by an observer."""

    point: Point
    spec: QuantizationSpec
    grid: Grid
    dynamic: bool
    why: str

    @property
    def is_cast(self) -> bool:
        """Whether it is a plain change of float type, with no scale to find."""
        return is_cast(self.grid.dtype)


@dataclass(frozen=True)
class Kept:
    """A layer's tensor that stays in float, and why."""

    name: str
    reason: str
    bytes: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything a run will do.

    Args:
        config: the configuration it was made from.
        weights: what each weight becomes, in model order, tied ones once.
        activations: what each activation becomes.
        kept: what stays in float.
        notes: what is worth knowing beforehand, as `(where, what)`.
        other_bytes: bytes of parameters no scheme could apply to, such as norms.
    """

    config: Config
    weights: tuple[WeightPlan, ...]
    activations: tuple[ActivationPlan, ...]
    kept: tuple[Kept, ...]
    notes: tuple[tuple[str, str], ...] = ()
    other_bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def static(self) -> tuple[ActivationPlan, ...]:
        """Activations whose scales need data."""
        return tuple(a for a in self.activations if not (a.dynamic or a.is_cast))

    @property
    def bytes_before(self) -> int:
        """Bytes of all parameters now."""
        return sum(w.bytes_before for w in self.weights) + sum(k.bytes for k in self.kept) + self.other_bytes

    @property
    def bytes_after(self) -> int:
        """Bytes of all parameters afterwards."""
        return sum(w.bytes_after for w in self.weights) + sum(k.bytes for k in self.kept) + self.other_bytes

    @property
    def peak_bytes(self) -> int:
        """The most memory a run is expected to hold: the model, the packed result, and three copies of one layer."""
        largest = max((w.point.elements * 4 for w in self.weights), default=0)
        return self.bytes_before + self.bytes_after + 3 * largest

    def layers(self) -> Iterator[dict[str, Any]]:
        """One line a layer: what becomes of its weight and of what it reads, or why it stays in float."""
        reads = {a.point.layer: a for a in self.activations if a.point.role is Role.input}
        for w in self.weights:
            reading = reads.get(w.point.layer)
            yield {
                "layer": w.point.layer,
                "tensor": w.point.tensor,
                "op": w.point.op.name,
                "shape": list(w.point.shape),
                "weight": describe(w.grid),
                "input": None if reading is None else describe(reading.grid, dynamic=reading.dynamic),
                "algorithm": w.algorithm,
                "bytes_before": w.bytes_before,
                "bytes_after": w.bytes_after,
                "why": w.why,
                "tied": list(w.point.users[1:]),
            }
        for kept in self.kept:
            yield {"layer": kept.name, "float": kept.reason, "bytes_before": kept.bytes, "bytes_after": kept.bytes}

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {
            "layers": list(self.layers()),
            "notes": [{"where": where, "what": what} for where, what in self.notes],
            "needs_data": bool(self.static),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "peak_bytes": self.peak_bytes,
            "config": self.config.to_dict(),
            **self.facts,
        }

    def to_json(self) -> bytes:
        """The plan as indented JSON."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2)

    def text(self) -> str:
        """The plan as people read it."""
        return plan_text.render(self.to_dict())

    def __str__(self) -> str:
        return self.text()


def make_plan(view: ModelView, config: Config) -> Plan:
    """Decide what becomes of every point of a model.

    Raises:
        UsageError: a model that is quantized already; names in the configuration that match nothing in it, all at once.
    """
    done = view.quantized()
    if done:
        raise UsageError(
            f"the model is quantized already: {len(done)} layers, such as {done[0] or 'the model itself'}",
            where=done[0],
            expected="a float model; quantizing twice loses twice",
            try_="start from the model that was quantized, which is unchanged unless inplace=True was given",
        )
    points = view.points()
    _refuse_unknown_names(view, points, config)
    weights: list[WeightPlan] = []
    activations: list[ActivationPlan] = []
    kept: list[Kept] = []
    notes: list[tuple[str, str]] = []
    layers = dict.fromkeys(p.layer for p in points if p.op is not CACHE)
    resolved = {layer: config.resolve(layer, view.types(layer)) for layer in layers}
    chosen = _weights_to_quantize(points, resolved, kept)
    changed = {point.layer for point in chosen}
    for point in points:
        if point.op is CACHE:
            continue
        found = resolved[point.layer].quantization
        if found is None:
            continue
        why = resolved[point.layer].why
        if point.role in (Role.weight, Role.bias) and point in chosen:
            spec = _slot(found, point.role)
            assert spec is not None
            planned = _plan_weight(point, spec, why)
            weights.append(planned)
            notes += _remarks(planned)
        elif point.role in (Role.input, Role.output) and point.layer in changed:
            spec = _slot(found, point.role)
            if spec is not None:
                activations.append(_plan_activation(point, spec, why))
    activations += _plan_cache(points, config)
    kept += [Kept(layer, reason) for layer, reason in view.skipped()]
    other = view.size() - sum(w.bytes_before for w in weights) - sum(k.bytes for k in kept)
    return Plan(config, tuple(weights), tuple(activations), tuple(kept), tuple(notes), other)


def describe(grid: Grid, *, dynamic: bool | None = None) -> str:
    """A grid in a few words.

    >>> from fewbit.numerics.blocks import QSchemeType
    >>> describe(Grid(Dtype.uint4, QSchemeType.per_group, group_size=32, symmetric=False))
    'uint4 asym per group of 32'
    """
    words = [grid.dtype.name]
    if is_cast(grid.dtype):
        return words[0]
    if grid.dtype.is_integer:
        words.append("full-range" if grid.full_range else "sym" if grid.symmetric else "asym")
    words.append(grid.granularity.value.replace("_", " "))
    if grid.granularity.value == "per_group" and grid.group_size > 0:
        words.append(f"of {grid.group_size}")
    if grid.granularity.value == "per_block":
        words.append("×".join(map(str, grid.block_size)))
    if grid.scale_type is not ScaleType.float32:
        words.append(f"({grid.scale_type.value} scales)")
    if dynamic is not None:
        words.append("dynamic" if dynamic else "static")
    return " ".join(words)


def is_cast(dtype: Dtype) -> bool:
    """Whether a type needs no scale: half floats are only a change of type."""
    return dtype in (Dtype.float16, Dtype.bfloat16)


def stored_bytes(grid: Grid, shape: tuple[int, ...], block: tuple[int, ...]) -> int:
    """The bytes of a quantized tensor: codes, scales, zero points, the scale above them.

    >>> stored_bytes(Grid(Dtype.uint4, symmetric=False), (8, 16), (1, 16))
    104
    """
    if not shape:
        return 0
    blocks = prod(Blocks(shape, block).counts)
    row = ceil(shape[-1] * grid.dtype.bits / 8) if is_packed(grid.dtype) else shape[-1] * grid.dtype.bits // 8
    scale = 4 if grid.scale_type is ScaleType.float32 else 2 if grid.scale_type.value.endswith("16") else 1
    scale = 1 if is_power(grid.scale_type) else scale
    zero = 0 if not grid.has_zero_point else 4 if grid.float_zero else grid.dtype.storage.itemsize
    return prod(shape[:-1]) * row + blocks * (scale + zero) + 4 * grid.two_level


def _slot(found: Any, role: Role) -> QuantizationSpec | None:
    names = {Role.weight: "weight", Role.bias: "bias", Role.input: "input_tensors", Role.output: "output_tensors"}
    spec = getattr(found, names[role])
    return spec if isinstance(spec, QuantizationSpec) else None


def _plan_weight(point: Point, spec: QuantizationSpec, why: str) -> WeightPlan:
    grid = spec.grid()
    block = point.shape if is_cast(grid.dtype) else grid.weight_block(point.shape, point.stack)
    range_observer(spec)
    algorithm = "rtn" if point.role is Role.bias or is_cast(grid.dtype) else spec.weight_algorithm
    return WeightPlan(point, spec, grid, block, algorithm, why)


def _plan_activation(point: Point, spec: QuantizationSpec, why: str) -> ActivationPlan:
    range_observer(spec)  # a wrong one is told now, not after the data was read
    return ActivationPlan(point, spec, spec.grid(), spec.dynamic, why)


def _plan_cache(points: list[Point], config: Config) -> list[ActivationPlan]:
    """What becomes of keys and values: in the cache itself, or where the projections give them out.

    Entries by layer name the projections (`"*k_proj"`), as they do elsewhere, or the attention as a whole.
    """
    if config.kv_cache_quant_config is None:
        return []
    planned = []
    if config.kv_cache_post_rope:
        for point in points:
            if point.role in (Role.key, Role.value):
                names = (f"{point.layer}.{point.role.value[0]}_proj", f"{point.layer}.{point.role.value}", point.layer)
                spec = next((s for name in names if (s := config.kv_cache(name)) is not None), None)
                if spec is not None:
                    planned.append(_plan_activation(point, spec, "kv_cache_quant_config"))
    else:
        for point in points:
            named = point.layer.rpartition(".")[2] in ("k_proj", "v_proj", "key", "value")
            if point.role is Role.output and named and (spec := config.kv_cache(point.layer)) is not None:
                planned.append(_plan_activation(point, spec, "kv_cache_quant_config before the rotary embedding"))
    if not planned:
        where = "a cache" if config.kv_cache_post_rope else "layers called k_proj and v_proj"
        raise UsageError(
            "kv_cache_quant_config finds nothing to quantize in this model",
            where="kv_cache_quant_config",
            expected=f"a Hugging Face model with {where}, and entries that match its attention layers",
        )
    return planned


def _weights_to_quantize(points: list[Point], resolved: dict[str, Resolved], kept: list[Kept]) -> set[Point]:
    """The weights that get codes; what stays in float goes to `kept` with its reason.

    A tied weight is quantized once and all its users see it. It is refused where one of them is excluded: changing a
    weight behind the back of a layer that was to stay as it is would be worse than a larger file.
    """
    by_name = {p.name: p for p in points}
    chosen: set[Point] = set()
    settled: set[str] = set()
    for point in points:
        if point.role not in (Role.weight, Role.bias) or point.name in settled:
            continue
        users = [by_name[name] for name in point.users if name in by_name] or [point]
        settled.update(user.name for user in users)
        size = point.elements * _BYTES.get(point.dtype, 4)
        asked = {user.name: _asks(user, resolved[user.layer]) for user in users}
        wanting = [user for user in users if asked[user.name] is None]
        if not wanting:
            if point.role is Role.weight:
                kept.append(Kept(point.name, str(asked[point.name]), size))
            continue
        refusing = [user for user in users if resolved[user.layer].source == "excluded"]
        if refusing:
            reason = f"tied to {refusing[0].name}, which is excluded; quantizing it would change both"
            kept.append(Kept(point.name, reason, size))
            continue
        chosen.add(wanting[0])
    return chosen


def _asks(point: Point, found: Resolved) -> str | None:
    """None if the configuration wants this tensor quantized; else the reason it stays."""
    if found.quantization is None:
        return found.why
    if _slot(found.quantization, point.role) is None:
        return f"the scheme ({found.why}) leaves the {point.role.value} in float"
    if point.op is EMBEDDING and found.source == "global":
        return "embeddings are quantized only when asked for by name or type"
    return None


def _remarks(planned: WeightPlan) -> list[tuple[str, str]]:
    blocks = Blocks(planned.point.shape, planned.block)
    if blocks.divides:
        return []
    uneven = [f"{side} by {width}" for side, width in zip(blocks.shape, blocks.block) if side % width]
    return [(planned.point.name, f"blocks do not divide the shape ({', '.join(uneven)}): the last one is shorter")]


def _refuse_unknown_names(view: ModelView, points: list[Point], config: Config) -> None:
    layers = list(dict.fromkeys(p.layer for p in points if p.op is not CACHE))
    types = sorted({name for layer in layers for name in view.types(layer)})
    unused = config.unused(layers, types)
    if unused:
        raise UsageError(
            f"{len(unused)} of the configuration's names match nothing in the model: {', '.join(unused)}",
            where="configuration",
            expected="; ".join(nearest(name, [*layers, *types])[:300] for name in unused[:3]),
            try_="`fewbit plan MODEL` lists the layers",
        )
