# SPDX-License-Identifier: Apache-2.0
"""The fields of a scheme, one by one: what may be written for each, and the one value it becomes."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from fewbit import registry
from fewbit.errors import nearest
from fewbit.numerics.blocks import QSchemeType
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.rounding import RoundType
from fewbit.numerics.scales import ScaleMode, ScaleType
from fewbit.schemes.faults import Fault, no_field
from fewbit.schemes.formats import FORMATS, MX
from fewbit.schemes.frozen import freeze

# Other ways to write a type: torch's, and short ones.
_DTYPES = {
    "fp8": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "fp4_e2m1": "fp4",
    "fp16": "float16",
    "bf16": "bfloat16",
    "mxfp6": "mxfp6_e2m3",
    "mxfp8": "mxfp8_e4m3",
}
SCALE_FORMATS = {
    "e8m0": ScaleType.float8_e8m0fnu,
    "e4m3": ScaleType.float8_e4m3fn,
    "e5m3": ScaleType.float8_e5m3,
    "float32": ScaleType.float32,
}
_OBSERVER_CLASS = re.compile(r"Per(Tensor|Channel|Group|Token)(\w+)Observer")


class Wrong(Exception):
    """A value a field cannot have."""

    def __init__(self, expected: str, try_: str | None = None):
        super().__init__(expected)
        self.expected = expected
        self.try_ = try_


def read_fields(given: Mapping[str, Any], faults: list[Fault]) -> dict[str, Any]:
    """The fields that are set, each as the one value it stands for; what is wrong is added to `faults`.

    `scale_format` and `mx_element_dtype` are other ways to say `scale_type` and `dtype` and become those.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in READERS:
            faults.append(no_field(name, name, READERS))
        elif value is not None:
            try:
                values[name] = READERS[name](value)
            except Wrong as wrong:
                faults.append(Fault(name, f"{name}={_show(value)}", wrong.expected, wrong.try_))
    _granularity_of_observer(given.get("observer_cls"), values)
    _merge_scale_format(values, faults)
    _merge_element(values, faults)
    return {name: values[name] for name in READERS if name in values}


def written(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, type):
        return f"{value.__module__}:{value.__qualname__}"
    return value.name if isinstance(value, Enum) else value


def plain(value: Any) -> Any:
    """A JSON value, frozen.

    Raises:
        Wrong: something JSON has no way to write.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise Wrong("finite numbers")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise Wrong("text for keys")
        return freeze({key: plain(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Wrong("numbers, text, true, false, lists and objects")


def algorithm(value: Any) -> str:
    """The name of an algorithm there is, or a reference to the user's own."""
    known = registry.names("algorithms")
    if isinstance(value, str) and (value in known or registry.is_reference(value)):
        return value
    raise Wrong(nearest(str(value), known))


def _member(kind: type[Enum]) -> Callable[[Any], Any]:
    """A reader of enum members, their names, and members of other enums with the same names."""

    def read(value: Any) -> Any:
        found = kind.__members__.get(_name(value))
        if found is None:
            raise Wrong(nearest(_name(value), kind.__members__))
        return found

    return read


def _name(value: Any) -> str:
    # "Dtype.int8" and "torch.int8" are how enums and torch print themselves.
    return value.name if isinstance(value, Enum) else str(value).rpartition(".")[2]


def _dtype(value: Any) -> Dtype | str:
    name = _DTYPES.get(_name(value), _name(value))
    if name in FORMATS or name == "mx":
        return name
    if name in Dtype.__members__:
        return Dtype[name]
    raise Wrong(nearest(name, [*Dtype.__members__, *FORMATS, "mx"]))


def _element(value: Any) -> Dtype:
    name = _DTYPES.get(_name(value), _name(value))
    if name not in Dtype.__members__ or Dtype[name] not in MX:
        raise Wrong(f"an element type of an MX format: {nearest(name, [d.name for d in MX])}")
    return Dtype[name]


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Wrong("True or False")
    return value


def _integer(least: int | None = None, also: int | None = None) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise Wrong("a whole number") from None
        if isinstance(value, bool) or not (least is None or number >= least or number == also):
            extra = "" if also is None else f", or {also} for the whole axis"
            raise Wrong("a whole number" if least is None else f"a whole number from {least} up{extra}")
        return number

    return read


