# SPDX-License-Identifier: Apache-2.0
"""Which fields of a `QuantizationSpec` contradict one another, which are missing, and which do not fit a slot.

Every rule looks only at fields that are set, so it holds for a complete spec and for one that overrides another. A
problem is a pair of the field and a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fewbit.numerics.dtypes import CodebookFormat, Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType

Fields = Mapping[str, Any]
Problem = tuple[str, str]

SLOTS = ("input_tensors", "output_tensors", "weight", "bias")
ACTIVATIONS = ("input_tensors", "output_tensors", "kv_cache")
_WITH_AXIS = (None, QSchemeType.per_channel, QSchemeType.per_group)


def element_dtype(fields: Fields) -> Dtype | None:
    """The type of one element, if it is known; `dtype` may name a block format."""
    dtype = fields.get("dtype")
    return BLOCK_FORMATS[dtype].element if isinstance(dtype, str) else dtype


def scale_type(fields: Fields) -> ScaleType | None:
    """The type of the scales, set or implied by a block format, if it is known."""
    dtype, kind = fields.get("dtype"), fields.get("scale_type")
    return BLOCK_FORMATS[dtype].scale_type if kind is None and isinstance(dtype, str) else kind


def fill(fields: Fields) -> dict[str, Any]:
    """Every field that matters, with its default if it is not set; `dtype` becomes the element's.

    Without `qscheme`, a `group_size` means groups, a `block_size` blocks, a `ch_axis` channels; else it is per tensor.
    """
    full = dict(fields)
    dtype = full.get("dtype")
    if isinstance(dtype, str):
        block = BLOCK_FORMATS[dtype]
        full = {"group_size": block.group_size, **full, "dtype": block.element, "scale_type": block.scale_type}
    element = element_dtype(full)
    hints = (("group_size", "per_group"), ("block_size", "per_block"), ("ch_axis", "per_channel"))
    scheme = full.setdefault("qscheme", QSchemeType[next((s for field, s in hints if field in full), "per_tensor")])
    full.setdefault("is_dynamic", scheme is QSchemeType.per_token)
    full.setdefault("symmetric", element is None or not element.is_integer or element.signed)
    full.setdefault("round_method", RoundType.half_even)
    full.setdefault("scale_type", ScaleType.float32)
    if scheme in _WITH_AXIS:
        full.setdefault("ch_axis", 0)
    if full["scale_type"] is ScaleType.float8_e8m0fnu:
        full.setdefault("scale_calculation_mode", ScaleMode.even)
    return full


def missing(fields: Fields) -> list[Problem]:
    """What a complete spec needs; `fields` as `fill` gives them."""
    problems = []
    if fields.get("dtype") is None:
        problems.append(("dtype", "no dtype here or in what it inherits from; expected one such as int8 or mxfp4"))
    if fields["qscheme"] is QSchemeType.per_group and "group_size" not in fields:
        problems.append(("group_size", "qscheme per_group without a group_size; expected an integer such as 32 or 128"))
    if fields["qscheme"] is QSchemeType.per_block and "block_size" not in fields:
        problems.append(("block_size", "qscheme per_block without a block_size; expected two, such as [128, 128]"))
    if "observer_parameters" in fields and "observer_cls" not in fields:
        problems.append(("observer_parameters", "parameters without an observer; expected observer_cls as well"))
    return problems


def contradictions(fields: Fields) -> list[Problem]:
    """What is wrong among the fields that are set."""
    return [*_granularity(fields), *_symmetry(fields), *_scales(fields), *_block_format(fields), *_cast(fields)]


def _granularity(fields: Fields) -> Iterator[Problem]:
    scheme = fields.get("qscheme")
    name = scheme.name if scheme else ""
    if "group_size" in fields and scheme not in (None, QSchemeType.per_group):
        yield "group_size", f"group_size {fields['group_size']} with qscheme {name}; expected qscheme per_group"
    if "block_size" in fields and scheme not in (None, QSchemeType.per_block):
        yield "block_size", f"block_size {list(fields['block_size'])} with qscheme {name}; expected qscheme per_block"
    if scheme is None and "group_size" in fields and "block_size" in fields:
        yield "block_size", "group_size and block_size; expected one of the two"
    if "ch_axis" in fields and (scheme not in _WITH_AXIS or "block_size" in fields):
        axis = f"ch_axis {fields['ch_axis']} with qscheme {name or 'per_block'}"
        yield "ch_axis", f"{axis}; expected qscheme per_channel or per_group"


def _symmetry(fields: Fields) -> Iterator[Problem]:
    element, symmetric = element_dtype(fields), fields.get("symmetric")
    if symmetric is False and element is not None and not element.is_integer:
        yield "symmetric", f"symmetric False with dtype {element.name}, which has no zero point"
    if fields.get("full_range"):
        kind, reason = scale_type(fields), "symmetric False" if symmetric is False else ""
        if element is not None and not (element.is_integer and element.signed):
            reason = f"dtype {element.name}"
        if kind is not None and not kind.signed:
            reason = f"scale_type {kind.name}, which has no sign"
        if reason:
            yield "full_range", f"full_range with {reason}; expected a symmetric, signed integer with signed scales"
    if fields.get("zero_point_type") == "float32":
        if symmetric:
            yield "zero_point_type", "a float zero point with symmetric True; expected symmetric False"
        elif element is not None and not element.is_integer:
            yield "zero_point_type", f"a float zero point with dtype {element.name}; expected an integer type"


def _scales(fields: Fields) -> Iterator[Problem]:
    kind, mode = scale_type(fields), fields.get("scale_calculation_mode")
    if mode is not None and kind not in (None, ScaleType.float8_e8m0fnu):
        text = f"scale_calculation_mode {mode.name} with scale_type {kind.name}"
        yield "scale_calculation_mode", f"{text}; expected float8_e8m0fnu, whose exponent it chooses"
    if mode is not None and fields.get("symmetric") is False:
        text = f"scale_calculation_mode {mode.name} with symmetric False"
        yield "scale_calculation_mode", f"{text}; expected symmetric True: it starts from the largest magnitude"


def _block_format(fields: Fields) -> Iterator[Problem]:
    dtype, scheme, kind = fields.get("dtype"), fields.get("qscheme"), fields.get("scale_type")
    if not isinstance(dtype, str):
        return
    block = BLOCK_FORMATS[dtype]
    if kind not in (None, block.scale_type):
        instead = f"dtype {block.element.name} with group_size {block.group_size} and this scale_type"
        yield "scale_type", f"scale_type {kind.name} with {dtype}, which has {block.scale_type.name}; try {instead}"
    if scheme not in (None, QSchemeType.per_group) or "block_size" in fields:
        other = f"qscheme {scheme.name}" if scheme else "a block_size"
        yield "qscheme", f"{dtype} with {other}; expected per_group: it is a format of groups"


def _cast(fields: Fields) -> Iterator[Problem]:
    dtype = fields.get("dtype")
    if not isinstance(dtype, Dtype) or not dtype.is_cast:
        return
    scaled = [name for name in ("group_size", "block_size", "ch_axis", "scale_calculation_mode") if name in fields]
    scaled += ["qscheme"] if fields.get("qscheme") not in (None, QSchemeType.per_tensor) else []
    scaled += ["scale_type"] if fields.get("scale_type") not in (None, ScaleType.float32) else []
    for name in scaled:
        yield name, f"{name} with dtype {dtype.name}, which is a plain cast without scales"


def misplaced(fields: Fields, slot: str) -> list[Problem]:
    """What cannot be in a slot of a layer: `input_tensors`, `output_tensors`, `weight`, `bias` or `kv_cache`."""
    problems = []
    if element_dtype(fields) is Dtype.int32 and slot != "bias":
        problems.append(("dtype", f"int32 for {slot}; expected 16 bits or fewer: int32 is for a bias"))
    if fields.get("is_scale_quant"):
        expected = "expected second in a list, after the spec whose scales it quantizes; try dtype nvfp4"
        problems.append(("is_scale_quant", f"a spec for scales alone; {expected}"))
    if slot in ACTIVATIONS:
        problems += _activation(fields)
        return problems + (list(_cache(fields)) if slot == "kv_cache" else [])
    grouped = fields.get("qscheme") is QSchemeType.per_group or isinstance(fields.get("dtype"), str)
    if (grouped or "group_size" in fields) and fields.get("ch_axis", 0) < 0:
        # Quark's ch_axis is the axis that groups run along, ours the one with a scale per index: the opposite.
        text = f"ch_axis {fields['ch_axis']} with groups, which Quark reads as the axis that groups run along"
        problems.append(("ch_axis", f"{text}; try 0: one scale per output and group of inputs, or 1: the other way"))
    return problems


def _activation(fields: Fields) -> Iterator[Problem]:
    element, observer = element_dtype(fields), fields.get("observer_cls")
    if element is not None and isinstance(element.value, CodebookFormat):
        yield "dtype", f"{element.name} for an activation; expected an integer or a float: codebooks are for weights"
    if fields.get("qscheme") is QSchemeType.per_token and fields.get("is_dynamic") is False:
        yield "is_dynamic", "per_token with is_dynamic False: tokens to come have no scales; expected is_dynamic True"
    if fields.get("is_dynamic") and observer not in (None, "min_max"):
        text = f"observer {observer} with is_dynamic True, where scales follow the extremes of each call"
        yield "observer_cls", f"{text}; expected min_max, or is_dynamic False"


def _cache(fields: Fields) -> Iterator[Problem]:
    element, scheme = element_dtype(fields), fields.get("qscheme")
    if not fields.get("is_dynamic") or (element is not None and element.is_cast):
        return
    if scheme not in (None, QSchemeType.per_token, QSchemeType.per_group):
        text = f"{scheme.name} with is_dynamic True: a new token would change those before it"
        yield "qscheme", f"{text}; expected per_token or per_group"
    if scale_type(fields) is ScaleType.float8_e4m3fn:
        text = "e4m3 scales with is_dynamic True: the global scale would change with each token"
        yield "scale_type", f"{text}; expected another scale_type"
