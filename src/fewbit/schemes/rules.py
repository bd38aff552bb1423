# SPDX-License-Identifier: Apache-2.0
"""Which fields of a scheme contradict one another, which are missing, and which do not fit a place.

Every rule looks only at fields that are set, so it holds for a whole scheme and for a few fields that override another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype, Table
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType, has_sign
from fewbit.schemes.faults import Fault
from fewbit.schemes.formats import FORMATS

Fields = Mapping[str, Any]

ACTIVATIONS = ("input_tensors", "output_tensors", "kv_cache")
_WITH_AXIS = (None, QSchemeType.per_channel, QSchemeType.per_group)


def element(fields: Fields) -> Dtype | None:
    """The type of one element, if it is known."""
    dtype = fields.get("dtype")
    return FORMATS[dtype].element if isinstance(dtype, str) else dtype


def fill(fields: Fields) -> dict[str, Any]:
    """Every field that matters, with the default where nothing was said; `dtype` is the element's type.

    Without `qscheme`, a `group_size` means groups, a `block_size` blocks, a `ch_axis` channels, else it is per tensor.
    """
    full = dict(fields)
    dtype = full.get("dtype")
    if isinstance(dtype, str):
        named = FORMATS[dtype]
        full = {"group_size": named.group_size, **full, "dtype": named.element, "scale_type": named.scale_type}
    number = element(full)
    signs = (("group_size", "per_group"), ("block_size", "per_block"), ("ch_axis", "per_channel"))
    guess = next((scheme for field, scheme in signs if field in full), "per_tensor")
    scheme = full.setdefault("qscheme", QSchemeType[guess])
    full.setdefault("is_dynamic", scheme is QSchemeType.per_token)
    full.setdefault("symmetric", number is None or not number.is_integer or number.signed)
    full.setdefault("round_method", RoundType.half_even)
    full.setdefault("scale_type", ScaleType.float32)
    if scheme in _WITH_AXIS:
        full.setdefault("ch_axis", 0)
    if full["scale_type"] is ScaleType.float8_e8m0fnu:
        full.setdefault("scale_calculation_mode", ScaleMode.even)
    return full


def contradictions(fields: Fields) -> list[Fault]:
    """Faults among the fields that are set."""
    return [*_of_granularity(fields), *_of_symmetry(fields), *_of_scales(fields), *_of_formats(fields)]


def missing(fields: Fields) -> list[Fault]:
    """What a whole scheme needs and does not have; `fields` as `fill` gives them."""
    faults = []
    if fields.get("dtype") is None:
        faults.append(Fault("dtype", "no dtype, here or in what it inherits from", "a type such as 'int8' or 'mxfp4'"))
    if fields["qscheme"] is QSchemeType.per_group and "group_size" not in fields:
        faults.append(Fault("group_size", "per_group without a group_size", "a whole number such as 32 or 128"))
    if fields["qscheme"] is QSchemeType.per_block and "block_size" not in fields:
        faults.append(Fault("block_size", "per_block without a block_size", "rows and columns, such as [128, 128]"))
    if "observer_parameters" in fields and "observer_cls" not in fields:
        faults.append(Fault("observer_parameters", "parameters without an observer", "observer_cls as well"))
    return faults


def misplaced(fields: Fields, slot: str) -> list[Fault]:
    """What cannot be in this place of a layer: `input_tensors`, `output_tensors`, `weight`, `bias` or `kv_cache`."""
    faults = []
    if element(fields) is Dtype.int32 and slot != "bias":
        faults.append(Fault("dtype", f"int32 for {slot}", "int32 for a bias only", "16 bits or fewer"))
    if fields.get("is_scale_quant"):
        expected = "this scheme second in a list, after the scheme whose scales it quantizes"
        faults.append(Fault("is_scale_quant", "a scheme for scales on its own", expected, "dtype='nvfp4'"))
    if slot in ACTIVATIONS:
        return faults + _of_activation(fields) + (_of_cache(fields) if slot == "kv_cache" else [])
    groups = fields.get("qscheme") is QSchemeType.per_group or isinstance(fields.get("dtype"), str)
    if (groups or "group_size" in fields) and fields.get("ch_axis", 0) < 0:
        # Quark's ch_axis is the axis that groups run along, ours the one that keeps a scale an index: -1 would be read
        # as the opposite of what was meant.
        found = f"ch_axis={fields['ch_axis']} with groups, which others read as the axis the groups run along"
        fix = "ch_axis=0: one scale for each output and group of inputs; ch_axis=1: the other way round"
        faults.append(Fault("ch_axis", found, "the axis that keeps a scale of its own for every index", fix))
    return faults


def _of_granularity(fields: Fields) -> list[Fault]:
    faults, scheme = [], fields.get("qscheme")
    name = scheme.name if scheme else ""
    if "group_size" in fields and scheme not in (None, QSchemeType.per_group):
        found = f"group_size={fields['group_size']} with qscheme={name}"
        faults.append(Fault("group_size", found, "qscheme=per_group, or no group_size"))
    if "block_size" in fields and scheme not in (None, QSchemeType.per_block):
        found = f"block_size={list(fields['block_size'])} with qscheme={name}"
        faults.append(Fault("block_size", found, "qscheme=per_block, or no block_size"))
    if scheme is None and "group_size" in fields and "block_size" in fields:
        faults.append(Fault("block_size", "a group_size and a block_size", "one of the two"))
    if "ch_axis" in fields and (scheme not in _WITH_AXIS or "block_size" in fields):
        found = f"ch_axis={fields['ch_axis']} with qscheme={name or 'per_block'}"
        faults.append(Fault("ch_axis", found, "qscheme=per_channel or per_group, or no ch_axis"))
    return faults


def _of_symmetry(fields: Fields) -> list[Fault]:
    faults, number = [], element(fields)
    if fields.get("symmetric") is False and number is not None and not number.is_integer:
        found = f"symmetric=False with dtype={number.name}, which has no zero point"
        faults.append(Fault("symmetric", found, "symmetric=True, or an integer type"))
    if fields.get("full_range"):
        why = "symmetric=False" if fields.get("symmetric") is False else None
        if number is not None and not (number.is_integer and number.signed):
            why = f"dtype={number.name}"
        scale = scale_type(fields)
        if scale is not None and not has_sign(scale):
            why = f"scale_type={scale.name}, which has no sign"
        if why:
            expected = "a signed integer, symmetric, with signed scales: the sign lends the lowest code to both ends"
            faults.append(Fault("full_range", f"full_range=True with {why}", expected))
    if fields.get("zero_point_type") == "float32":
        if fields.get("symmetric"):
            faults.append(Fault("zero_point_type", "a float zero point with symmetric=True", "symmetric=False"))
        elif number is not None and not number.is_integer:
            faults.append(Fault("zero_point_type", f"a float zero point with dtype={number.name}", "an integer type"))
    return faults


def _of_scales(fields: Fields) -> list[Fault]:
    faults, scale = [], scale_type(fields)
    mode = fields.get("scale_calculation_mode")
    if mode is not None and scale not in (None, ScaleType.float8_e8m0fnu):
        found = f"scale_calculation_mode={mode.name} with scale_type={scale.name}"
        faults.append(Fault("scale_calculation_mode", found, "scale_type=float8_e8m0fnu: it chooses an exponent"))
    if mode is not None and fields.get("symmetric") is False:
        found = f"scale_calculation_mode={mode.name} with symmetric=False"
        faults.append(Fault("scale_calculation_mode", found, "symmetric=True: it starts from the largest magnitude"))
    return faults


def _of_formats(fields: Fields) -> list[Fault]:
    faults, dtype, scheme = [], fields.get("dtype"), fields.get("qscheme")
    if isinstance(dtype, str):
        said = fields.get("scale_type")
        own = FORMATS[dtype].scale_type
        if said not in (None, own):
            found = f"scale_type={said.name} with dtype={dtype}, whose scales are {own.name}"
            fix = f"dtype='{FORMATS[dtype].element.name}', group_size={FORMATS[dtype].group_size} and this scale_type"
            faults.append(Fault("scale_type", found, "no scale_type", fix))
        if scheme not in (None, QSchemeType.per_group) or "block_size" in fields:
            found = f"dtype={dtype} with {f'qscheme={scheme.name}' if scheme else 'a block_size'}"
            faults.append(Fault("qscheme", found, "per_group: it is a format of groups"))
    if isinstance(dtype, Dtype) and dtype.is_cast:
        scaled = [n for n in ("group_size", "block_size", "ch_axis", "scale_calculation_mode") if n in fields]
        scaled += ["qscheme"] if scheme not in (None, QSchemeType.per_tensor) else []
        scaled += ["scale_type"] if fields.get("scale_type") not in (None, ScaleType.float32) else []
        faults += [Fault(n, f"{n} with dtype={dtype.name}, which is a plain cast", f"no {n}") for n in scaled]
    return faults


def _of_activation(fields: Fields) -> list[Fault]:
    faults, number, scheme = [], element(fields), fields.get("qscheme")
    if number is not None and isinstance(number.value, Table):
        found, expected = f"{number.name} for an activation", "an integer or a float type"
        faults.append(Fault("dtype", found, expected, "tables of values are for weights"))
    if scheme is QSchemeType.per_token and fields.get("is_dynamic") is False:
        found = "per_token with is_dynamic=False: tokens to come have no scales yet"
        faults.append(Fault("is_dynamic", found, "is_dynamic=True, or another qscheme"))
    observer = fields.get("observer_cls")
    if fields.get("is_dynamic") and observer not in (None, "min_max"):
        name = observer.__name__ if isinstance(observer, type) else observer
        found = f"observer {name} with is_dynamic=True: scales found in each call follow its smallest and largest value"
        faults.append(Fault("observer_cls", found, "min_max, no observer, or is_dynamic=False"))
    return faults


def _of_cache(fields: Fields) -> list[Fault]:
    number = element(fields)
    if not fields.get("is_dynamic") or (number is not None and number.is_cast):
        return []
    faults, scheme = [], fields.get("qscheme")
    if scheme not in (None, QSchemeType.per_token, QSchemeType.per_group):
        found = f"{scheme.name} with is_dynamic=True: a new token would change those before it"
        faults.append(Fault("qscheme", found, "per_token or per_group, or is_dynamic=False"))
    if scale_type(fields) is ScaleType.float8_e4m3fn:
        found = "e4m3 scales with is_dynamic=True: the scale above them would change with each token"
        faults.append(Fault("scale_type", found, "another scale_type, or is_dynamic=False"))
    return faults


def scale_type(fields: Fields) -> ScaleType | None:
    """The type of the scales, said or implied by a block format, if it is known."""
    dtype = fields.get("dtype")
    said: ScaleType | None = fields.get("scale_type")
    return FORMATS[dtype].scale_type if said is None and isinstance(dtype, str) else said
