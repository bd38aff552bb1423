# SPDX-License-Identifier: Apache-2.0
"""Planning: what becomes of every point of a model, decided from the configuration alone."""

from __future__ import annotations

from typing import Any

from fewbit.engine.choosing import checked_algorithm, weight_algorithm
from fewbit.engine.observing import range_observer
from fewbit.engine.plan import ActivationPlan, Kept, Plan, WeightPlan, bytes_of, describe
from fewbit.errors import UsageError, nearest
from fewbit.model.ops import CACHE, EMBEDDING
from fewbit.model.points import Point, Role
from fewbit.model.view import ModelView
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.grid import Grid
from fewbit.schemes.config import Config, Resolved
from fewbit.schemes.spec import QuantizationSpec

# Weights of so few elements, and of a smaller share of the model than one in so many bytes, save nothing as codes. They
# are heads and gates, whose few weights may lie orders of magnitude apart.
_TRIFLE, _SHARE = 1024, 1000


def make_plan(view: ModelView, config: Config) -> Plan:
    """Decide what becomes of every point of a model.

    Raises:
        UsageError: a model that is quantized already; names in the configuration that match nothing in it, all at once.
    """
    done = view.quantized()
    if done:
        graph = "place" in view.can
        raise UsageError(
            f"the model is quantized already: {len(done)} {'nodes' if graph else 'layers'}, "
            f"such as {done[0] or 'the model itself'}",
            where=done[0],
            expected="a float model; quantizing twice loses twice",
            try_="start from the float file that it was made from"
            if graph
            else "start from the model that was quantized, which is unchanged unless inplace=True was given",
        )
    points = view.points()
    names = _names(points)
    _refuse_unknown_names(view, names, config)
    weights: list[WeightPlan] = []
    activations: list[ActivationPlan] = []
    kept: list[Kept] = []
    notes: list[tuple[str, str]] = []
    resolved = {layer: _resolve(config, own, view) for layer, own in names.items()}
    chosen, refused = _weights_to_quantize(points, resolved, kept)
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
            planned = _plan_weight(point, spec, why, config)
            weights.append(planned)
            notes += _remarks(planned)
        elif point.role in (Role.input, Role.output) and point.layer not in refused:
            spec = _slot(found, point.role)
            if spec is not None:
                activations.append(_plan_activation(point, spec, why))
    activations += _plan_cache(points, config)
    static = {activation.point.layer for activation in activations if activation.static}
    size = view.size()
    trifles = [w for w in weights if w.point.layer not in static and _is_trifle(w, size, resolved)]
    weights = [w for w in weights if w not in trifles]
    left = {w.point.layer for w in trifles}
    activations = [activation for activation in activations if activation.point.layer not in left]
    kept += [Kept(w.point.name, f"{w.point.elements} weights are not worth the risk", w.bytes_before) for w in trifles]
    kept += [Kept(layer, reason) for layer, reason in view.skipped()]
    other = size - sum(w.bytes_before for w in weights) - sum(k.bytes for k in kept)
    return Plan(config, tuple(weights), tuple(activations), tuple(kept), tuple(notes), other)


def _is_trifle(planned: WeightPlan, size: int, resolved: dict[str, Resolved]) -> bool:
    """Whether a weight is so small that nothing is saved by keeping it as codes, where nobody named it."""
    small = planned.point.elements <= _TRIFLE and planned.bytes_before * _SHARE < size
    return small and planned.point.role is Role.weight and resolved[planned.point.layer].source != "name"


def _names(points: list[Point]) -> dict[str, list[str]]:
    """Every layer with points of its own, with all the names it goes by: a module used in two places has two."""
    points = [point for point in points if point.op is not CACHE]
    found = {point.layer: [point.layer] for point in points}
    for point in points:
        for user in point.users:
            name = user.rpartition(".")[0]
            if name not in found and name not in found[point.layer]:
                found[point.layer].append(name)
    return found


def _resolve(config: Config, names: list[str], view: ModelView) -> Resolved:
    """What the configuration says of a layer by any of its names; that it stays in float counts most."""
    said = [config.resolve(name, view.types(name)) for name in names]
    order = ("excluded", "name", "type", "global", "none")
    return min(said, key=lambda resolved: order.index(resolved.source))


def _slot(found: Any, role: Role) -> QuantizationSpec | None:
    names = {Role.weight: "weight", Role.bias: "bias", Role.input: "input_tensors", Role.output: "output_tensors"}
    spec = getattr(found, names[role])
    return spec if isinstance(spec, QuantizationSpec) else None


def _plan_weight(point: Point, spec: QuantizationSpec, why: str, config: Config) -> WeightPlan:
    grid = spec.grid()
    _refuse_axis(point, grid)
    block = point.shape if grid.dtype.is_cast else grid.weight_block(point.shape, point.stack)
    range_observer(spec, point.name)
    by_hand = point.role is Role.bias or grid.dtype.is_cast
    solver, parameters = ("rtn", {}) if by_hand else weight_algorithm(config, spec)
    return WeightPlan(point, spec, grid, block, *checked_algorithm(solver, parameters, spec, point.name), why)


def _refuse_axis(point: Point, grid: Grid) -> None:
    axes = len(point.shape) - point.stack
    if grid.granularity in (QSchemeType.per_channel, QSchemeType.per_group) and not -axes <= grid.axis < axes:
        raise UsageError(
            f"ch_axis={grid.axis} for a tensor of {axes} axes",
            where=point.name,
            expected=f"0 to {axes - 1}: outputs, inputs, then the kernel's",
        )


