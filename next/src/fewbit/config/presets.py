# SPDX-License-Identifier: Apache-2.0
"""Presets: number formats by name.

A canonical name says exactly what becomes of weights and activations: `w4a16g32` has 4-bit weights in groups of 32 and
leaves activations in the float type of the model. An alias says how small (`int8`, `int4`, `fp8`); a target resolves
it. Scales of groups are bfloat16: half the bytes of float32 without losing range, and exact in every type that readers
store scales in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from fewbit.errors import UsageError, nearest

Fields = Mapping[str, Any]
"""Of a `QuantizationSpec`, as plain data: names of presets are read before anything heavy is imported."""

GROUP_SIZES = (128, 64, 32)
"""Tried in this order if a preset in groups does not name a size: the first that divides the inputs of every layer."""
_CHANNELS = {"qscheme": "per_channel", "ch_axis": 0, "scale_type": "float32"}
_FP8_TENSOR = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
_FP8_CHANNEL = {"dtype": "fp8_e4m3", **_CHANNELS}


def _in_both(dtype: str) -> dict[str, Fields]:
    return {"weight": {"dtype": dtype}, "input_tensors": {"dtype": dtype, "is_dynamic": True}}


FLOAT_PRESETS: dict[str, tuple[str, dict[str, Fields]]] = {
    "fp8_static": ("static fp8 weights and activations", {"weight": _FP8_TENSOR, "input_tensors": _FP8_TENSOR}),
    "fp8_dynamic": (
        "fp8 weights and activations, scales per token computed in each call",
        {"weight": _FP8_CHANNEL, "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_token", "is_dynamic": True}},
    ),
    "fp8_block": (
        "fp8 weights in blocks of 128 x 128, activations in groups of 128",
        {
            "weight": {"dtype": "fp8_e4m3", "qscheme": "per_block", "block_size": (128, 128)},
            "input_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_group", "group_size": 128, "is_dynamic": True},
        },
    ),
    "fp8_a16": ("fp8 weights only", {"weight": _FP8_CHANNEL}),
    "mxfp4": ("OCP MXFP4 weights and activations: groups of 32 with a power of two", _in_both("mxfp4")),
    "mxfp4_a16": ("OCP MXFP4 weights only", {"weight": {"dtype": "mxfp4"}}),
    "mxfp6": ("OCP MXFP6 weights and activations, e2m3 elements", _in_both("mxfp6_e2m3")),
    "mxfp8": ("OCP MXFP8 weights and activations, e4m3 elements", _in_both("mxfp8_e4m3")),
    "mxfp8_a16": ("OCP MXFP8 weights only", {"weight": {"dtype": "mxfp8_e4m3"}}),
    "nvfp4": ("NVFP4 weights and activations: groups of 16 with e4m3 scales under one float32", _in_both("nvfp4")),
    "nvfp4_a16": ("NVFP4 weights only", {"weight": {"dtype": "nvfp4"}}),
    "nf4": (
        "4-bit weights only, the sixteen quantiles of QLoRA in groups of 64",
        {"weight": {"dtype": "nf4", "qscheme": "per_group", "ch_axis": 0, "group_size": 64, "scale_type": "bfloat16"}},
    ),
    "fp16": ("weights as float16", {"weight": {"dtype": "float16"}}),
    "bf16": ("weights as bfloat16", {"weight": {"dtype": "bfloat16"}}),
}
"""Canonical name: what it means, and the specs."""

GGUF_PRESETS = {
    "q8_0": 8, "q6_k": 6, "q5_k_m": 5, "q4_k_m": 4, "q4_k_s": 4, "q4_0": 4, "q4_1": 4, "q3_k_m": 3, "q2_k": 2,
}  # fmt: skip
"""Types of llama.cpp and their nominal bits; the GGUF writer quantizes to them."""

TARGET_ALIASES = {"int8": "w8a8", "int4": "w4a16", "int3": "w3a16", "int2": "w2a16", "fp8": "fp8_dynamic"}
"""How small, and what that is without a target; targets have their own answers."""

ALIASES = {
    "int8_sym": "w8a16", "int8_wo": "w8a16", "w8": "w8a16", "8bit": "w8a16",
    "int8_asym": "w8a16_asym", "uint8": "w8a16_asym",
    "int4_sym": "w4a16", "int4_wo": "w4a16", "4bit": "w4a16", "w4": "w4a16",
    "int4_asym": "w4a16_asym", "uint4": "w4a16_asym",
    "int3_sym": "w3a16", "int2_sym": "w2a16",
    "int8_dynamic": "w8a8_dynamic", "performance": "w8a8_symmetric", "mixed": "w8a8",
    "half": "fp16", "float16": "fp16", "f16": "fp16", "bfloat16": "bf16",
    "mxfp8_e4m3": "mxfp8", "f8e4m3": "fp8", "float8": "fp8", "fp8_e4m3": "fp8",
    "q4_k": "q4_k_m", "q5_k": "q5_k_m", "q3_k": "q3_k_m",
}  # fmt: skip
"""Other ways to write a preset, and what they become for every target."""

_BLOCK_GROUPS = {"mxfp4": 32, "mxfp6_e2m3": 32, "mxfp8_e4m3": 32, "nvfp4": 16}
_INTEGERS = re.compile(r"w([2-8])a(16|8|4)(?:_?g(-1|\d+))?(_asym)?(_dynamic|_symmetric)?(?:_?g(-1|\d+))?")


@dataclass(frozen=True)
class Preset:
    """A canonical preset.

    Args:
        name: `w4a16g32`.
        meaning: for the start lines of a run: "4-bit weights only".
        weight_bits: of one stored weight.
        slots: the fields of the specs for `weight` and `input_tensors`; none for types of GGUF.
        chooses_group: whether the size of groups may follow the model, see `GROUP_SIZES`.
    """

    name: str
    meaning: str
    weight_bits: int
    slots: Fields
    chooses_group: bool = False

    @property
    def weights_only(self) -> bool:
        """Whether activations stay in float."""
        return "input_tensors" not in self.slots

    @property
    def is_gguf(self) -> bool:
        """Whether it is a type of llama.cpp, which only `--format gguf` can store."""
        return self.name in GGUF_PRESETS

    @property
    def needs_data(self) -> bool:
        """Whether ranges of activations come from calibration data."""
        return not self.weights_only and not self.slots["input_tensors"].get("is_dynamic")

    @property
    def group_size(self) -> int | None:
        """Weights that share a scale, if they are in groups."""
        weight = self.slots.get("weight", {})
        size: int | None = weight.get("group_size", _BLOCK_GROUPS.get(weight.get("dtype")))
        return size

    def with_group_size(self, size: int) -> Preset:
        """The same with groups of another size; -1 is a complete channel.

        >>> parse_preset("w4a16").with_group_size(64).name
        'w4a16g64'
        """
        if match := _INTEGERS.fullmatch(self.name):
            return parse_preset(f"w{match[1]}a{match[2]}g{size}{match[4] or ''}{match[5] or ''}")
        weight = {name: value for name, value in self.slots.get("weight", {}).items() if name != "block_size"}
        weight |= {"group_size": size} | ({"qscheme": "per_group", "ch_axis": 0} if "qscheme" in weight else {})
        return replace(self, slots={**self.slots, "weight": weight})


def parse_preset(name: str) -> Preset:
    """Read a preset; aliases that targets resolve become what they are without a target.

    Raises:
        UsageError: no such preset, with near names.

    >>> parse_preset("W4A16-G32").name, parse_preset("int8_sym").meaning, parse_preset("w4a8").name
    ('w4a16g32', '8-bit weights only', 'w4a8_dynamic')
    """
    key = canonical_name(name)
    key = TARGET_ALIASES.get(key, key)
    if key in FLOAT_PRESETS:
        meaning, slots = FLOAT_PRESETS[key]
        bits = next(int(digits) for digits in re.findall(r"\d+", str(slots["weight"]["dtype"])))
        return Preset(key, meaning, bits, slots)
    if key in GGUF_PRESETS:
        return Preset(key, f"{GGUF_PRESETS[key]}-bit weights only, a GGUF type", GGUF_PRESETS[key], {})
    match = _INTEGERS.fullmatch(key)
    assert match is not None, key
    return _integer_preset(key, match)


def canonical_name(name: str) -> str:
    """The canonical name of a preset, or one of `TARGET_ALIASES`; case, `-` and `.` do not matter.

    >>> canonical_name("Q4_K"), canonical_name("INT4-SYM"), canonical_name("w8a8-dynamic"), canonical_name("int8")
    ('q4_k_m', 'w4a16', 'w8a8_dynamic', 'int8')
    """
    key = re.sub(r"(?<!g)[-. ]", "_", str(getattr(name, "value", name)).strip().lower())
    key = ALIASES.get(key, key)
    if key in TARGET_ALIASES or key in FLOAT_PRESETS or key in GGUF_PRESETS:
        return key
    if match := _INTEGERS.fullmatch(key):
        bits, activations, first, asymmetric, kind, last = match.groups()
        if activations == "16" and kind:
            similar = [f"w{bits}a16", f"w{bits}a8_dynamic"]
            raise _unknown(f"no preset is called {name!r}: activations in float have no scales", similar)
        if activations != "16" and bits != "8":
            kind = "_dynamic"  # the only kernels there are: integers per token
        group = first or last
        size = f"g{int(group)}" if group else ""
        return f"w{bits}a{activations}{size}{asymmetric or ''}{kind or ''}"
    if key in ("gptq", "awq"):
        raise UsageError(
            f"{name!r} is an algorithm or a file format, no preset", code="preset-algorithm", param="preset",
            expected="a number format such as w4a16", hint=f"{{preset=w4a16}} {{algorithm={key}}}, or {{format={key}}}",
        )  # fmt: skip
    if key == "fp4":
        raise _unknown("fp4 has several formats", ["nvfp4", "mxfp4"], code="preset-ambiguous")
    raise _unknown(f"no preset is called {name!r}", nearest(key, preset_names()))


def preset_names() -> list[str]:
    """Aliases, then canonical names; any `w<bits>a<bits>` with `g<size>`, `_asym` or `_dynamic` exists too.

    >>> "w4a16" in preset_names()
    True
    """
    integers = ["w8a8", "w8a8_dynamic", "w8a16", "w8a16_asym", "w4a16", "w4a16_asym", "w4a8_dynamic", "w3a16", "w2a16"]
    return [*TARGET_ALIASES, *integers, *FLOAT_PRESETS, *GGUF_PRESETS]


def presets_for_bits(preset: str | Sequence[str] | None, bits: float) -> tuple[str, ...]:
    """The presets that layers choose from so that weights have `bits` on average; one if it is its own width.

    Args:
        preset: one, of whose family others may be taken; several, narrowest first in the result; or `None`.
        bits: on average, scales included.

    Raises:
        UsageError: a number that cannot be, or a preset that has no narrower or wider relatives.

    >>> presets_for_bits(None, 4.5)
    ('w2a16', 'w3a16', 'w4a16', 'w8a16')
    """
    if isinstance(bits, bool) or not isinstance(bits, int | float) or not 1 < bits <= 16:
        raise UsageError(
            f"{bits!r} bits per weight", code="preset-bits", param="bits", expected="a number from 2 to 8",
            hint="{bits=4.5}",
        )  # fmt: skip
    if isinstance(preset, str) and "," in preset:
        preset = preset.split(",")
    if preset is not None and not isinstance(preset, str):
        presets = {parse_preset(name).name: parse_preset(name).weight_bits for name in preset}
        if len(presets) > 1:
            return tuple(sorted(presets, key=lambda name: presets[name]))
        preset = next(iter(presets), None)
    if preset is None:
        own = f"w{int(bits)}a16"
        return (own,) if bits == int(bits) and own in _FAMILIES[0] else _FAMILIES[0]
    chosen = parse_preset(preset)
    if chosen.weight_bits == bits:
        return (chosen.name,)
    family = next((family for family in _FAMILIES if chosen.name in family), None)
    if family is None or (bits == int(bits) and bits in (2, 3, 4, 8)):
        raise UsageError(
            f"{bits:g} bits per weight with {chosen.name}, which has {chosen.weight_bits}", code="preset-bits",
            param="bits", expected="one of the two, or several presets to choose from",
            hint=f"{{preset={chosen.name},w8a16}} {{bits={bits:g}}}",
        )  # fmt: skip
    return family


_FAMILIES = (("w2a16", "w3a16", "w4a16", "w8a16"), ("w4a16_asym", "w8a16_asym"))


class CompressWeightsMode(Enum):
    """NNCF's weight modes."""

    INT8_SYM = "int8_sym"
    INT8_ASYM = "int8_asym"
    INT4_SYM = "int4_sym"
    INT4_ASYM = "int4_asym"
    INT3_SYM = "int3_sym"
    INT2_SYM = "int2_sym"
    NF4 = "nf4"
    FP8_E4M3 = "fp8_e4m3"
    MXFP4 = "mxfp4"
    MXFP8_E4M3 = "mxfp8_e4m3"
    NVFP4 = "nvfp4"


