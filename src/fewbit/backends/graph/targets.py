# SPDX-License-Identifier: Apache-2.0
"""What each runtime computes in integers, and what it costs there: the rules that placement follows.

Costs are nanoseconds on one core with AVX-512 VNNI, read off the profile of single nodes in ONNX Runtime 1.31. Only
their proportions matter, and they are constants, so that a model comes out the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil

from fewbit.backends.graph.units import Unit
from fewbit.errors import UsageError, nearest

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """How much there is to do in a unit.

    Args:
        kind: of the unit.
        out: elements it gives.
        reads: elements it reads.
        deep: multiplications for each element it gives.
        channels: output channels.
        depthwise: whether each channel is convolved by itself.
    """

    kind: str
    out: int
    reads: int
    deep: int = 0
    channels: int = 0
    depthwise: bool = False


Cost = Callable[[Work], float]


@dataclass(frozen=True)
class Target:
    """A runtime.

    Args:
        name: as `target=` says it.
        integer: the kinds of unit it computes in integers, with what that costs.
        floating: what a unit costs in float.
        to_codes: what making codes of one float costs.
        from_codes: what making a float of one code costs.
        both_ways: kinds that can give floats as cheaply as codes.
        layout: what either costs more for pictures, whose channels lie elsewhere in the kernels of the other kind.
        unfused: what an activation function costs more in float, an element, if the convolution before is not in float.
        clips_codes: whether it has a Clip for codes; if not, clipping is left to the kernel before.
        clips_floats: whether its integer kernels clip what they give as floats.
        rounds_weights: whether it makes integers of a float layer between codes; see `guarding`.
    """

    name: str
    integer: Mapping[str, Cost]
    floating: Cost
    to_codes: float
    from_codes: float
    both_ways: frozenset[str] = frozenset()
    layout: float = 0.0
    unfused: Mapping[str, float] = field(default_factory=dict)
    clips_codes: bool = False
    rounds_weights: bool = False
    clips_floats: bool = True

    def gives_floats(self, unit: Unit) -> bool:
        """Whether a unit in integers can give floats as cheaply as codes."""
        return unit.kind in self.both_ways and (self.clips_floats or (unit.ends is None and not unit.cut))


def _per_element(cost: float) -> Cost:
    return lambda work: cost * work.out


def _padded(channels: int) -> float:
    """Vectors hold sixteen channels: what fewer cost more."""
    return ceil(channels / 16) * 16 / max(channels, 1)


def _float(work: Work) -> float:
    if work.kind in ("conv", "conv_transpose", "linear", "product"):
        if work.depthwise:
            return (0.05 + 0.021 * work.deep) * work.out
        return (0.0176 * work.deep * (_padded(work.channels) if work.kind == "conv" else 1.0) + 0.03) * work.out
    each = {
        "hard_swish": 0.06, "affine": 0.12, "add": 0.14, "mul": 0.14, "sigmoid": 0.28, "leaky_relu": 0.15,
        "hard_sigmoid": 0.14, "concat": 0.13, "pass": 0.05, "average_pool": 0.2,
    }  # fmt: skip
    if work.kind == "global_average_pool":
        return 0.1 * work.reads
    return each.get(work.kind, 0.15) * work.out


def _int8_conv(work: Work) -> float:
    if work.depthwise:
        return (0.042 if work.channels >= 64 else 0.09) * work.deep * work.out
    return (0.0045 * work.deep + 0.13) * work.out


def _int8_linear(work: Work) -> float:
    return (0.0048 * work.deep + 0.1) * work.out


ONNXRUNTIME = Target(
    "onnxruntime",
    {
        "conv": _int8_conv,
        "linear": _int8_linear,
        "product": _int8_linear,
        "hard_swish": _per_element(0.32),
        "hard_sigmoid": _per_element(0.1),
        "affine": _per_element(0.0),
        "add": _per_element(0.14),
        "mul": _per_element(0.21),
        "sigmoid": _per_element(0.23),
        "leaky_relu": _per_element(0.23),
        "concat": _per_element(0.3),
        "global_average_pool": lambda work: 0.08 * work.reads,
        "pass": lambda work: 0.05 * work.out,
    },
    _float,
    to_codes=0.1,
    from_codes=0.1,
    layout=0.15,
    unfused={"hard_swish": 0.25, "sigmoid": 0.2, "leaky_relu": 0.15, "hard_sigmoid": 0.1},
    both_ways=frozenset({"linear", "product"}),
    clips_floats=False,  # a Gemm and the Relu behind it are one kernel, which has no integers
    clips_codes=True,
    rounds_weights=True,
)

_FUSED = _per_element(0.02)
OPENVINO = Target(
    "openvino",
    {
        **dict.fromkeys(("conv", "conv_transpose", "linear"), lambda work: 0.3 * _float(work)),
        **dict.fromkeys(("add", "mul", "concat", "pass", "global_average_pool", "average_pool"), _FUSED),
    },
    _float,
    to_codes=0.05,
    from_codes=0.05,
    both_ways=frozenset({"linear", "conv", "conv_transpose", "add", "mul", "global_average_pool", "average_pool"}),
)
GENERIC = Target("generic", OPENVINO.integer, _float, OPENVINO.to_codes, OPENVINO.from_codes, frozenset({"linear"}))
TARGETS = {target.name: target for target in (ONNXRUNTIME, OPENVINO, GENERIC)}


def target_of(name: str | None) -> Target:
    """The target of a name; ONNX Runtime by default.

    Raises:
        UsageError: there is none of this name.
    """
    if name is None:
        return ONNXRUNTIME
    if name not in TARGETS:
        raise UsageError(f"target {name!r} for an ONNX model", where="target", expected=nearest(name, TARGETS))
    return TARGETS[name]


def crossing(target: Target, each: float, shape: Shape) -> float:
    """What making codes or floats of a value costs."""
    return elements(shape) * (each + (target.layout if len(shape) > 3 else 0.0))


def work_of(unit: Unit, shapes: Mapping[str, Shape]) -> Work:
    """How much there is to do in a unit, from the shapes one sample gives its values."""
    out = elements(shapes.get(unit.out.name or "", ()))
    reads = sum(elements(shapes.get(value.name or "", ())) for value in unit.reads)
    if unit.layer is not None:
        weight = unit.layer.weight_value.const_value
        assert weight is not None
        sides = [int(str(side)) for side in weight.shape]
        total, groups = elements(tuple(sides)), unit.layer.groups
        channels = _channels(sides, unit)
        if unit.kind == "conv_transpose":
            # Every input meets the whole kernel once, whatever the stride.
            deep = total // max(sides[0], 1) * reads // max(out, 1)
        else:
            deep = total // max(channels, 1)
        return Work(unit.kind, out, reads, deep, channels, groups > 1 and groups == channels)
    if unit.kind == "product":
        shape = shapes.get(unit.reads[0].name or "", (1,))
        return Work(unit.kind, out, reads, shape[-1] if shape else 1)
    return Work(unit.kind, out, reads)


def _channels(sides: list[int], unit: Unit) -> int:
    assert unit.layer is not None
    if unit.kind == "conv_transpose":
        return sides[1] * unit.layer.groups
    return sides[unit.layer.axes[0]]


def elements(shape: Shape) -> int:
    """How many elements a shape has."""
    count = 1
    for side in shape:
        count *= side
    return count