def _plan_activation(point: Point, spec: QuantizationSpec, why: str, *, is_cache: bool = False) -> ActivationPlan:
    range_observer(spec, point.name)  # a wrong one is told now, not after the data was read
    return ActivationPlan(point, spec, spec.grid(), spec.dynamic, why, is_cache)


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
                    planned.append(_plan_activation(point, spec, "kv_cache_quant_config", is_cache=True))
    else:
        for point in points:
            named = point.layer.rpartition(".")[2] in ("k_proj", "v_proj", "key", "value")
            if point.role is Role.output and named and (spec := config.kv_cache(point.layer)) is not None:
                why = "kv_cache_quant_config before the rotary embedding"
                planned.append(_plan_activation(point, spec, why, is_cache=True))
    if not planned:
        where = "a cache" if config.kv_cache_post_rope else "layers called k_proj and v_proj"
        raise UsageError(
            "kv_cache_quant_config finds nothing to quantize in this model",
            where="kv_cache_quant_config",
            expected=f"a Hugging Face model with {where}, and entries that match its attention layers",
        )
    if config.min_kv_scale and any(a.dynamic for a in planned):
        raise UsageError(
            f"min_kv_scale={config.min_kv_scale} with scales that are found in each call",
            where="min_kv_scale",
            expected="is_dynamic=False in kv_cache_quant_config, or no min_kv_scale",
        )
    return planned


def _weights_to_quantize(
    points: list[Point], resolved: dict[str, Resolved], kept: list[Kept]
) -> tuple[set[Point], set[str]]:
    """The weights that get codes, and the layers that are left alone though the configuration names them.

    What stays in float goes to `kept` with its reason. A tied weight is quantized once and all its users see it. It is
    refused where one of them is excluded: changing a weight behind the back of a layer that was to stay as it is would
    be worse than a larger file.
    """
    by_name = {p.name: p for p in points}
    chosen: set[Point] = set()
    refused: set[str] = set()
    settled: set[str] = set()
    for point in points:
        if point.role not in (Role.weight, Role.bias) or point.name in settled:
            continue
        users = [by_name[name] for name in point.users if name in by_name] or [point]
        settled.update(user.name for user in users)
        asked = {user.name: _asks(user, resolved[user.layer]) for user in users}
        wanting = [user for user in users if asked[user.name] is None]
        excluded = [user for user in users if resolved[user.layer].source == "excluded"]
        if wanting and not excluded:
            chosen.add(_speaker(wanting, resolved))
            continue
        reason = str(asked[point.name])
        if wanting:
            reason = f"tied to {excluded[0].name}, which is excluded; quantizing it would change both"
            refused.update(user.layer for user in wanting)
        if point.op is EMBEDDING:
            refused.add(point.layer)
        if point.role is Role.weight:
            kept.append(Kept(point.name, reason, point.elements * bytes_of(point.dtype)))
    return chosen, refused


def _speaker(wanting: list[Point], resolved: dict[str, Resolved]) -> Point:
    """Of the users of a tied weight, the one whose scheme it gets: entries by name or type come before the global one.

    Raises:
        UsageError: two that count the same ask for different schemes.
    """
    special = [user for user in wanting if resolved[user.layer].source != "global"] or wanting
    grids: dict[Grid, Point] = {}
    for user in special:
        spec = _slot(resolved[user.layer].quantization, user.role)
        assert spec is not None
        grids.setdefault(spec.grid(), user)
    if len(grids) > 1:
        asks = [f"{user.name}: {describe(grid)} ({resolved[user.layer].why})" for grid, user in grids.items()]
        raise UsageError(
            "one weight is asked to be two things: " + "; ".join(asks),
            where=special[0].name,
            expected="the same scheme for all layers that share a weight",
            try_="give both the same scheme, or untie them",
        )
    return special[0]


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
    blocks, others = Blocks(planned.point.shape, planned.block), planned.point.users
    notes = []
    if len(others) > 1:
        same = ", ".join(name for name in others if name != planned.point.name)
        notes.append((planned.point.name, f"{same} is the same tensor, and sees the same codes"))
    if blocks.divides:
        return notes
    uneven = [f"{side} by {width}" for side, width in zip(blocks.shape, blocks.block) if side % width]
    return [
        *notes,
        (planned.point.name, f"blocks do not divide the shape ({', '.join(uneven)}): the last one is shorter"),
    ]


def _refuse_unknown_names(view: ModelView, names: dict[str, list[str]], config: Config) -> None:
    """Every name must be a layer's, and where the configuration wants something quantized, there must be something."""
    known = view.layers()
    types = sorted({name for names in known.values() for name in names})
    able = {name: known[name] for own in names.values() for name in own}
    unused = config.unused(known, types)
    idle = [
        entry
        for entry in config.unused(able, {name for names in able.values() for name in names})
        if entry not in unused and _quantizes(config, entry)
    ]
    if unused or idle:
        words = {"match nothing in the model": unused, "match only layers that have nothing to quantize": idle}
        said = [f"{len(names)} {what}: {', '.join(names)}" for what, names in words.items() if names]
        raise UsageError(
            f"of the configuration's names {'; '.join(said)}",
            where="configuration",
            expected="; ".join(nearest(name, [*able, *types])[:300] for name in [*unused, *idle][:3]),
            try_="`fewbit plan MODEL` lists the layers",
        )


def _quantizes(config: Config, entry: str) -> bool:
    found = config.layer_quant_config.get(entry) or config.layer_type_quant_config.get(entry)
    return found is not None and any(isinstance(value, QuantizationSpec) for value in found.given.values())