def preset_for_mode(mode: str | Enum) -> str:
    """The weight-only preset of an NNCF mode, given as a member of any enum or its text.

    >>> preset_for_mode(CompressWeightsMode.INT4_SYM), preset_for_mode("MXFP4"), preset_for_mode("int8")
    ('w4a16', 'mxfp4_a16', 'w8a16_asym')
    """
    key = str(mode.value if isinstance(mode, Enum) else mode).lower()
    if "codebook" in key or key.startswith("cb4"):
        raise UsageError(
            f"the mode {key!r}: no runtime here reads a model's own codebook", code="preset-mode", param="preset",
            expected=", ".join(member.value for member in CompressWeightsMode), hint="{preset=nf4}",
        )  # fmt: skip
    return _MODE_PRESETS[key] if key in _MODE_PRESETS else parse_preset(key).name


_MODE_PRESETS = {
    "int8": "w8a16_asym", "e2m1": "mxfp4_a16", "mxfp4": "mxfp4_a16", "mxfp8_e4m3": "mxfp8_a16", "mxfp8": "mxfp8_a16",
    "nvfp4": "nvfp4_a16", "fp4": "nvfp4_a16", "fp8_e4m3": "fp8_a16",
}  # fmt: skip
"""Modes are for weights only; presets of the same name may include activations."""


