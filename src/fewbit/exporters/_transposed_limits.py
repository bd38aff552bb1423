# SPDX-License-Identifier: Apache-2.0
"""Which weights fit a format of transposed integer codes, and every reason why others do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fewbit.errors import UsageError
from fewbit.exporters._base import Destined
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.grid import Grid
from fewbit.numerics.scales import ScaleType

_EXACT = "choose scale_type='float16' or 'bfloat16' in the scheme"


@dataclass(frozen=True)
class Limits:
    """What a format has a place for.

    Args:
        name: the format's.
        bits: widths of codes.
        groups: group sizes, -1 for whole rows.
        zero_points: whether groups may have zero points of their own.
        one_group_size: whether all layers must agree on it.
        skips_by_part: whether runtimes leave a layer in float if its name has that of a float layer in it.
    """

    name: str
    bits: tuple[int, ...]
    groups: tuple[int, ...]
    zero_points: bool
    one_group_size: bool
    skips_by_part: bool


def kept_wide(weights: Sequence[Destined], limits: Limits) -> list[Destined]:
    """The quantized weights that are written as the floats they stand for: tables, and what gives the model's output.

    These formats know neither. A layer with as many rows as the largest table gives logits; and of eight bits and more,
    the last layer is one that `compress_weights` kept wide, if the format has no place for it.
    """
    tables = [weight for weight in weights if weight.embedding]
    layers = [weight for weight in weights if not weight.embedding]
    words = max((table.shape[0] for table in tables), default=0)
    found = [weight for weight in (*tables, *layers[:-1]) if weight.embedding or weight.shape[0] == words]
    for last in layers[-1:]:
        wide = last.grid is not None and last.grid.dtype.bits >= 8 and bool(faults_of(last, limits))
        found += [last] if wide or last.shape[0] == words else []
    return [weight for weight in found if weight.grid is not None]


def find_refusals(weights: Sequence[Destined], limits: Limits) -> list[tuple[str, str]]:
    """Every reason against writing such weights in a format, layer by layer."""
    wide = set(kept_wide(weights, limits))
    coded = [weight for weight in weights if weight.grid is not None and weight not in wide]
    found = [(weight.layer, reason) for weight in weights for reason in _input_faults(weight)]
    found += [(weight.layer, reason) for weight in coded for reason in faults_of(weight, limits)]
    if not coded:
        found.append(("the model", f"none of its layers would be codes in {limits.name}"))
    if limits.one_group_size:
        size = usual_group(coded)
        found += [
            (weight.layer, f"groups of {_group(weight)} beside groups of {size}: {limits.name} has one size for all")
            for weight in coded
            if _group(weight) != size
        ]
    if limits.skips_by_part:
        floats = {weight.layer for weight in weights if not weight.embedding} - {weight.layer for weight in coded}
        found += [
            (weight.layer, f"its name has {name!r} in it, which stays in float: runtimes would take both for float")
            for weight in coded
            for name in sorted(floats)
            if name and name in weight.layer
        ]
    return found


def refuse(faults: Iterable[tuple[str, str]], limits: Limits) -> None:
    """Raise all reasons at once, each with its layers.

    Raises:
        UsageError: there is a reason.
    """
    layers: dict[str, list[str]] = {}
    for layer, reason in faults:
        layers.setdefault(reason, []).append(layer)
    if layers:
        raise UsageError(
            f"{limits.name} cannot hold this model: " + "; ".join(f"{why} ({_few(at)})" for why, at in layers.items()),
            where=_few(list(dict.fromkeys(name for names in layers.values() for name in names))),
            expected=f"linear layers with {_either(limits.bits)}-bit {'' if limits.zero_points else 'symmetric '}"
            "integer weights, a scale for each group of a row, inputs in float",
            try_="another format (compressed-tensors holds more kinds), or another scheme for these layers",
        )


def faults_of(weight: Destined, limits: Limits) -> list[str]:
    """Why a quantized weight does not fit, itself and apart from the others."""
    grid, shape = weight.grid, weight.shape
    assert grid is not None
    if len(shape) != 2 or weight.tensor != "weight":
        return [f"{weight.tensor} {list(shape)} is not the weight of a linear layer"]
    faults = _grid_faults(grid, limits)
    faults += [f"{n} {what} features are not a multiple of 32" for n, what in zip(shape, ("output", "input")) if n % 32]
    size = group_size(grid)
    if size not in limits.groups:
        faults.append(f"groups of {size}, not {_either(limits.groups)} (-1: a whole row)")
    elif size > 0 and shape[1] % size:
        faults.append(f"groups of {size} do not divide {shape[1]} input features")
    return faults


def group_size(grid: Grid) -> int:
    """Elements of a row that share a scale; -1 if all do."""
    return grid.group_size if grid.granularity is QSchemeType.per_group else -1


def usual_group(weights: Sequence[Destined]) -> int:
    """The group size most weights have."""
    return Counter(map(_group, weights)).most_common(1)[0][0] if weights else -1


def _grid_faults(grid: Grid, limits: Limits) -> list[str]:
    kind = grid.dtype
    if not kind.is_integer:
        return [f"{kind.name} values, not integers"]
    faults = [] if kind.bits in limits.bits else [f"{kind.bits}-bit codes, not {_either(limits.bits)}"]
    if grid.asymmetric and not limits.zero_points:
        faults.append("zero points: vLLM takes symmetric weights only (awq and compressed-tensors keep zero points)")
    elif grid.free_zero:
        faults.append("zero points that are not integers (float_zero)")
    rows = grid.granularity in (QSchemeType.per_group, QSchemeType.per_channel) and grid.axis in (0, -2)
    if not rows:
        faults.append(f"scales {grid.granularity.name} along axis {grid.axis}, not per group or row of the output")
    if grid.scale_type is ScaleType.float32 or grid.two_level:
        faults.append(f"{grid.scale_type.name} scales, which float16 cannot hold without changing values: {_EXACT}")
    return faults


def _input_faults(weight: Destined) -> list[str]:
    return [] if weight.input is None else ["a quantized input: only weights are codes in this format"]


def _group(weight: Destined) -> int:
    return -1 if weight.grid is None else group_size(weight.grid)


def _either(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:-1])) + f" or {values[-1]}" if len(values) > 1 else str(values[0])


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
