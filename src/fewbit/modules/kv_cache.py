# SPDX-License-Identifier: Apache-2.0
"""Keys and values of Hugging Face caches, kept as codes.

A token's key becomes one record of bytes: its codes, then its own scales (none where scales are fixed beforehand).
Records lie along the same axes as the floats did, so a cache layer that concatenates, crops, slides or reorders its
tensors does so with records too: a subclass of its class takes its place, which encodes on the way in and decodes on
the way out.

Where attention goes to an encoder too, there are two caches. The one of the encoder's states stays in float: models
read its tensors directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fewbit.errors import UsageError
from fewbit.modules.activation import ActivationQuantizer
from fewbit.numerics.blocks import Blocks, QSchemeType
from fewbit.numerics.packing import is_packed, pack, unpack
from fewbit.numerics.qparams import QParams
from fewbit.numerics.quantize import dequantize, quantize
from fewbit.numerics.scales import load_scale, store_scale
from fewbit.numerics.zero_points import load_zero, store_zero


class CacheCodec(nn.Module):
    """Keys or values `[batch, heads, tokens, features]` as records `[batch, heads, tokens, bytes]`, and back.

    Args:
        quantizer: the grid, with fixed scales or with scales a token (or a group of its features).
    """

    def __init__(self, quantizer: ActivationQuantizer):
        super().__init__()
        grid = quantizer.grid
        if quantizer.dynamic and grid.granularity not in (QSchemeType.per_token, QSchemeType.per_group):
            raise UsageError(
                f"a cache with scales found at run time and {grid.granularity.value} granularity",
                expected="per_token or per_group, so that a new token does not change those before it",
                try_="qscheme=per_token, or is_dynamic=False with calibration data",
            )
        self.quantizer = quantizer

    def encode(self, x: Tensor) -> Tensor:
        """Floats to records."""
        qparams = self.quantizer.qparams(x)
        grid = qparams.grid
        parts = [pack(quantize(x, qparams), grid.dtype)]
        if self.quantizer.dynamic:
            parts.append(store_scale(qparams.scale, grid.scale_type))
            if qparams.zero_point is not None:
                parts.append(store_zero(qparams.zero_point, grid))
        return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=-1)

    def decode(self, records: Tensor, features: int, dtype: torch.dtype) -> Tensor:
        """Records to floats of a dtype; `features` is the length of one key or value."""
        grid = self.quantizer.grid
        shape = (*records.shape[:-1], features)
        width = -(-features * grid.dtype.bits // 8)
        kind = torch.uint8 if is_packed(grid.dtype) else grid.dtype.storage
        codes = unpack(_numbers(records[..., :width], kind), grid.dtype, features)
        return dequantize(codes, self._qparams(records[..., width:], shape), dtype)

    def _qparams(self, rest: Tensor, shape: tuple[int, ...]) -> QParams:
        quantizer, grid = self.quantizer, self.quantizer.grid
        if not quantizer.dynamic:
            return quantizer.qparams(torch.empty(shape, device=rest.device))
        block = grid.activation_block(shape)
        count = Blocks(shape, block).counts[-1]
        stored = store_scale(torch.ones(0, device=rest.device), grid.scale_type).dtype
        scales = _numbers(rest[..., : count * stored.itemsize], stored)
        zeros = rest[..., count * stored.itemsize :]
        zero = load_zero(_numbers(zeros, grid.zero_storage)) if grid.has_zero_point else None
        return QParams(grid, block, load_scale(scales, grid.scale_type), zero)


def _numbers(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes of records as numbers of a dtype."""
    if dtype.itemsize == 1:
        return part.contiguous().view(dtype)
    # Always a copy: one token's part is contiguous as it lies, at an address where no such number may begin.
    return part.clone(memory_format=torch.contiguous_format).view(dtype)


class KeyValueCodecs(nn.Module):
    """The codecs of one layer of a cache; what is missing stays in float."""

    def __init__(self, key: nn.Module | None, value: nn.Module | None):
        super().__init__()
        self.key = key
        self.value = value


class _CodedLayer:
    """Mixed in front of a cache layer's own class."""

    codecs: KeyValueCodecs
    features: tuple[int, int]
    float_dtypes: tuple[torch.dtype, torch.dtype]

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        both = ((self.codecs.key, key_states), (self.codecs.value, value_states))
        self.features = (key_states.shape[-1], value_states.shape[-1])
        self.float_dtypes = (key_states.dtype, value_states.dtype)
        given = [states if codec is None else codec.encode(states) for codec, states in both]  # type: ignore[operator]
        kept = super().update(*given, *args, **kwargs)  # type: ignore[misc]
        return tuple(
            states if codec is None else codec.decode(states, width, dtype)  # type: ignore[operator]
            for (codec, _), states, width, dtype in zip(both, kept, self.features, self.float_dtypes)
        )  # type: ignore[return-value]


