# SPDX-License-Identifier: Apache-2.0
"""`QuantizationConfig`: what one layer becomes. `Config`: what a model becomes.

`Config.resolve("layers.0.fc1", ("Linear", "Module"))` looks at

    exclude                        the layer stays in float if an entry names it or a module that contains it
    layer_quant_config             the most specific entry that matches the name (see `patterns`)
      over layer_type_quant_config   the entry of the most special type
        over global_quant_config
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Strict, Tag, ValidationError

from fewbit.config import rules
from fewbit.config.patterns import ancestors, covers, is_pattern, matches, most_specific, pattern_problem
from fewbit.config.rules import SLOTS
from fewbit.config.spec import QuantizationSpec, frozen_json, read_algorithm
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.scales import ScaleType
from fewbit.output import write_atomic
from fewbit.settings import FrozenMapping, Problem, Settings, SettingsError, wrong

FLOAT = "float"


def _read_slot(value: Any) -> Any:
    """Quark's list of a spec and the spec of its scales becomes one spec."""
    if not isinstance(value, list | tuple):
        return value
    specs = [_list_item(index, item) for index, item in enumerate(value)]
    if len(specs) == 1:
        return specs[0]
    scales = specs[-1] if specs else None
    if scales is None or len(specs) > 2 or not scales.is_scale_quant or scales.dtype is not Dtype.fp8_e4m3:
        raise wrong(f"{len(specs)} specs; expected one, or one and fp8_e4m3 with is_scale_quant for its scales")
    return QuantizationSpec.model_validate({**specs[0].set_fields, "scale_type": ScaleType.float8_e4m3fn})


def _list_item(index: int, item: Any) -> QuantizationSpec:
    try:
        return QuantizationSpec.model_validate(item)
    except ValidationError as error:
        texts = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        raise wrong(f"spec {index}: {'; '.join(texts)}") from None


Slot = Annotated[
    Annotated[QuantizationSpec, Tag("<spec>")] | Annotated[Literal["float"], Tag("<float>")],
    Discriminator(lambda value: "<float>" if isinstance(value, str) else "<spec>"),
]


class QuantizationConfig(Settings):
    """What the tensors of a layer become: a spec, `None` to inherit, or `"float"` to leave one as it is.

    Args:
        input_tensors: what the layer reads.
        output_tensors: what it computes.
        weight: its weights.
        bias: its bias.
        target_device: recorded, not interpreted.

    >>> QuantizationConfig(weight=QuantizationSpec("int8")).to_dict()
    {'weight': {'dtype': 'int8'}}
    """

    input_tensors: Annotated[Slot, BeforeValidator(_read_slot)] | None = None
    output_tensors: Annotated[Slot, BeforeValidator(_read_slot)] | None = None
    weight: Annotated[Slot, BeforeValidator(_read_slot)] | None = None
    bias: Annotated[Slot, BeforeValidator(_read_slot)] | None = None
    target_device: Annotated[str, BeforeValidator(lambda value: str(getattr(value, "value", value)))] | None = None

    def contradictions(self) -> Sequence[Problem]:
        """Specs that do not fit their slots."""
        return [
            ((slot, field), text)
            for slot, spec in self.specs.items()
            for field, text in rules.misplaced(spec.set_fields, slot)
        ]

    @property
    def specs(self) -> dict[str, QuantizationSpec]:
        """The slots that have a spec."""
        slots = {slot: getattr(self, slot) for slot in SLOTS}
        return {slot: spec for slot, spec in slots.items() if isinstance(spec, QuantizationSpec)}

    def over(self, base: QuantizationConfig | None) -> QuantizationConfig:
        """These specs over those of `base`, field by field."""
        if base is None:
            return self
        fields = {name: value for name in type(self).model_fields if (value := getattr(base, name)) is not None}
        for name in type(self).model_fields:
            value, inherited = getattr(self, name), fields.get(name)
            if isinstance(value, QuantizationSpec) and isinstance(inherited, QuantizationSpec):
                value = value.over(inherited)
            if value is not None:
                fields[name] = value
        return QuantizationConfig.model_construct(**fields)

    def problems(self) -> list[Problem]:
        """What is wrong with it after everything was inherited."""
        return [problem for slot, spec in self.specs.items() for problem in _under(spec.problems(slot), slot)]

    def complete(self) -> QuantizationConfig | None:
        """Every spec complete, `None` for what stays in float; `None` if all of it does."""
        specs = {slot: spec.complete(slot) for slot, spec in self.specs.items()}
        if not specs:
            return None
        return QuantizationConfig.model_construct(**specs, target_device=self.target_device)  # type: ignore[arg-type]


QLayerConfig = QuantizationConfig


@dataclass(frozen=True)
class ResolvedConfig:
    """What one layer becomes.

    Args:
        quantization: complete specs, `None` for every tensor that stays in float; `None` if all of them do.
        source: the most special part of the configuration that applied.
        reason: the entries that applied.
    """

    quantization: QuantizationConfig | None
    source: Literal["global", "type", "name", "excluded", "none"]
    reason: str