def _integer_preset(name: str, match: re.Match[str]) -> Preset:
    bits, activations, asymmetric, kind = int(match[1]), int(match[2]), bool(match[4]), match[5]
    group = int(match[3]) if match[3] else None
    weight: dict[str, Any] = {"dtype": f"{'uint' if asymmetric else 'int'}{bits}", "symmetric": not asymmetric}
    if activations == 16 and not asymmetric and bits < 8:
        weight["full_range"] = True  # the sign of the scale gives both ends all integers
    if group is None and bits == 8:
        weight |= _CHANNELS
    else:
        size = group or (32 if bits < 4 else GROUP_SIZES[0])
        weight |= {"qscheme": "per_group", "ch_axis": 0, "group_size": size, "scale_type": "bfloat16"}
    slots: dict[str, Fields] = {"weight": weight}
    meaning = f"{bits}-bit weights only"
    if activations < 16:
        static = {"qscheme": "per_tensor", "symmetric": kind == "_symmetric", "is_dynamic": False}
        dynamic = {"qscheme": "per_token", "symmetric": True, "is_dynamic": True}
        slots["input_tensors"] = {"dtype": f"int{activations}", **(dynamic if kind == "_dynamic" else static)}
        types = f"int{bits} weights and" + (f" int{activations}" if activations != bits else "") + " activations"
        meaning = f"{types}, scales per token computed in each call" if kind == "_dynamic" else f"static {types}"
    return Preset(name, meaning, bits, slots, chooses_group=group is None and "group_size" in weight and bits == 4)


def _unknown(what: str, similar: Sequence[str], code: str = "preset-unknown") -> UsageError:
    return UsageError(
        what, code=code, param="preset", expected=", ".join(similar) or "int8, int4, fp8, w4a16, q4_k_m ...",
        hint=f"{{preset={similar[0]}}}" if similar else "`fewbit list presets` lists all",
    )  # fmt: skip
