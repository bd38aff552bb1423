# SPDX-License-Identifier: Apache-2.0
"""What bench/language.py compares: the formats, and the ways each side has to get there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A format every side is asked for.

    Args:
        title: for the table.
        group: features that share a scale.
        levels: values a group may have; none if that is no test of it.
        rounds_inputs: whether activations are rounded too. The side's own model is judged then, else its weights in the
            plain model.
    """

    title: str
    group: int
    levels: int | None = None
    rounds_inputs: bool = False


FORMATS = {
    "w4g64": Format("int4, groups of 64", 64, 16),
    "w4g32": Format("int4, groups of 32", 32, 16),
    "w3g64": Format("int3, groups of 64", 64, 8),
    "w2g64": Format("int2, groups of 64", 64, 4),
    "mxfp4": Format("MXFP4 weights", 32, 15),
    "nvfp4": Format("NVFP4 weights", 16, 15),
    "w8a8": Format("int8 weights and activations, dynamic", 0, rounds_inputs=True),
    "fp8": Format("fp8 weights and activations, dynamic", 0, rounds_inputs=True),
    "mxfp4_a4": Format("MXFP4 weights and activations", 32, rounds_inputs=True),
    "nvfp4_a4": Format("NVFP4 weights and activations", 16, rounds_inputs=True),
}
_INTS = ("w4g64", "w4g32", "w3g64", "w2g64")
_WEIGHTS = (*_INTS, "mxfp4", "nvfp4")
_ALL = tuple(FORMATS)

# side -> way -> formats; the first side is ours. Plain rounding (`rtn`) says where everybody starts.
SIDES: dict[str, dict[str, tuple[str, ...]]] = {
    "fewbit": {"auto": _ALL},
    "autoround": {
        "50": _ALL,
        "200": _ALL,
        "v2": _WEIGHTS,
        "50_eager": ("w4g64",),
        "200_eager": ("w4g64",),
    },
    "llmcompressor": {
        "rtn": _ALL,
        "gptq": (*_WEIGHTS, "w8a8", "fp8", "mxfp4_a4", "nvfp4_a4"),
        "gptq_mse": (*_INTS, "w8a8"),
        "awq": _WEIGHTS,
    },
    "quark": {
        "rtn": _ALL,
        "gptq": (*_WEIGHTS, "w8a8", "fp8", "mxfp4_a4"),
        "gptaq": _WEIGHTS,
        "qronos": _WEIGHTS,
        "awq": _WEIGHTS,
    },
    "hqq": {"hqq": _INTS},
    "torchao": {"rtn": _ALL, "hqq": _INTS},
}
NAMES = {
    "fewbit": "fewbit",
    "autoround": "auto-round",
    "llmcompressor": "llm-compressor",
    "quark": "Quark",
    "hqq": "hqq",
    "torchao": "torchao",
}


def chosen(asked: list[str]) -> list[tuple[str, str]]:
    """The ways that are asked for: `SIDE` for all of a side, `SIDE:WAY` for one.

    >>> chosen(["hqq", "autoround:50"])
    [('hqq', 'hqq'), ('autoround', '50')]
    """
    found: list[tuple[str, str]] = []
    for one in asked:
        side, _, way = one.partition(":")
        if side not in SIDES:
            raise SystemExit(f"there is no side {side!r}; there are {', '.join(SIDES)}")
        if way and way not in SIDES[side] and side != "fewbit":  # ours takes any algorithm it has
            raise SystemExit(f"{side} has no way {way!r}; it has {', '.join(SIDES[side])}")
        found += [(side, way)] if way else [(side, way) for way in SIDES[side]]
    return found


def applies(side: str, way: str, format: str) -> bool:
    """Whether a side has this way to a format."""
    return format in SIDES[side].get(way, _ALL)