def attach_cache(model: nn.Module, codecs: dict[int, KeyValueCodecs]) -> None:
    """Make a Hugging Face model keep its cache as codes, in place.

    Args:
        model: a model whose forward takes `past_key_values`.
        codecs: by layer of the cache; layers that are not named stay in float.
    """
    if "past_key_values" not in inspect.signature(model.forward).parameters:
        raise UsageError(
            f"{type(model).__name__} has no cache to quantize", expected="a forward that takes `past_key_values`"
        )
    model.fewbit_cache = nn.ModuleDict({str(index): pair for index, pair in codecs.items()})
    if not any(hook is _prepare for hook in model._forward_pre_hooks.values()):
        model.register_forward_pre_hook(_prepare, with_kwargs=True)


def detach_cache(model: nn.Module) -> None:
    """Undo `attach_cache`, in place."""
    del model.fewbit_cache
    for key in [key for key, hook in model._forward_pre_hooks.items() if hook is _prepare]:
        del model._forward_pre_hooks[key]
        model._forward_pre_hooks_with_kwargs.pop(key, None)


def cache_layers(model: nn.Module) -> dict[int, str]:
    """The attention that fills each layer of the cache: the innermost modules that say their `layer_idx`.

    Beside an encoder those of the decoder, whose attention to itself comes before that to the encoder.
    """
    root = _decoder(model)
    start = next(name for name, module in model.named_modules() if module is root)
    numbered = {
        f"{start}.{name}".strip("."): module.layer_idx
        for name, module in root.named_modules()
        if isinstance(getattr(module, "layer_idx", None), int)
    }
    outer = {name[:end] for name in numbered for end, letter in enumerate(name) if letter == "."}
    found: dict[int, str] = {}
    for name, index in numbered.items():
        if name not in outer:
            found.setdefault(index, name)
    return dict(sorted(found.items()))


def _decoder(model: Any) -> nn.Module:
    """The part of a model that fills the cache."""
    beside_encoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    found: nn.Module = model.get_decoder() if beside_encoder else model
    return found


def _prepare(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give the call a cache that codes: its own, or the empty one it came with."""
    from transformers import Cache, DynamicCache, EncoderDecoderCache

    config: Any = model.config
    wanted = kwargs.get("use_cache")
    if not (getattr(config.get_text_config(decoder=True), "use_cache", False) if wanted is None else wanted):
        return args, kwargs
    beside_encoder = getattr(config, "is_encoder_decoder", False) or kwargs.get("encoder_hidden_states") is not None
    given = kwargs.get("past_key_values")
    if given is None:
        own: Any = _decoder(model).config  # the outer one may say how many layers the encoder has
        given = DynamicCache(config=own)
        if beside_encoder:
            given = EncoderDecoderCache(given, DynamicCache(config=own))
        kwargs["past_key_values"] = given
    if beside_encoder and isinstance(given, Cache) and not isinstance(given, EncoderDecoderCache):
        raise UsageError(
            f"a {type(given).__name__} for a model that attends to an encoder too",
            where="past_key_values",
            expected="an EncoderDecoderCache, which keeps the two apart, or none",
        )
    given = getattr(given, "self_attention_cache", given)
    if isinstance(given, Cache):
        _code_layers(given, model.fewbit_cache)  # type: ignore[arg-type]
    return args, kwargs


def _code_layers(given: Any, codecs: nn.ModuleDict) -> None:
    if given.layer_class_to_replicate is not None:
        while len(given.layers) <= max(map(int, codecs)):
            given.layers.append(given.layer_class_to_replicate())
    for index, pair in codecs.items():
        layer = given.layers[int(index)]
        if not isinstance(layer, _CodedLayer) and not layer.is_initialized:
            kind: Any = type(layer)
            coded: Any = object.__new__(_coded_class(kind))
            coded.__dict__ |= layer.__dict__ | {"codecs": pair}
            given.layers[int(index)] = coded


@cache
def _coded_class(base: Any) -> type:
    # Without a layer type of its own: transformers registers subclasses that have one for models to use.
    return type(f"Coded{base.__name__}", (_CodedLayer, base), {"_layer_type": None})


class Watching(nn.Module):
    """Passes states on unchanged and shows them to a watcher: how the ranges of a cache are found."""

    def __init__(self, watch: Callable[[Tensor], None]):
        super().__init__()
        self.watch = watch

    def encode(self, x: Tensor) -> Tensor:
        """Show the states; they stay what they are."""
        self.watch(x)
        return x

    def decode(self, records: Tensor, features: int, dtype: torch.dtype) -> Tensor:
        """Nothing to undo."""
        return records