def _read_layer(value: Any) -> Any:
    return dict.fromkeys(SLOTS, FLOAT) if value == FLOAT else value


def _read_entries(value: Any) -> Any:
    """Entries by type may be given by class."""
    if not isinstance(value, Mapping):
        return value if value is not None else {}
    names = [key.__name__ if isinstance(key, type) else key for key in value]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise wrong(f"{', '.join(sorted(twice))} twice, as a class and by name")
    return dict(zip(names, value.values()))


def _read_names(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str) else value


def _read_cache(value: Any) -> Any:
    """Quark configures the cache by the outputs of the projections that fill it."""
    if not isinstance(value, Mapping) or "dtype" in value:
        return value
    return {name: _cache_entry(entry) for name, entry in value.items()} or None


def _cache_entry(entry: Any) -> Any:
    if isinstance(entry, QuantizationConfig):
        return entry.output_tensors
    return entry["output_tensors"] if isinstance(entry, Mapping) and "output_tensors" in entry else entry


def _read_algorithms(value: Any) -> Any:
    entries = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return tuple({"name": entry} if isinstance(entry, str) else entry for entry in entries)


def _algorithm_entry(value: Any) -> Any:
    if not isinstance(value, Mapping) or "name" not in value:
        raise wrong(f"{value!r}; expected the name of an algorithm, or a mapping with `name` and parameters")
    return frozen_json({**value, "name": read_algorithm(value["name"])})


Layer = Annotated[QuantizationConfig, BeforeValidator(_read_layer)]
Entries = Annotated[Mapping[str, Layer], BeforeValidator(_read_entries), AfterValidator(FrozenMapping)]
Names = Annotated[tuple[str, ...], Strict(False), BeforeValidator(_read_names)]
Cache = Annotated[
    Annotated[QuantizationSpec, Tag("<spec>")]
    | Annotated[Mapping[str, QuantizationSpec], AfterValidator(FrozenMapping), Tag("<layers>")],
    Discriminator(lambda v: "<layers>" if isinstance(v, Mapping) and "dtype" not in v else "<spec>"),
]


