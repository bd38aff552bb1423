# SPDX-License-Identifier: Apache-2.0
"""`QuantizationSpec`: what one tensor becomes."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, Strict, model_validator

from fewbit import registry
from fewbit.config import rules
from fewbit.errors import nearest
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import BLOCK_FORMATS, QuantizationGrid
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType
from fewbit.settings import FrozenMapping, Problem, Settings, SettingsError, named, wrong

DTYPE_ALIASES = {
    "fp8": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2", "fp4_e2m1": "fp4", "fp16": "float16",
    "bf16": "bfloat16", "mxfp6": "mxfp6_e2m3", "mxfp8": "mxfp8_e4m3",
}  # fmt: skip
"""Other ways to write a type: those of torch and of Quark."""
SCALE_FORMATS = {
    "e8m0": ScaleType.float8_e8m0fnu,
    "e4m3": ScaleType.float8_e4m3fn,
    "e5m3": ScaleType.float8_e5m3,
    "float32": ScaleType.float32,
}
"""Quark's words for a scale type."""
MX_ELEMENTS = {block.element: name for name, block in BLOCK_FORMATS.items() if name.startswith("mx")}
_OBSERVER_CLASS = re.compile(r"(?:Per(Tensor|Channel|Group|Block|Token))?(\w+?)(?:Observer)?")
_RANGE_FIELDS = ("observer_cls", "observer_parameters", "algorithm")
"""How scales are computed: inherited together or not at all."""
_FORMAT_FIELDS = ("qscheme", "group_size", "block_size", "symmetric", "scale_type")
"""What the name of a block format replaces."""


def _read_dtype(value: Any) -> Dtype | str:
    name = value.name if isinstance(value, Enum) else str(value).rpartition(".")[2]
    name = DTYPE_ALIASES.get(name, name)
    if name in BLOCK_FORMATS or name == "mx":
        return name
    if name in Dtype.__members__:
        return Dtype[name]
    raise wrong(f"unknown dtype {name!r}; {_did_you_mean(name, [*Dtype.__members__, *BLOCK_FORMATS])}")


def _read_observer(value: Any) -> str:
    """The name of an observer; classes of fewbit are known by their names, others by where they are defined."""
    if isinstance(value, type):
        if value.__module__.startswith("fewbit.observers"):
            return str(getattr(value, "name", None) or _snake_case(value.__name__))
        if "<locals>" in value.__qualname__:
            raise wrong(f"the class {value.__qualname__} cannot be found by its name; expected one outside functions")
        return f"{value.__module__}:{value.__qualname__}"
    if not isinstance(value, str):
        raise wrong(f"{value!r}; expected an observer's class, its name, or 'file.py:Class'")
    if ".py:" in value:
        return value
    if ":" in value:
        module, _, path = value.partition(":")
        if not hasattr(sys.modules.get(module), path.partition(".")[0]):
            raise wrong(f"{value!r} is not imported, and reading settings imports nothing; import {module} before")
        return value
    return _member("observers", _snake_case(value))


def _snake_case(name: str) -> str:
    """`PerTensorMinMaxObserver` is `min_max`."""
    match = _OBSERVER_CLASS.fullmatch(name)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[2] if match else name).lower()


def read_algorithm(value: Any) -> str:
    """A name, several joined by `+`, or `file.py:function`."""
    if not isinstance(value, str):
        raise wrong(f"{value!r}; expected the name of an algorithm, or 'file.py:function'")
    if ".py:" in value:
        return value
    return "+".join(_member("algorithms", part.strip().lower().replace("-", "_")) for part in value.split("+"))


def _member(kind: str, name: str) -> str:
    known = registry.names(kind)
    if name not in known:
        raise wrong(f"unknown {kind.rstrip('s')} {name!r}; {_did_you_mean(name, known)}")
    return name


def _did_you_mean(name: str, known: Any) -> str:
    similar = nearest(name, known)
    return f"did you mean {' or '.join(map(repr, similar))}?" if similar else f"known: {', '.join(known)}"


