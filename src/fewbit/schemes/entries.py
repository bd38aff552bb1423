# SPDX-License-Identifier: Apache-2.0
"""The parts of a model's configuration: what may be written for each, and what it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fewbit.schemes.faults import Fault
from fewbit.schemes.fields import Wrong, algorithm, plain
from fewbit.schemes.frozen import FrozenMapping
from fewbit.schemes.layer import QuantizationConfig
from fewbit.schemes.patterns import fault_of
from fewbit.schemes.spec import QuantizationSpec


def read_entries(field: str, given: Any, faults: list[Fault]) -> FrozenMapping[QuantizationConfig]:
    """Entries by layer type or by layer name."""
    entries: dict[str, QuantizationConfig] = {}
    if not isinstance(given, Mapping | None):
        faults.append(Fault(field, f"a {type(given).__name__}", "an object of names and QuantizationConfigs"))
        return FrozenMapping()
    for key, value in (given or {}).items():
        name = key.__name__ if isinstance(key, type) and field == "layer_type_quant_config" else key
        path = f'{field}["{name}"]'
        if not isinstance(name, str):
            faults.append(Fault(path, f"a key of type {type(key).__name__}", "text", f"write {str(key)!r} in quotes"))
            continue
        if name in entries:
            faults.append(Fault(path, "given twice, as a class and by name", "one of the two"))
        wrong = fault_of(name) if field == "layer_quant_config" else None
        if wrong:
            faults.append(Fault(path, wrong, "a name, a glob, or 're:' and a regular expression"))
        entry = QuantizationConfig.read(value, path, faults)
        if entry is not None:
            entries[name] = entry
    return FrozenMapping(entries)


def read_names(field: str, given: Any, faults: list[Fault]) -> tuple[str, ...]:
    """Names, globs and expressions; one text stands for a list of one."""
    given = () if given is None else given
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        faults.append(Fault(field, repr(given), "a list of names, globs, or 're:' and a regular expression"))
        return ()
    for name in names:
        wrong = fault_of(name)
        if wrong:
            faults.append(Fault(f"{field}[{names.index(name)}]", wrong, "a regular expression after 're:'"))
    return names


def read_cache(given: Any, faults: list[Fault]) -> QuantizationSpec | FrozenMapping[QuantizationSpec] | None:
    """One spec for all keys and values, or specs by layer."""
    field = "kv_cache_quant_config"
    if isinstance(given, QuantizationSpec):
        return given
    if not given:
        return None
    if not isinstance(given, Mapping):
        faults.append(Fault(field, f"a {type(given).__name__}", "a QuantizationSpec, or specs by layer"))
        return None
    if "dtype" in given:
        return QuantizationSpec.read(given, field, faults)
    specs = {str(name): _cache_entry(value, f'{field}["{name}"]', faults) for name, value in given.items()}
    for name in specs:
        wrong = fault_of(name)
        if wrong:
            faults.append(Fault(f'{field}["{name}"]', wrong, "a name, a glob, or 're:' and a regular expression"))
    return FrozenMapping({name: spec for name, spec in specs.items() if spec is not None})


def _cache_entry(given: Any, path: str, faults: list[Fault]) -> QuantizationSpec | None:
    """A spec, or the output's spec of a layer: Quark says the cache by the outputs of the projections that fill it."""
    if isinstance(given, QuantizationConfig) or (isinstance(given, Mapping) and "output_tensors" in given):
        layer = QuantizationConfig.read(given, path, faults)
        spec = None if layer is None else layer.output_tensors
        if layer is not None and not isinstance(spec, QuantizationSpec):
            faults.append(Fault(f"{path}.output_tensors", "no spec", "the spec of keys or values"))
        return spec if isinstance(spec, QuantizationSpec) else None
    return QuantizationSpec.read(given, path, faults)


def read_algorithms(given: Any, faults: list[Fault]) -> tuple[FrozenMapping[Any], ...] | None:
    """Algorithms as objects with a name and parameters."""
    if not given:
        return None
    made = []
    for index, entry in enumerate(given if isinstance(given, list | tuple) else [given]):
        path = f"algo_config[{index}]"
        values = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(values, Mapping) or "name" not in values:
            faults.append(Fault(path, repr(entry), "an algorithm's name, or an object with a `name` and parameters"))
            continue
        try:
            algorithm(values["name"])
            made.append(plain(values))
        except Wrong as wrong:
            faults.append(Fault(path, repr(values["name"]), wrong.expected))
    return tuple(made)


def read_least(given: Any, faults: list[Fault]) -> float:
    """The smallest scale of a cache."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < float("inf"):
        faults.append(Fault("min_kv_scale", repr(given), "a number from 0 up"))
        return 0.0
    return float(given)
