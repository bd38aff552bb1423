# SPDX-License-Identifier: Apache-2.0
"""`Config`: what a whole model becomes.

Config.resolve("layers.0.fc1", ("Linear", "Module"))
  exclude                      stays in float if an entry names the layer or something it lies in
  layer_quant_config           the most specific entry that matches the name (see `patterns`)
    over layer_type_quant_config   the entry of the most special type
      over global_quant_config
  -> Resolved(quantization, source, why)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, reduce
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self, cast

from fewbit.errors import UsageError
from fewbit.record import write_atomically
from fewbit.schemes import text
from fewbit.schemes.entries import read_algorithms, read_cache, read_entries, read_least, read_names
from fewbit.schemes.faults import Fault, no_field, refuse
from fewbit.schemes.frozen import thaw
from fewbit.schemes.layer import QLayerConfig, QuantizationConfig
from fewbit.schemes.patterns import covers, is_pattern, lineage, matches, most_specific
from fewbit.schemes.spec import QTensorConfig, QuantizationSpec

__all__ = ["Config", "QConfig", "QLayerConfig", "QTensorConfig", "QuantizationConfig", "QuantizationSpec", "Resolved"]

_VERSION = 1


@dataclass(frozen=True)
class Resolved:
    """What becomes of one layer.

    Args:
        quantization: complete specs, `None` for each tensor that stays in float; or none if all of them do.
        source: the most special part of the configuration that had a say.
        why: the same in words, with the entries that matched.
    """

    quantization: QuantizationConfig | None
    source: Literal["global", "type", "name", "excluded", "none"]
    why: str


@dataclass(frozen=True, init=False, repr=False)
class Config:
    """What a whole model becomes; never changed by use.

    Args:
        global_quant_config: for every layer.
        layer_type_quant_config: for layers of a type, given as a class or its name; subclasses included.
        layer_quant_config: for layers by exact name, glob, or `re:` expression.
        exclude: names, globs or expressions of layers that stay in float, with everything inside them.
        kv_cache_quant_config: for keys and values of a cache: a spec, or specs by layer.
        kv_cache_post_rope: whether keys are quantized after the rotary embedding, as caches keep them.
        algo_config: the algorithm for weights whose spec names neither an algorithm nor an observer, as a name or an
            object with a `name` and parameters; more entries hold the parameters of algorithms that specs name.
        min_kv_scale: the smallest scale a cache may have.
        optional: entries above that may match nothing, such as a preset's for layers that only some models have.

    Raises:
        UsageError: everything that is wrong, in one message.

    >>> config = Config(
    ...     QuantizationConfig(weight=QuantizationSpec("int4", group_size=128)),
    ...     layer_quant_config={"*.fc1": {"weight": {"group_size": 32}}},
    ... )
    >>> config.resolve("layers.0.fc1", ["Linear"]).quantization.weight.group_size
    32
    """

    global_quant_config: QuantizationConfig | None
    layer_type_quant_config: Mapping[str, QuantizationConfig]
    layer_quant_config: Mapping[str, QuantizationConfig]
    exclude: tuple[str, ...]
    kv_cache_quant_config: QuantizationSpec | Mapping[str, QuantizationSpec] | None
    kv_cache_post_rope: bool
    algo_config: tuple[Mapping[str, Any], ...] | None
    min_kv_scale: float
    optional: tuple[str, ...]

    def __init__(
        self,
        /,
        global_quant_config: Any = None,
        layer_type_quant_config: Mapping[Any, Any] | None = None,
        layer_quant_config: Mapping[str, Any] | None = None,
        exclude: Sequence[str] | str = (),
        kv_cache_quant_config: Any = None,
        kv_cache_post_rope: bool = True,
        algo_config: Any = None,
        min_kv_scale: float = 0.0,
        optional: Sequence[str] = (),
        **unknown: Any,
    ):
        faults: list[Fault] = []
        whole = None
        if global_quant_config is not None:
            whole = QuantizationConfig.read(global_quant_config, "global_quant_config", faults)
        values = {
            "global_quant_config": whole,
            "layer_type_quant_config": read_entries("layer_type_quant_config", layer_type_quant_config, faults),
            "layer_quant_config": read_entries("layer_quant_config", layer_quant_config, faults),
            "exclude": read_names("exclude", exclude, faults),
            "kv_cache_quant_config": read_cache(kv_cache_quant_config, faults),
            "kv_cache_post_rope": kv_cache_post_rope,
            "algo_config": read_algorithms(algo_config, faults),
            "min_kv_scale": read_least(min_kv_scale, faults),
            "optional": read_names("optional", optional, faults),
        }
        if not isinstance(kv_cache_post_rope, bool):
            faults.append(Fault("kv_cache_post_rope", repr(kv_cache_post_rope), "True or False"))
        faults += [no_field(name, name, values) for name in unknown]
        for name, value in values.items():
            object.__setattr__(self, name, value)
        refuse(faults + self._faults_of_combinations(entries=not faults), "the configuration")

    def resolve(self, layer: str, types: Sequence[str]) -> Resolved:
        """What becomes of a layer.

        Args:
            layer: its name in the model.
            types: the names its type answers to, most special first.

        Raises:
            UsageError: the parts that come together here do not make a whole.
        """
        excluded = self._excluder(layer)
        if excluded is not None:
            return Resolved(None, "excluded", f'exclude "{excluded}"')
        parts: list[tuple[Literal["global", "type", "name"], str, QuantizationConfig]] = []
        name = layer if layer in self.layer_quant_config else most_specific(self._patterns, layer)
        if name is not None:
            parts.append(("name", f'layer_quant_config["{name}"]', self.layer_quant_config[name]))
        kind = next((t for t in types if t in self.layer_type_quant_config), None)
        if kind is not None:
            parts.append(("type", f'layer_type_quant_config["{kind}"]', self.layer_type_quant_config[kind]))
        if self.global_quant_config is not None:
            parts.append(("global", "global_quant_config", self.global_quant_config))
        if not parts:
            return Resolved(None, "none", "nothing in the configuration names it or its type")
        why = " over ".join(path for _, path, _ in parts)
        merged = _merged(tuple(part for _, _, part in parts))
        if isinstance(merged, tuple):
            refuse([f.under(f"{layer} ({why})") for f in merged], f"what the configuration says of {layer}")
        return Resolved(cast(QuantizationConfig | None, merged), parts[0][0], why)

    def kv_cache(self, layer: str) -> QuantizationSpec | None:
        """The complete spec for a layer's keys or values, if they are to be quantized."""
        given = self.kv_cache_quant_config
        if isinstance(given, Mapping):
            pattern = most_specific(given, layer)
            given = None if pattern is None else given[pattern]
        return None if given is None else given.complete("kv_cache")

    def unused(self, names: Iterable[str], types: Iterable[str]) -> list[str]:
        """The entries that match nothing in a model, as they were written, without those that are optional.

        Args:
            names: every layer's name.
            types: every name that a layer's type answers to.
        """
        layers, kinds = set(names), set(types)
        outer = {part for layer in layers for part in lineage(layer)}
        cache = self.kv_cache_quant_config if isinstance(self.kv_cache_quant_config, Mapping) else ()
        wanted = [
            *(p for p in self.layer_quant_config if p not in layers and not any(matches(p, n) for n in layers)),
            *(t for t in self.layer_type_quant_config if t not in kinds),
            *(p for p in (*self.exclude, *cache) if p not in outer and not any(matches(p, n) for n in outer)),
        ]
        return [entry for entry in dict.fromkeys(wanted) if entry not in self.optional]

    def excluding(self, names: Iterable[str]) -> Config:
        """A copy that leaves more layers in float."""
        return replace(self, exclude=tuple(dict.fromkeys((*self.exclude, *names))))

    def with_layers(self, layers: Mapping[str, QuantizationConfig | None]) -> Config:
        """A copy with more entries by name; an entry of `None` adds nothing."""
        more = {name: entry for name, entry in layers.items() if entry is not None}
        return replace(self, layer_quant_config={**self.layer_quant_config, **more})

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal configurations have the same one, on every machine."""
        return sha256(text.canonical(self._written(strict=False))).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Everything that is not a default, as JSON values."""
        return self._written(strict=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        version = values.get("version", _VERSION)
        if version != _VERSION:
            raise UsageError(f"version {version!r} of the configuration", where="version", expected=str(_VERSION))
        return cls(**{str(name): value for name, value in values.items() if name != "version"})

    def to_json(self) -> str:
        """The configuration as JSON."""
        return text.write_json(self.to_dict())

    @classmethod
    def from_json(cls, content: str | bytes) -> Self:
        """The inverse of `to_json`."""
        return cls.from_dict(text.read_json(content))

    def to_yaml(self) -> str:
        """The configuration as YAML."""
        return text.write_yaml(self.to_dict())

    @classmethod
    def from_yaml(cls, content: str | bytes) -> Self:
        """The inverse of `to_yaml`; the safe loader only."""
        return cls.from_dict(text.read_yaml(content))

    def save(self, path: str | Path) -> Path:
        """Write it to a `.json`, `.yaml` or `.yml` file, whole or not at all."""
        path = Path(path)
        content = self.to_yaml() if _is_yaml(path) else self.to_json()
        write_atomically(path, content.encode())
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read it from a `.json`, `.yaml` or `.yml` file."""
        path = Path(path)
        read = cls.from_yaml if _is_yaml(path) else cls.from_json
        try:
            return read(path.read_bytes())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", where=path, expected="a file") from error
        except UsageError as error:
            parts = {"where": error.where, "expected": error.expected, "try_": error.try_}
            raise UsageError(f"{path}: {error.what}", **parts) from None

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items() if v != _DEFAULTS.get(k))})"

    # A plan asks for thousands of layers, and after mixed precision most entries are exact names: those are looked up.
    @cached_property
    def _patterns(self) -> tuple[str, ...]:
        return tuple(p for p in self.layer_quant_config if is_pattern(p))

    @cached_property
    def _exclusions(self) -> tuple[frozenset[str], tuple[str, ...]]:
        return frozenset(self.exclude), tuple(p for p in self.exclude if is_pattern(p))

    def _excluder(self, layer: str) -> str | None:
        """The entry that leaves a layer in float, if there is one."""
        names, patterns = self._exclusions
        exact = next((outer for outer in lineage(layer) if outer in names), None)
        return next((p for p in patterns if covers(p, layer)), None) if exact is None else exact

    def _written(self, *, strict: bool) -> dict[str, Any]:
        """Everything that is not a default; `strict` refuses what could not be read back."""

        def write(value: Any) -> Any:
            if isinstance(value, QuantizationConfig | QuantizationSpec):
                return value.to_dict() if strict else value.plain()
            if isinstance(value, Mapping):
                return {key: write(item) for key, item in value.items()}
            return [write(item) for item in value] if isinstance(value, tuple) else thaw(value)

        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"version": _VERSION, **{k: write(v) for k, v in shown.items() if v != _DEFAULTS.get(k)}}

    def _faults_of_combinations(self, *, entries: bool) -> list[Fault]:
        """What is missing or contradicts once an entry has inherited; an entry by name may inherit from any type's.

        Args:
            entries: whether everything could be read; an entry cannot be blamed for what it would have inherited.
        """
        whole = self.global_quant_config
        faults = [] if whole is None else [f.under("global_quant_config") for f in whole.faults()]
        if not entries:
            return faults
        by_type = {name: entry.over(whole) for name, entry in self.layer_type_quant_config.items()}
        for name, merged in by_type.items():
            faults += [f.under(f'layer_type_quant_config["{name}"]') for f in merged.faults()]
        for name, entry in self.layer_quant_config.items():
            found = [entry.over(base).faults() for base in (whole, *by_type.values())]
            if all(found):
                faults += [f.under(f'layer_quant_config["{name}"]') for f in found[0]]
        cache = self.kv_cache_quant_config
        if isinstance(cache, QuantizationSpec):
            faults += [f.under("kv_cache_quant_config") for f in cache.faults("kv_cache")]
        for name, spec in (cache or {}).items() if not isinstance(cache, QuantizationSpec) else ():
            faults += [f.under(f'kv_cache_quant_config["{name}"]') for f in spec.faults("kv_cache")]
        return faults


QConfig = Config

_DEFAULTS: dict[str, Any] = {
    "layer_type_quant_config": {},
    "layer_quant_config": {},
    "exclude": (),
    "kv_cache_post_rope": True,
    "min_kv_scale": 0.0,
    "optional": (),
}


@lru_cache(maxsize=256)
def _merged(parts: tuple[QuantizationConfig, ...]) -> QuantizationConfig | tuple[Fault, ...] | None:
    """The most special part over the next and so on, complete, or what is wrong with it; few distinct ones a model."""
    merged = reduce(lambda base, part: part.over(base), reversed(parts))
    return tuple(merged.faults()) or merged.complete()


def _is_yaml(path: Path) -> bool:
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise UsageError(f"neither JSON nor YAML by its name: {path.name}", where=path, expected=".json, .yaml or .yml")
    return path.suffix != ".json"