def _block_size(value: Any) -> tuple[int, int]:
    expected = "two whole numbers, rows and columns, such as [128, 128]"
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Wrong(expected)
    try:
        return (_integer(1)(value[0]), _integer(1)(value[1]))
    except Wrong:
        raise Wrong(expected) from None


def _scale_format(value: Any) -> ScaleType:
    if _name(value) not in SCALE_FORMATS:
        raise Wrong(nearest(_name(value), SCALE_FORMATS))
    return SCALE_FORMATS[_name(value)]


def _zero_point_type(value: Any) -> str:
    if _name(value) not in ("int32", "float32"):
        raise Wrong("'int32' (rounded) or 'float32' (as it comes)")
    return _name(value)


def _observer(value: Any) -> str | type:
    """The member's name where it is one of ours or a plug-in's; the class or the reference where it is the user's."""
    if isinstance(value, type):
        name = getattr(value, "name", None)
        ours = value.__module__.startswith("fewbit.observers")
        return name if ours and isinstance(name, str) else value
    if not isinstance(value, str):
        raise Wrong("an observer's class, its name, or 'file.py:Class'")
    if registry.is_reference(value):
        return value
    if ":" in value:
        found = registry.find_loaded(value)
        if isinstance(found, type):
            return found
        raise Wrong(
            "a class of a module that is imported already: reading a configuration imports nothing",
            f"import {value.partition(':')[0]} first, or write 'path/to/file.py:Class'",
        )
    match = _OBSERVER_CLASS.fullmatch(value)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[2] if match else value).lower()
    # Plug-ins are looked for last: asking for them reads the metadata of everything installed.
    if registry.is_built_in("observers", name) or name in registry.names("observers"):
        return name
    raise Wrong(nearest(name, registry.names("observers")), "`fewbit list observers`, or your own as 'file.py:Class'")


def _parameters(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise Wrong("an object of names and values")
    return plain(value)


READERS: dict[str, Callable[[Any], Any]] = {
    "dtype": _dtype,
    "observer_cls": _observer,
    "is_dynamic": _boolean,
    "qscheme": _member(QSchemeType),
    "ch_axis": _integer(),
    "group_size": _integer(1, also=-1),
    "block_size": _block_size,
    "symmetric": _boolean,
    "round_method": _member(RoundType),
    "scale_type": _member(ScaleType),
    "scale_format": _scale_format,
    "scale_calculation_mode": _member(ScaleMode),
    "mx_element_dtype": _element,
    "zero_point_type": _zero_point_type,
    "is_scale_quant": _boolean,
    "full_range": _boolean,
    "algorithm": algorithm,
    "observer_parameters": _parameters,
    "seed": _integer(0),
}


def _granularity_of_observer(given: Any, values: dict[str, Any]) -> None:
    """A whole scheme without `qscheme` takes it from a name such as `PerChannelMinMaxObserver`."""
    match = _OBSERVER_CLASS.fullmatch(str(given))
    said = QSchemeType[f"per_{match[1].lower()}"] if match else getattr(given, "granularity", None)
    if said is not None and "dtype" in values and not {"qscheme", "group_size", "block_size"} & values.keys():
        values["qscheme"] = said


def _merge_scale_format(values: dict[str, Any], faults: list[Fault]) -> None:
    said = values.pop("scale_format", None)
    if said is None:
        return
    before = values.get("scale_type", said)
    # Older scripts say `float` for any scale and refine it by the format.
    if before not in (said, ScaleType.float32):
        faults.append(Fault("scale_format", f"it says {said.name}, scale_type says {before.name}", "one of the two"))
    values["scale_type"] = said


def _merge_element(values: dict[str, Any], faults: list[Fault]) -> None:
    element, dtype = values.pop("mx_element_dtype", None), values.get("dtype")
    if element is None and dtype == "mx":
        del values["dtype"]
        if any(fault.path == "mx_element_dtype" for fault in faults):
            return  # there was one, and it was wrong
        expected = f"one of {', '.join(d.name for d in MX)}"
        faults.append(Fault("mx_element_dtype", "dtype=mx without an element type", expected, "dtype='mxfp4'"))
    elif element is not None and dtype not in (None, "mx", MX[element]):
        said = written(dtype)
        faults.append(Fault("mx_element_dtype", f"mx_element_dtype={element.name} with dtype={said}", "dtype='mx'"))
    elif element is not None:
        values["dtype"] = MX[element]


def _show(value: Any) -> str:
    text = repr(written(value))
    return text if len(text) <= 60 else f"{text[:57]}…"
