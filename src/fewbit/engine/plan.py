# SPDX-License-Identifier: Apache-2.0
"""The plan: which point gets which scheme by which algorithm, and what it will cost; made before any data is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

import orjson

from fewbit.algorithms._members import Algorithm
from fewbit.engine import plan_text
from fewbit.model.points import Point, Role
from fewbit.numerics.blocks import Blocks
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.packing import is_packed
from fewbit.numerics.scales import ScaleType, is_power
from fewbit.numerics.sparsity import Pattern
from fewbit.schemes.config import Config
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
        parameters: of the algorithm.
        why: where in the configuration the scheme came from.
        pattern: which of its elements may be zero, and how many are; none where nothing is asked to be.
    """

    point: Point
    spec: QuantizationSpec
    grid: Grid
    block: tuple[int, ...]
    algorithm: Algorithm
    parameters: Mapping[str, Any]
    why: str
    pattern: Pattern | None = None

    @property
    def stays_float(self) -> bool:
        """Whether it is a float weight afterwards too, with zeros in it."""
        return self.pattern is not None and self.grid.dtype is Dtype.float32

    @property
    def bytes_before(self) -> int:
        """Bytes of the float weight."""
        return self.point.elements * bytes_of(self.point.dtype)

    @property
    def bytes_after(self) -> int:
        """Bytes of codes, scales and zero points; zeros are counted like others."""
        if self.stays_float:
            return self.bytes_before
        return stored_bytes(self.grid, self.point.shape, self.block)


@dataclass(frozen=True)
class ActivationPlan:
    """What one activation becomes: scales found at run time (`dynamic`), or beforehand by an observer.

    Args:
        point: the activation.
        spec: the scheme.
        grid: the scheme as a grid.
        dynamic: whether scales are found in each call.
        why: where in the configuration the scheme came from.
        is_cache: whether it is for a cache of keys and values.
        read_as: the grid that the runtime has for it, where that is another than the scheme's.
    """

    point: Point
    spec: QuantizationSpec
    grid: Grid
    dynamic: bool
    why: str
    is_cache: bool = False
    read_as: Grid | None = None

    @property
    def static(self) -> bool:
        """Whether its scales need data."""
        return not (self.dynamic or self.grid.dtype.is_cast)

    @property
    def text(self) -> str:
        """What it becomes, in a few words."""
        return describe(self.read_as or self.grid, dynamic=self.dynamic)


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
        facts: more that is known of it, under names of their own in the JSON.
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
        return tuple(a for a in self.activations if a.static)

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
        """What becomes of every weight and of what its layer reads, of other activations, and what stays in float."""
        reads = {a.point.layer: a for a in self.activations if a.point.role is Role.input}
        weighed = {w.point.layer for w in self.weights}
        for w in self.weights:
            reading = reads.get(w.point.layer)
            yield {
                "layer": w.point.layer,
                "tensor": w.point.tensor,
                "op": w.point.op.name,
                "shape": list(w.point.shape),
                "weight": describe(w.grid),
                "input": None if reading is None else reading.text,
                "algorithm": w.algorithm.name,
                "bytes_before": w.bytes_before,
                "bytes_after": w.bytes_after,
                "why": w.why,
                "tied": list(w.point.users[1:]),
            }
        for a in self.activations:
            if a.point.role is not Role.input or a.point.layer not in weighed:
                yield {"layer": a.point.layer, "activation": a.point.role.value, "scheme": a.text, "why": a.why}
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


def describe(grid: Grid, *, dynamic: bool | None = None) -> str:
    """A grid in a few words.

    >>> from fewbit.numerics.blocks import QSchemeType
    >>> from fewbit.numerics.dtypes import Dtype
    >>> describe(Grid(Dtype.uint4, QSchemeType.per_group, group_size=32, symmetric=False))
    'uint4 asym per group of 32'
    """
    words = [grid.dtype.name]
    if grid.dtype.is_cast:
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


def bytes_of(dtype: str) -> int:
    """Bytes of one float of a dtype, by its name."""
    return _BYTES.get(dtype, 4)


def stored_bytes(grid: Grid, shape: tuple[int, ...], block: tuple[int, ...]) -> int:
    """The bytes of a quantized tensor: codes, scales, zero points, the scale above them.

    >>> from fewbit.numerics.dtypes import Dtype
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