class Config(Settings):
    """What a model becomes; never changed by use.

    Args:
        global_quant_config: for every layer.
        layer_type_quant_config: for layers of a type, given as a class or its name; subclasses included.
        layer_quant_config: for layers by exact name, glob, or `re:` expression.
        exclude: names, globs or expressions of layers that stay in float, with everything inside them.
        kv_cache_quant_config: for the keys and values of a cache: a spec, or specs by layer.
        kv_cache_post_rope: whether keys are quantized after the rotary embedding, as caches store them.
        algo_config: the algorithm for weights whose spec names neither an algorithm nor an observer: a name, or a
            mapping with `name` and parameters; more entries hold the parameters of algorithms that specs name.
        min_kv_scale: the smallest scale of a cache.
        optional: entries above that may match nothing, such as those of a preset for layers that only some models have.
        version: of this layout.

    Raises:
        SettingsError: everything that is wrong, at once.

    >>> config = Config(
    ...     QuantizationConfig(weight=QuantizationSpec("int4", group_size=128)),
    ...     layer_quant_config={"*.fc1": {"weight": {"group_size": 32}}},
    ... )
    >>> config.resolve("layers.0.fc1", ["Linear"]).quantization.weight.group_size
    32
    """

    global_quant_config: Layer | None = None
    layer_type_quant_config: Entries = FrozenMapping()
    layer_quant_config: Entries = FrozenMapping()
    exclude: Names = ()
    kv_cache_quant_config: Annotated[Cache | None, BeforeValidator(_read_cache)] = None
    kv_cache_post_rope: bool = True
    algo_config: Annotated[
        tuple[Annotated[FrozenMapping, BeforeValidator(_algorithm_entry)], ...],
        Strict(False), BeforeValidator(_read_algorithms),
    ] = ()  # fmt: skip
    min_kv_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    optional: Names = ()
    version: Literal[1] = 1

    def contradictions(self) -> Sequence[Problem]:
        """Expressions that do not compile, and what is missing or contradicts once an entry has inherited."""
        cache, base = self.kv_cache_quant_config, self.global_quant_config
        by_layer = cache if isinstance(cache, Mapping) else {}
        entries: list[tuple[tuple[int | str, ...], str]]
        entries = [(("exclude", index), name) for index, name in enumerate(self.exclude)]
        entries += [(("layer_quant_config", name), name) for name in self.layer_quant_config]
        entries += [(("kv_cache_quant_config", name), name) for name in by_layer]
        problems: list[Problem] = [(path, text) for path, name in entries if (text := pattern_problem(name))]
        problems += _under(base.problems(), "global_quant_config") if base else []
        by_type = {name: entry.over(base) for name, entry in self.layer_type_quant_config.items()}
        for name, merged in by_type.items():
            problems += _under(merged.problems(), "layer_type_quant_config", name)
        for name, entry in self.layer_quant_config.items():
            # An entry by name may inherit from that of any type.
            for_types = [entry.over(other).problems() for other in (base, *by_type.values())]
            if all(for_types):
                problems += _under(for_types[0], "layer_quant_config", name)
        if isinstance(cache, QuantizationSpec):
            problems += _under(cache.problems("kv_cache"), "kv_cache_quant_config")
        for name, spec in by_layer.items():
            problems += _under(spec.problems("kv_cache"), "kv_cache_quant_config", name)
        return problems

    def resolve(self, layer: str, types: Sequence[str]) -> ResolvedConfig:
        """What one layer becomes.

        Args:
            layer: its name.
            types: the names of its type and of the types it inherits from, most special first.

        Raises:
            SettingsError: the parts that come together here are not complete.
        """
        if (entry := self._excluding_entry(layer)) is not None:
            return ResolvedConfig(None, "excluded", f'exclude "{entry}"')
        parts: list[tuple[Literal["global", "type", "name"], str, QuantizationConfig]] = []
        name = layer if layer in self.layer_quant_config else most_specific(self._patterns, layer)
        if name is not None:
            parts.append(("name", f'layer_quant_config["{name}"]', self.layer_quant_config[name]))
        kind = next((kind for kind in types if kind in self.layer_type_quant_config), None)
        if kind is not None:
            parts.append(("type", f'layer_type_quant_config["{kind}"]', self.layer_type_quant_config[kind]))
        if self.global_quant_config is not None:
            parts.append(("global", "global_quant_config", self.global_quant_config))
        if not parts:
            return ResolvedConfig(None, "none", "nothing in the configuration names it or its type")
        reason = " over ".join(path for _, path, _ in parts)
        merged = _merge(tuple(part for _, _, part in parts))
        if isinstance(merged, list):
            raise SettingsError(f"the configuration of {layer} ({reason})", merged)
        return ResolvedConfig(merged, parts[0][0], reason)

    def kv_cache(self, layer: str) -> QuantizationSpec | None:
        """The complete spec for the keys or values of a layer, if they are to be quantized."""
        spec = self.kv_cache_quant_config
        if isinstance(spec, Mapping):
            pattern = most_specific(spec, layer)
            spec = None if pattern is None else spec[pattern]
        return None if spec is None else spec.complete("kv_cache")

    def unused(self, names: Iterable[str], types: Iterable[str]) -> list[str]:
        """The entries that match nothing in a model, as they are written, without optional ones.

        Args:
            names: of every layer.
            types: every name that the type of a layer has.
        """
        layers, kinds = set(names), set(types)
        modules = {outer for layer in layers for outer in ancestors(layer)}
        cache = self.kv_cache_quant_config if isinstance(self.kv_cache_quant_config, Mapping) else ()
        unmatched = [
            *(p for p in self.layer_quant_config if p not in layers and not any(matches(p, n) for n in layers)),
            *(kind for kind in self.layer_type_quant_config if kind not in kinds),
            *(p for p in (*self.exclude, *cache) if p not in modules and not any(matches(p, n) for n in modules)),
        ]
        return [entry for entry in dict.fromkeys(unmatched) if entry not in self.optional]

    def excluding(self, names: Iterable[str]) -> Config:
        """A copy that leaves more layers in float."""
        return self.model_copy(update={"exclude": tuple(dict.fromkeys((*self.exclude, *names)))})

    def with_layers(self, layers: Mapping[str, QuantizationConfig | None]) -> Config:
        """A copy with more entries by name; `None` adds nothing."""
        more = {name: entry for name, entry in layers.items() if entry is not None}
        return self.model_copy(update={"layer_quant_config": FrozenMapping({**self.layer_quant_config, **more})})

    def save(self, path: str | Path) -> Path:
        """Write it to a `.yaml` or `.json` file, atomically."""
        path = Path(path)
        write_atomic(path, (self.to_yaml() if path.suffix in (".yaml", ".yml") else self.to_json()).encode())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read it from a `.yaml` or `.json` file."""
        return cls.read(path)

    # A plan asks for thousands of layers, and after mixed precision most entries are exact names: those are looked up.
    @cached_property
    def _patterns(self) -> tuple[str, ...]:
        return tuple(name for name in self.layer_quant_config if is_pattern(name))

    def _excluding_entry(self, layer: str) -> str | None:
        """The entry that leaves a layer in float, if there is one."""
        exact = next((outer for outer in ancestors(layer) if outer in self.exclude), None)
        if exact is not None:
            return exact
        return next((entry for entry in self.exclude if is_pattern(entry) and covers(entry, layer)), None)


QConfig = Config


def _under(problems: Iterable[Problem], *path: str) -> list[Problem]:
    """The same problems seen from a level above."""
    return [((*path, field) if isinstance(field, str) else (*path, *field), text) for field, text in problems]


@lru_cache(maxsize=256)
def _merge(parts: tuple[QuantizationConfig, ...]) -> QuantizationConfig | list[Problem] | None:
    """The most special part over the next and so on, complete, or what is wrong with it; models have few of them."""
    merged = reduce(lambda base, part: part.over(base), reversed(parts))
    return merged.problems() or merged.complete()
