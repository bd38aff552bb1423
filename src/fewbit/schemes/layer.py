# SPDX-License-Identifier: Apache-2.0
"""`QuantizationConfig`: what one layer becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.scales import ScaleType
from fewbit.schemes import rules
from fewbit.schemes.faults import Fault, no_field, refuse
from fewbit.schemes.spec import QuantizationSpec

SLOTS = ("input_tensors", "output_tensors", "weight", "bias")
Slot = QuantizationSpec | Literal["float"] | None


@dataclass(frozen=True, init=False, repr=False)
class QuantizationConfig:
    """What becomes of a layer's tensors: a spec, `None` to inherit, or `"float"` to leave it as it is.

    Args:
        input_tensors: what the layer reads.
        output_tensors: what it gives.
        weight: its weights.
        bias: its bias.
        target_device: a word for the backend; kept, not interpreted.

    Raises:
        UsageError: everything that is wrong, in one message.

    >>> QuantizationConfig(weight=QuantizationSpec("int8")).to_dict()
    {'weight': {'dtype': 'int8'}}
    """

    input_tensors: Slot
    output_tensors: Slot
    weight: Slot
    bias: Slot
    target_device: str | None

    def __init__(
        self,
        /,
        input_tensors: Any = None,
        output_tensors: Any = None,
        weight: Any = None,
        bias: Any = None,
        target_device: Any = None,
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
        """A configuration of values that were checked before."""
        made = object.__new__(cls)
        made._set(values)
        return made

    @classmethod
    def read(cls, given: Any, path: str, faults: list[Fault]) -> Self | None:
        """A configuration, its fields as an object, or `"float"`; nothing where it is wrong, and `faults` says why."""
        if isinstance(given, cls):
            return given
        if given == "float":
            return cls._of(dict.fromkeys(SLOTS, "float"))
        if not isinstance(given, Mapping):
            fix = "QuantizationConfig(weight=…)" if isinstance(given, QuantizationSpec) else None
            expected = "a QuantizationConfig, an object with its fields, or 'float'"
            faults.append(Fault(path, f"a {type(given).__name__}", expected, fix))
            return None
        own: list[Fault] = []
        values = _checked({str(name): value for name, value in given.items()}, own)
        faults += [fault.under(path) for fault in own]
        return cls._of(values)  # with what is right, so that its own combinations can be looked at too

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are set."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def over(self, base: QuantizationConfig | None) -> QuantizationConfig:
        """These specs over those of `base`, field by field."""
        if base is None:
            return self
        values = {**base.given, **self.given}
        for slot in SLOTS:
            own, other = getattr(self, slot), getattr(base, slot)
            if isinstance(own, QuantizationSpec) and isinstance(other, QuantizationSpec):
                values[slot] = own.over(other)
        return QuantizationConfig._of(values)

    def faults(self) -> list[Fault]:
        """What is wrong with it as a whole, after everything was inherited."""
        specs = ((slot, getattr(self, slot)) for slot in SLOTS)
        return [f.under(slot) for slot, spec in specs if isinstance(spec, QuantizationSpec) for f in spec.faults(slot)]

    def complete(self) -> QuantizationConfig | None:
        """Every spec complete and `None` for what stays in float; nothing if all of it does."""
        specs = {slot: getattr(self, slot) for slot in SLOTS}
        made = {slot: spec.complete(slot) for slot, spec in specs.items() if isinstance(spec, QuantizationSpec)}
        return QuantizationConfig._of({**made, "target_device": self.target_device}) if made else None

    def to_dict(self) -> dict[str, Any]:
        """The fields that are set, as JSON values."""
        return {k: v.to_dict() if isinstance(v, QuantizationSpec) else v for k, v in self.given.items()}

    def plain(self) -> dict[str, Any]:
        """As `to_dict`, even if it could not be read back."""
        return {k: v.plain() if isinstance(v, QuantizationSpec) else v for k, v in self.given.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        faults: list[Fault] = []
        made = cls.read(values, cls.__name__, faults)
        refuse(faults, f"a {cls.__name__}")
        assert made is not None
        return made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.given.items())})"


QLayerConfig = QuantizationConfig


def _checked(given: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in SLOTS:
            values[name] = _read_slot(name, value, faults)
        elif name != "target_device":
            faults.append(no_field(name, name, [*SLOTS, "target_device"]))
        elif value is not None:
            values[name] = str(getattr(value, "value", value))
    return values


def _read_slot(name: str, value: Any, faults: list[Fault]) -> Slot:
    if value is None or value == "float":
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        faults.append(Fault(name, repr(value), "a QuantizationSpec, 'float', or None to inherit"))
        return None
    before = len(faults)
    read = _staged if isinstance(value, list | tuple) else QuantizationSpec.read
    spec = read(value, name, faults)
    if spec is None or len(faults) > before:
        return None
    wrong = rules.misplaced(spec.given, name)
    faults += [fault.under(name) for fault in wrong]
    return None if wrong else spec


def _staged(stages: Sequence[Any], name: str, faults: list[Fault]) -> QuantizationSpec | None:
    """Quark's list of a spec and the spec of its scales, as one spec."""
    specs = [QuantizationSpec.read(stage, f"{name}[{i}]", faults) for i, stage in enumerate(stages)]
    first, last = (specs[0], specs[-1]) if specs else (None, None)
    if len(specs) == 1 or first is None or last is None:
        if not specs:
            faults.append(Fault(name, "an empty list", "a QuantizationSpec, 'float', or None to inherit"))
        return first
    if len(specs) > 2 or not last.is_scale_quant or last.dtype is not Dtype.fp8_e4m3:
        expected = "one spec, or a spec and one for its scales: fp8_e4m3 with is_scale_quant=True"
        faults.append(Fault(name, f"{len(specs)} stages", expected))
        return first
    own: list[Fault] = []
    spec = QuantizationSpec.read({**first.given, "scale_type": ScaleType.float8_e4m3fn}, name, own)
    faults += own
    return spec
