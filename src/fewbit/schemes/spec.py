# SPDX-License-Identifier: Apache-2.0
"""`QuantizationSpec`: what one tensor becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from fewbit.errors import UsageError
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.grid import Grid
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType
from fewbit.schemes import rules
from fewbit.schemes.faults import Fault, refuse
from fewbit.schemes.fields import SCALE_FORMATS, read_fields, written
from fewbit.schemes.frozen import thaw

# How scales are found: fields that are inherited together or not at all.
_FINDING = ("observer_cls", "observer_parameters", "algorithm")
# What a block format implies: fields that its name replaces.
_FORMAT = ("qscheme", "group_size", "block_size", "symmetric", "scale_type")


@dataclass(frozen=True, init=False, repr=False)
class QuantizationSpec:
    """What one tensor becomes. A field that is not set is inherited, and where there is nothing to inherit, a default.

    Args:
        dtype: the type of an element (`Dtype` or its name), or a block format that implies group and scale: `"mxfp4"`,
            `"mxfp6_e2m3"`, `"mxfp6_e3m2"`, `"mxfp8_e4m3"`, `"mxfp8_e5m2"`, `"mxint8"`, `"nvfp4"`, `"bfp16"`. May be
            left out in a spec that overrides another.
        observer_cls: how a range is found: an observer's class, its name, or `"file.py:Class"`.
        is_dynamic: whether an activation's scales are found in each call. Weights are quantized ahead in any case.
        qscheme: which elements share a scale.
        ch_axis: the axis that keeps one scale an index; groups divide the other axis.
        group_size: elements of a group; -1 is the whole axis.
        block_size: rows and columns of a block.
        symmetric: whether zero lies in the middle; by default for signed types.
        round_method: how elements are rounded; half to even by default.
        scale_type: the type scales are kept in; float32 by default.
        scale_format: Quark's word for it: `"e8m0"`, `"e4m3"`, `"e5m3"` or `"float32"`.
        scale_calculation_mode: how an e8m0 scale follows from a block's maximum: `"even"`, `"floor"` or `"ceil"`.
        mx_element_dtype: the element type where `dtype="mx"`.
        zero_point_type: `"int32"` (rounded, the default) or `"float32"`.
        is_scale_quant: marks the second of a list of two specs, the one for the first one's scales.
        full_range: symmetric, but the scale's sign lends the lowest code to either end.
        algorithm: how a weight's scales and codes are found; see `weight_algorithm`.
        observer_parameters: of the observer, by name.
        seed: of stochastic rounding.

    Raises:
        UsageError: every field that is wrong and every contradiction, in one message.

    >>> QuantizationSpec("uint4", qscheme="per_group", ch_axis=0, group_size=32).grid().weight_block((8, 64))
    (1, 32)
    """

    dtype: Dtype | str | None
    observer_cls: str | type | None
    is_dynamic: bool | None
    qscheme: QSchemeType | None
    ch_axis: int | None
    group_size: int | None
    block_size: tuple[int, int] | None
    symmetric: bool | None
    round_method: RoundType | None
    scale_type: ScaleType | None
    scale_calculation_mode: ScaleMode | None
    zero_point_type: str | None
    is_scale_quant: bool | None
    full_range: bool | None
    algorithm: str | None
    observer_parameters: Mapping[str, Any] | None
    seed: int | None

    def __init__(
        self,
        /,
        dtype: Any = None,
        observer_cls: Any = None,
        is_dynamic: bool | None = None,
        qscheme: QSchemeType | str | None = None,
        ch_axis: int | None = None,
        group_size: int | None = None,
        block_size: tuple[int, int] | list[int] | None = None,
        symmetric: bool | None = None,
        round_method: RoundType | str | None = None,
        scale_type: ScaleType | str | None = None,
        scale_format: str | None = None,
        scale_calculation_mode: ScaleMode | str | None = None,
        mx_element_dtype: Any = None,
        zero_point_type: Any = None,
        is_scale_quant: bool | None = None,
        full_range: bool | None = None,
        algorithm: str | None = None,
        observer_parameters: Mapping[str, Any] | None = None,
        seed: int | None = None,
        **unknown: Any,
    ):
        given = {name: value for name, value in locals().items() if name not in ("self", "unknown", "__class__")}
        faults: list[Fault] = []
        values = _checked({**given, **unknown}, faults)
        refuse([fault.under(type(self).__name__) for fault in faults], f"a {type(self).__name__}")
        self._set(values)

    def _set(self, values: Mapping[str, Any]) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, values.get(field.name))

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Self:
        """A spec of values that were checked before."""
        made = object.__new__(cls)
        made._set(values)
        return made

    @classmethod
    def read(cls, given: Any, path: str, faults: list[Fault]) -> Self | None:
        """A spec, or an object with its fields; where it is wrong, nothing, and `faults` says why."""
        if isinstance(given, cls):
            return given
        if not isinstance(given, Mapping):
            faults.append(Fault(path, f"a {type(given).__name__}", "a QuantizationSpec or an object with its fields"))
            return None
        own: list[Fault] = []
        values = _checked({str(name): value for name, value in given.items()}, own)
        faults += [fault.under(path) for fault in own]
        return None if own else cls._of(values)

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are set."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def over(self, base: QuantizationSpec) -> QuantizationSpec:
        """These fields, and `base`'s for those that are not set here.

        What would contradict a field of this spec is not inherited (the group size of a base in groups, where this says
        per channel), nor is half of a pair: whoever names an observer does not inherit the algorithm of another, and
        whoever names a block format takes its groups and scales along, not those of another type.

        >>> QuantizationSpec(group_size=64).over(QuantizationSpec("int4", group_size=128)).to_dict()
        {'dtype': 'int4', 'group_size': 64}
        """
        values = self.given
        dropped: set[str] = set()
        if self.observer_cls is not None or self.algorithm is not None:
            dropped.update(_FINDING)
        if isinstance(self.dtype, str) and self.dtype != base.dtype:
            dropped.update(_FORMAT)
        by_token = self.qscheme is QSchemeType.per_token and self.is_dynamic is None
        if by_token:
            dropped.add("is_dynamic")  # tokens to come have no scales beforehand
        if (True if by_token else self.is_dynamic) not in (None, base.dynamic):
            dropped.update(_FINDING[:2])
        for name, value in base.given.items():
            if name in values or name in dropped:
                continue
            # The type is always inherited: a contradiction with it is the user's, and is reported.
            if name == "dtype" or _conflicts({**values, name: value}) <= _conflicts(values):
                values[name] = value
        return QuantizationSpec._of(values)

    def faults(self, slot: str | None = None) -> list[Fault]:
        """What is wrong with it as a whole scheme, in general or in one place of a layer."""
        full = self._filled(slot)
        found = rules.missing(full) + rules.contradictions(self.given) + rules.contradictions(full)
        return list(dict.fromkeys(found + (rules.misplaced(full, slot) if slot else [])))

    def complete(self, slot: str | None = None) -> QuantizationSpec:
        """Every field that matters, set: inherited ones, those a block format implies, defaults.

        Args:
            slot: `input_tensors`, `output_tensors`, `weight`, `bias` or `kv_cache`; fields that mean nothing there are
                then brought into line: a weight is never dynamic, an activation has no `algorithm`.

        Raises:
            UsageError: what is missing, contradicts or does not belong there.
        """
        what = f"the spec of {slot}" if slot else "a QuantizationSpec"
        refuse([fault.under(slot or type(self).__name__) for fault in self.faults(slot)], what)
        return QuantizationSpec._of(self._filled(slot))

    def _filled(self, slot: str | None) -> dict[str, Any]:
        full = rules.fill(self.given)
        if slot in ("weight", "bias"):
            full["is_dynamic"] = False
            if full["qscheme"] is QSchemeType.per_token:
                full |= {"qscheme": QSchemeType.per_channel, "ch_axis": full.get("ch_axis", 0)}
        elif slot is not None:
            full.pop("algorithm", None)
            if full["is_dynamic"] and full["qscheme"] is QSchemeType.per_channel and full.get("ch_axis") == 1:
                # How Quark says per token: the axis of tokens in [batch, tokens, features].
                full["qscheme"] = QSchemeType.per_token
            full.pop("ch_axis", None)
        return full

    def grid(self) -> Grid:
        """The values a tensor may take; a cast (`is_cast`) has a grid too, to be used with a scale of 1."""
        full = self.complete()
        assert isinstance(full.dtype, Dtype) and full.qscheme and full.scale_type and full.round_method
        return Grid(
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
        """Whether scales are found at run time."""
        return bool(rules.fill(self.given)["is_dynamic"])

    @property
    def is_cast(self) -> bool:
        """Whether it is a plain change of float type, without scales."""
        return isinstance(self.dtype, Dtype) and self.dtype.is_cast

    @property
    def observer(self) -> str | None:
        """The observer's name: a member's, `"file.py:Class"`, or `"module:Class"` for a class of the user's."""
        return None if self.observer_cls is None else str(written(self.observer_cls))

    @property
    def weight_algorithm(self) -> str:
        """The algorithm for a weight: plain rounding where an observer was asked for, else the search for scales."""
        return self.algorithm or ("rtn" if self.observer_cls is not None else "scale_search")

    @property
    def scale_format(self) -> str | None:
        """The type of the scales in Quark's words."""
        kind = rules.scale_type(self.given)
        return next((name for name, known in SCALE_FORMATS.items() if known is kind), None)

    @property
    def mx_element_dtype(self) -> Dtype | None:
        """The element type of an MX format."""
        return rules.element(self.given) if str(self.dtype).startswith("mx") else None

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, as JSON values."""
        if isinstance(self.observer_cls, type) and "<locals>" in self.observer_cls.__qualname__:
            raise UsageError(
                f"the observer {self.observer_cls.__qualname__} cannot be written down: nobody could find it again",
                where="observer_cls",
                expected="a class at the top of a module",
            )
        return self.plain()

    def plain(self) -> dict[str, Any]:
        """As `to_dict`, even if it could not be read back."""
        return {name: thaw(written(value)) for name, value in self.given.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        faults: list[Fault] = []
        made = cls.read(values, cls.__name__, faults)
        refuse(faults, f"a {cls.__name__}")
        assert made is not None
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.plain().items())})"


QTensorConfig = QuantizationSpec


def _conflicts(values: Mapping[str, Any]) -> set[Fault]:
    """Contradictions among the fields, and with what follows from them."""
    return {*rules.contradictions(values), *rules.contradictions(rules.fill(values))}


def _checked(given: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    values = read_fields(given, faults)
    faults += rules.contradictions(values)
    return values