def frozen_json(value: Any) -> Any:
    """JSON values that cannot be changed."""
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong(f"{value}; expected a finite number")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise wrong("expected text for keys")
        return FrozenMapping({key: frozen_json(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(frozen_json(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise wrong(f"a {type(value).__name__}; expected numbers, texts, true, false, lists and mappings")


def _read_zero_point_type(value: Any) -> str:
    name = value.name if isinstance(value, Enum) else str(value).rpartition(".")[2]
    if name not in ("int32", "float32"):
        raise wrong(f"{name!r}; expected 'int32' (rounded) or 'float32'")
    return name


def _read_element(value: Any) -> Dtype:
    name = value.name if isinstance(value, Enum) else str(value).rpartition(".")[2]
    name = DTYPE_ALIASES.get(name, name)
    if name not in Dtype.__members__ or Dtype[name] not in MX_ELEMENTS:
        raise wrong(f"{name!r} is no element of an MX format; known: {', '.join(d.name for d in MX_ELEMENTS)}")
    return Dtype[name]


def _read_group_size(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value < 1 and value != -1:
        raise wrong(f"{value}; expected an integer from 1 up, or -1 for the complete axis")
    return value


_name = PlainSerializer(lambda member: member.name if isinstance(member, Enum) else member, return_type=str)
AlgorithmName = Annotated[str, BeforeValidator(read_algorithm)]
ObserverName = Annotated[str | type[Any], BeforeValidator(_read_observer)]


class QuantizationSpec(Settings):
    """What one tensor becomes. A field that is not set is inherited, or else has its default.

    Args:
        dtype: the type of an element (`Dtype` or its name), or a block format that implies groups and scales: `mxfp4`,
            `mxfp6_e2m3`, `mxfp6_e3m2`, `mxfp8_e4m3`, `mxfp8_e5m2`, `mxint8`, `nvfp4`, `bfp16`.
        observer_cls: how a range is computed: an observer's class, its name, or `"file.py:Class"`.
        is_dynamic: whether the scales of an activation are computed in each call. Weights are always quantized ahead.
        qscheme: which elements share a scale.
        ch_axis: the axis with one scale per index; groups divide the other axis.
        group_size: elements per group; -1 is the complete axis.
        block_size: rows and columns of a block.
        symmetric: whether zero lies in the middle; by default for signed types.
        round_method: how elements are rounded; half to even by default.
        scale_type: the type that stores scales; float32 by default.
        scale_format: Quark's word for it: `e8m0`, `e4m3`, `e5m3` or `float32`.
        scale_calculation_mode: how an e8m0 scale follows from a block's maximum: `even`, `floor` or `ceil`.
        mx_element_dtype: the element type if `dtype` is `mx`.
        zero_point_type: `int32` (rounded, the default) or `float32`.
        is_scale_quant: marks the second of a list of two specs, the one for the scales of the first.
        full_range: symmetric, but the sign of the scale lends the lowest integer to either end.
        algorithm: how the scales and integers of a weight are computed; several joined by `+`.
        observer_parameters: of the observer, by name.
        seed: of stochastic rounding.

    Raises:
        SettingsError: every wrong field and every contradiction, at once.

    >>> QuantizationSpec("uint4", qscheme="per_group", ch_axis=0, group_size=32).grid().weight_block((8, 64))
    (1, 32)
    """

    dtype: Annotated[Dtype | str, BeforeValidator(_read_dtype), _name] | None = None
    observer_cls: ObserverName | None = None
    is_dynamic: bool | None = None
    qscheme: named(QSchemeType) | None = None  # type: ignore[valid-type]
    ch_axis: int | None = None
    group_size: Annotated[int, BeforeValidator(_read_group_size)] | None = None
    block_size: Annotated[tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]], Strict(False)] | None = None
    symmetric: bool | None = None
    round_method: named(RoundType) | None = None  # type: ignore[valid-type]
    scale_type: named(ScaleType) | None = None  # type: ignore[valid-type]
    scale_format: Literal["e8m0", "e4m3", "e5m3", "float32"] | None = None
    scale_calculation_mode: named(ScaleMode) | None = None  # type: ignore[valid-type]
    mx_element_dtype: Annotated[Dtype, BeforeValidator(_read_element), _name] | None = None
    zero_point_type: Annotated[str, BeforeValidator(_read_zero_point_type)] | None = None
    is_scale_quant: bool | None = None
    full_range: bool | None = None
    algorithm: AlgorithmName | None = None
    observer_parameters: Annotated[FrozenMapping, BeforeValidator(frozen_json)] | None = None
    seed: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: Any) -> Any:
        """Quark's other words, and the granularity in an observer's name; what is wrong is left to the fields."""
        if not isinstance(values, Mapping):
            return values
        fields = dict(values)
        kind, word = fields.get("scale_type"), fields.get("scale_format")
        if word in SCALE_FORMATS and _name_of(kind) in (None, "float", "float32", SCALE_FORMATS[word].name):
            # Older scripts say `float` for any scale and refine it by the format.
            fields["scale_type"] = SCALE_FORMATS[fields.pop("scale_format")]
        element = _name_of(fields.get("mx_element_dtype"))
        element = DTYPE_ALIASES.get(element or "", element)
        block = next((name for number, name in MX_ELEMENTS.items() if number.name == element), None)
        if block and _name_of(fields.get("dtype")) in (None, "mx", block):
            fields["dtype"] = block
            fields.pop("mx_element_dtype")
        unset = all(fields.get(name) is None for name in ("qscheme", "group_size", "block_size"))
        granularity = _granularity(fields.get("observer_cls"))
        if granularity and unset and fields.get("dtype") is not None:
            fields["qscheme"] = granularity
        return fields

    def contradictions(self) -> Sequence[Problem]:
        """Fields that exclude one another."""
        problems: list[Problem] = []
        if self.scale_format is not None and self.scale_type is not None:
            problems.append(("scale_format", f"it is {self.scale_format}, and scale_type {self.scale_type.name}"))
        if self.dtype == "mx":
            problems.append(("mx_element_dtype", "dtype mx without an element type; try dtype mxfp4"))
        elif self.mx_element_dtype is not None:
            problems.append(("mx_element_dtype", f"{self.mx_element_dtype.name} with a dtype other than mx"))
        return problems or rules.contradictions(self.set_fields)

    @property
    def set_fields(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}

    def over(self, base: QuantizationSpec) -> QuantizationSpec:
        """These fields, and those of `base` where a field is not set here.

        What would contradict this spec is not inherited (the group size of a base if this says per channel). Observer
        and algorithm are inherited together or not at all; the name of a block format brings its groups and scales.

        >>> QuantizationSpec(group_size=64).over(QuantizationSpec("int4", group_size=128)).to_dict()
        {'dtype': 'int4', 'group_size': 64}
        """
        fields = self.set_fields
        dropped: set[str] = set()
        if self.observer_cls is not None or self.algorithm is not None:
            dropped.update(_RANGE_FIELDS)
        if isinstance(self.dtype, str) and self.dtype != base.dtype:
            dropped.update(_FORMAT_FIELDS)
        per_token = self.qscheme is QSchemeType.per_token and self.is_dynamic is None
        if per_token:
            dropped.add("is_dynamic")  # tokens to come have no scales beforehand
        if (True if per_token else self.is_dynamic) not in (None, base.dynamic):
            dropped.update(("observer_cls", "observer_parameters"))
        for name, value in base.set_fields.items():
            # The type is always inherited: a contradiction with it is the user's, and is reported.
            inherited = name == "dtype" or _conflicts({**fields, name: value}) <= _conflicts(fields)
            if name not in fields and name not in dropped and inherited:
                fields[name] = value
        return _unchecked(fields)

    def problems(self, slot: str | None = None) -> list[Problem]:
        """What is wrong with it as a complete spec, in general or in one slot of a layer."""
        full = self._filled(slot)
        problems: list[Problem] = [*rules.missing(full), *rules.contradictions(self.set_fields)]
        problems += rules.contradictions(full)
        problems += rules.misplaced(full, slot) if slot else []
        return list(dict.fromkeys(problems))

    def complete(self, slot: str | None = None) -> QuantizationSpec:
        """Every field that matters, set: inherited ones, those a block format implies, defaults.

        Args:
            slot: `input_tensors`, `output_tensors`, `weight`, `bias` or `kv_cache`; fields that mean nothing there are
                adapted: a weight is never dynamic, an activation has no `algorithm`.

        Raises:
            SettingsError: what is missing, contradicts or does not belong there.
        """
        if problems := self.problems(slot):
            raise SettingsError(f"the spec of {slot}" if slot else type(self).__name__, problems)
        return _unchecked(self._filled(slot))

    def _filled(self, slot: str | None) -> dict[str, Any]:
        full = rules.fill(self.set_fields)
        if slot in ("weight", "bias"):
            full["is_dynamic"] = False
            if full["qscheme"] is QSchemeType.per_token:
                full |= {"qscheme": QSchemeType.per_channel, "ch_axis": full.get("ch_axis", 0)}
        elif slot is not None:
            full.pop("algorithm", None)
            if full["is_dynamic"] and full["qscheme"] is QSchemeType.per_channel and full.get("ch_axis") == 1:
                # How Quark says per token: the token axis of [batch, tokens, features].
                full["qscheme"] = QSchemeType.per_token
            full.pop("ch_axis", None)
        return full

    def grid(self) -> QuantizationGrid:
        """The values that the tensor may take; a cast (`is_cast`) has a grid too, with scale 1."""
        full = self.complete()
        assert isinstance(full.dtype, Dtype) and full.qscheme and full.scale_type and full.round_method
        return QuantizationGrid(
            full.dtype,
            full.qscheme,
            axis=full.ch_axis or 0,
            group_size=full.group_size or -1,
            block_size=full.block_size or (128, 128),
            symmetric=bool(full.symmetric),
            full_range=bool(full.full_range),
            scale_type=full.scale_type,
            scale_mode=full.scale_calculation_mode or ScaleMode.even,
            rounding=full.round_method,
            float_zero=full.zero_point_type == "float32",
            seed=full.seed or 0,
        )

    @property
    def dynamic(self) -> bool:
        """Whether scales are computed at run time."""
        return bool(rules.fill(self.set_fields)["is_dynamic"])

    @property
    def is_cast(self) -> bool:
        """Whether it is a plain change of float type, without scales."""
        return isinstance(self.dtype, Dtype) and self.dtype.is_cast

    @property
    def bits(self) -> int | None:
        """Width of one element, if the type is known."""
        element = rules.element_dtype(self.set_fields)
        return None if element is None else element.bits

    @property
    def observer(self) -> str | None:
        """The name of the observer: a member of `fewbit.observers`, `"file.py:Class"`, or `"module:Class"`."""
        return None if self.observer_cls is None else str(self.observer_cls)

    @property
    def weight_algorithm(self) -> str:
        """The algorithm for a weight: plain rounding if an observer is named, else the scale search."""
        return self.algorithm or ("rtn" if self.observer_cls is not None else "scale_search")


QTensorConfig = QuantizationSpec


def _granularity(observer: Any) -> str | None:
    """What a class says, or a name such as `PerChannelMinMaxObserver`."""
    if scheme := _name_of(getattr(observer, "granularity", None)):
        return scheme
    match = _OBSERVER_CLASS.fullmatch(observer.__name__ if isinstance(observer, type) else str(observer))
    return f"per_{match[1].lower()}" if match and match[1] else None


def _name_of(value: Any) -> str | None:
    if value is None:
        return None
    return value.name if isinstance(value, Enum) else str(value).rpartition(".")[2]


def _unchecked(fields: Mapping[str, Any]) -> QuantizationSpec:
    """A spec of values that were checked before."""
    return QuantizationSpec.model_construct(**fields)


def _conflicts(fields: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Contradictions among the fields, and with what follows from them."""
    return {*rules.contradictions(fields), *rules.contradictions(rules.fill(fields))}
