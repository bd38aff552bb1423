# SPDX-License-Identifier: Apache-2.0
"""What a configuration leaves open, settled for one model: the head of a language model, its cache, the algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from fewbit.model.ops import EMBEDDING, EXPERTS, LINEAR
from fewbit.model.points import Role
from fewbit.model.view import ModelView
from fewbit.numerics.dtypes import Dtype, Float
from fewbit.schemes.config import Config
from fewbit.schemes.rules import element
from fewbit.schemes.spec import QuantizationSpec

_NARROW = 4
_MOMENTS = 4 << 30  # bytes of second moments that may be held at once
_BYTES = 16  # of one entry: in float64, for those that teach and those kept aside


def usual(config: Config, view: ModelView, *, named: bool, data: bool) -> Config:
    """A configuration with what it does not say itself.

    Up to four bits a preset leaves the head of a language model in float, as all runtimes do, and with it the table it
    may share its weight with. Where there is data and a model of linear layers that can be walked, the codes of coarse
    types are found by `gptq`.

    Args:
        config: what was asked for.
        view: of the model.
        named: whether it was asked for by a preset's name; what somebody wrote out is meant as it is.
        data: whether there are samples to look at.
    """
    types = list(_types(config))
    if named and any(number.bits <= _NARROW for number in types) and (head := language_head(view)) is not None:
        config = config.excluding([head])
    if data and config.algo_config is None and any(map(_is_coarse, types)) and _is_linear(view):
        config = replace(config, algo_config=({"name": "gptq"},))
    return config


def with_cache(config: Config, cache: str | Mapping[str, Any] | QuantizationSpec | None) -> Config:
    """A configuration that says what a cache of keys and values is.

    Args:
        config: of the rest.
        cache: a type for one fixed scale a layer (`"fp8"`, `"int8"`), `"…_dynamic"` for a scale a token found in each
            call, or a whole spec; none to leave it as the configuration has it.

    >>> with_cache(Config(), "int8_dynamic").kv_cache("any").qscheme.name
    'per_token'
    """
    if cache is None:
        return config
    if isinstance(cache, str):
        name = cache.removesuffix("_dynamic")
        cache = {"dtype": name, "qscheme": "per_token"} if name != cache else {"dtype": name, "is_dynamic": False}
    return replace(config, kv_cache_quant_config=cache)


def language_head(view: ModelView) -> str | None:
    """The last linear layer, if it has an answer for every row of a table that the model looks up; or none."""
    weights = view.points(lambda p: p.role is Role.weight)
    rows = {p.shape[0] for p in weights if p.op is EMBEDDING}
    last = next((p for p in reversed(weights) if p.op is LINEAR), None)
    return last.layer if last is not None and last.shape[0] in rows and "walk" in view.can else None


def has_moments(view: ModelView) -> bool:
    """Whether second moments of all inputs can be had: block by block on a walk, or all at once in one pass."""
    inputs = [p.shape[1] for p in view.points(lambda p: p.role is Role.weight and p.op is LINEAR)]
    return "walk" in view.can or 0 < sum(_BYTES * width**2 for width in inputs) <= _MOMENTS


def _is_linear(view: ModelView) -> bool:
    """Whether second moments say all there is to know of its layers: convolutions have none of use."""
    ops = {p.op for p in view.points(lambda p: p.role is Role.weight)}
    return "walk" in view.can and LINEAR in ops and ops <= {LINEAR, EMBEDDING, EXPERTS}


def _is_coarse(number: Dtype) -> bool:
    """Whether another value than the nearest is worth a look: few bits, or few of them in the mantissa."""
    if number.is_cast:
        return False
    kind = number.value
    return number.bits <= _NARROW or (isinstance(kind, Float) and kind.mantissa <= 3)


def _types(config: Config) -> Iterator[Dtype]:
    """The types of weights, as far as entries name them."""
    entries = (*config.layer_type_quant_config.values(), *config.layer_quant_config.values())
    for entry in (config.global_quant_config, *entries):
        spec = None if entry is None else entry.weight
        if isinstance(spec, QuantizationSpec) and (number := element(spec.given)) is not None:
            yield number
