# SPDX-License-Identifier: Apache-2.0
"""Tensors of a folder of safetensors files by the names of the float model, decoded one at a time.

A format names the tensors that one quantized weight consists of; everything else is stored as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from fewbit.checkpoints._folder import quantization_of, read_config
from fewbit.checkpoints._shards import DTYPES
from fewbit.errors import ModelError
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QParams, QuantizationGrid
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType

if TYPE_CHECKING:
    from torch import Tensor

_MOST_HEADER = 100 << 20
"""The limit of the safetensors library."""
_TORCH_NAMES = {text: name for name, text in DTYPES.items()}
_FLOATS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True)
class Integers:
    """A weight of integers counted from zero on.

    Args:
        codes: uint8 [out, in].
        zero: uint8 or int16 [out, groups], the integer that means zero.
        scale: [out, groups], in the dtype of the file.
        bits: of one integer.
        group: of each input, int64 [in].
        group_size: inputs per group; -1 for a complete row.
    """

    codes: Tensor
    zero: Tensor
    scale: Tensor
    bits: int
    group: Tensor
    group_size: int

    def values(self) -> Tensor:
        """(code - zero) · scale in float32."""
        zero, scale = self.zero.float(), self.scale.float()
        if not self.in_order:
            return (self.codes.float() - zero[:, self.group]) * scale[:, self.group]
        values = self.codes.float().unflatten(1, (scale.shape[1], -1))
        return values.sub_(zero[..., None]).mul_(scale[..., None]).flatten(1)

    @property
    def in_order(self) -> bool:
        """Whether the inputs of a group are neighbors."""
        import torch

        width = self.codes.shape[1]
        return torch.equal(self.group, torch.arange(width) // (width // self.scale.shape[1]))

    def qtensor(self) -> QTensor | None:
        """The same as a `QTensor`: signed if zero is in the middle everywhere; `None` if inputs are not in order."""
        import torch

        width = self.codes.shape[1]
        size = width // self.scale.shape[1]
        if not self.in_order:
            return None
        middle = 1 << (self.bits - 1)
        symmetric = bool((self.zero == middle).all())
        granularity = QSchemeType.per_channel if self.group_size == -1 else QSchemeType.per_group
        kind = ScaleType[str(self.scale.dtype).removeprefix("torch.")]
        grid = QuantizationGrid(
            Dtype[f"{'int' if symmetric else 'uint'}{self.bits}"], granularity,
            group_size=-1 if self.group_size == -1 else size, symmetric=symmetric, full_range=symmetric,
            scale_type=kind,
        )  # fmt: skip
        codes = (self.codes.to(torch.int16) - middle).to(torch.int8) if symmetric else self.codes
        zero = None if symmetric else self.zero.float()
        return QTensor.from_codes(codes.contiguous(), QParams(grid, (1, size), self.scale.float().contiguous(), zero))


class SafetensorsWeights:
    """Weights in safetensors files.

    Args:
        folder: of the model.
    """

    anchor = ""
    """The stored tensor that marks a quantized weight, such as `qweight`; empty if nothing is quantized."""
    parts: tuple[str, ...] = ()
    """All stored tensors of a quantized weight."""

    def __init__(self, folder: Path):
        self.path = folder
        self.settings = quantization_of(folder)
        self.stored = _read_headers(folder)
        """Dtype, shape and file of each stored tensor."""
        self._layers = self._find_layers()
        self._names = list(self._list_names())

    def _find_layers(self) -> dict[str, str]:
        """Quantized layers by the name of their weight."""
        ending = f".{self.anchor}"
        if not self.anchor:
            return {}
        layers = [name.removesuffix(ending) for name in self.stored if name.endswith(ending)]
        return {f"{layer}.weight": layer for layer in layers}

    def _list_names(self) -> Iterator[str]:
        """Names of the float model in the order of the files."""
        layers = set(self._layers.values())
        first: set[str] = set()
        for name in self.stored:
            layer, _, part = name.rpartition(".")
            if layer not in layers or part not in self.parts:
                yield name
            elif layer not in first:
                first.add(layer)
                yield f"{layer}.weight"

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self.headers

    @cached_property
    def headers(self) -> dict[str, dict[str, Any]]:
        """Dtype, shape and file of each tensor of the float model; dtypes are those that models compute in."""
        config = read_config(self.path)
        text = config.get("text_config") if isinstance(config.get("text_config"), dict) else {}
        name = next(
            (part[key] for part in (config, text or {}) for key in ("dtype", "torch_dtype") if part.get(key)), ""
        )
        dtype = _FLOATS.get(str(name), "F32")
        return {
            name: {
                **self.stored[self._first_part(name)],
                "shape": list(self._shape(self._layers[name])),
                "dtype": dtype,
            }
            if name in self._layers
            else self.stored[name]
            for name in self._names
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """From the headers."""
        return tuple(self.headers[name]["shape"])

    def config(self) -> dict[str, Any]:
        """The configuration of the float model."""
        return read_config(self.path)

    def read(self, name: str) -> Tensor:
        """One tensor: as stored, or dequantized to float32."""
        if name not in self._layers:
            return self.raw(name)
        return self._decode(self._layers[name])

    def quantized(self, name: str) -> bool:
        """Whether a tensor is stored quantized."""
        return name in self._layers

    def qtensor(self, name: str) -> QTensor | None:
        """The integers and scales of a quantized weight; `None` if inputs are not in order."""
        return self._encoded(self._layers[name]) if name in self._layers else None

    def raw(self, name: str) -> Tensor:
        """A stored tensor."""
        entry = self.stored[name]
        return read_tensor(self.path / entry["file"], entry)

    def part(self, layer: str, part: str) -> Tensor | None:
        """A stored tensor of a quantized layer, if it has one."""
        name = f"{layer}.{part}"
        return self.raw(name) if name in self.stored else None

    def activation(self, name: str) -> QuantizationGrid | None:
        """How the input of a layer is quantized at run time, by the name of its weight."""
        return None

    def _first_part(self, name: str) -> str:
        layer = self._layers[name]
        return next(f"{layer}.{part}" for part in self.parts if f"{layer}.{part}" in self.stored)

    def _shape(self, layer: str) -> tuple[int, ...]:
        raise NotImplementedError

    def _decode(self, layer: str) -> Tensor:
        raise NotImplementedError

    def _encoded(self, layer: str) -> QTensor | None:
        raise NotImplementedError


def float8_qtensor(weight: Tensor, scale: Tensor, block_size: tuple[int, int] = (128, 128)) -> QTensor:
    """An fp8 weight [out, in] with one scale, one per output, per group of inputs, or per rectangle."""
    import torch

    rows, width = weight.shape
    dtype = Dtype.fp8_e5m2 if weight.dtype is torch.float8_e5m2 else Dtype.fp8_e4m3
    codes = weight.contiguous().view(torch.uint8)
    if scale.dtype is torch.uint8:  # MXFP8: exponents
        grid = QuantizationGrid(dtype, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu)
        return QTensor(grid, (rows, width), (1, 32), codes, scale.contiguous())
    kind = ScaleType[str(scale.dtype).removeprefix("torch.")]
    if scale.numel() == 1:
        grid, scale = QuantizationGrid(dtype, scale_type=kind), scale.reshape(1, 1)
    elif scale.numel() == rows:
        grid, scale = QuantizationGrid(dtype, QSchemeType.per_channel, scale_type=kind), scale.reshape(rows, 1)
    elif scale.shape[0] == rows:
        size = width // scale.shape[1]
        grid = QuantizationGrid(dtype, QSchemeType.per_group, group_size=size, scale_type=kind)
    else:
        grid = QuantizationGrid(dtype, QSchemeType.per_block, block_size=block_size, scale_type=kind)
    block = grid.weight_block((rows, width))
    return QTensor.from_codes(codes, QParams(grid, block, scale.float().contiguous()))


def decode_words(words: Tensor, bits: int, count: int) -> Tensor:
    """Integers of `bits` bits along the last axis of int32 words, the first in the lowest bits; uint8 [..., count].

    Written from the layout alone; bit by bit for widths that do not divide a byte.

    >>> import torch
    >>> decode_words(torch.tensor([[-268435423]], dtype=torch.int32), 4, 8).tolist()
    [[1, 2, 0, 0, 0, 0, 0, 15]]
    """
    import torch

    if 8 % bits == 0:
        octets = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
        parts = [(octets >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
        return torch.stack(parts, -1).flatten(-2)[..., :count].contiguous()
    positions = torch.arange(count * bits)
    stream = (words[..., positions // 32] >> (positions % 32).to(torch.int32)) & 1
    weights = torch.arange(bits, dtype=torch.int32)
    return (stream.unflatten(-1, (count, bits)) << weights).sum(-1).to(torch.uint8)


def read_tensor(file: Path, entry: Mapping[str, Any]) -> Tensor:
    """One tensor of a safetensors file, read and not mapped: pages of a mapped file stay in memory while it is open.

    Args:
        file: the path.
        entry: dtype, shape and `data_offsets` of the tensor, from the header.
    """
    import torch

    start, stop = entry["data_offsets"]
    buffer = torch.empty(stop - start, dtype=torch.uint8)
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        stream.seek(8 + length + start)
        if buffer.numel() and stream.readinto(buffer.numpy().data) != buffer.numel():
            raise ModelError(
                "the file is cut short", code="model-unreadable", where=str(file), expected="a complete file",
                hint="download it again",
            )  # fmt: skip
    return buffer.view(getattr(torch, _TORCH_NAMES[entry["dtype"]])).reshape(entry["shape"])


def _read_headers(folder: Path) -> dict[str, dict[str, Any]]:
    """Dtype, shape and file name of every stored tensor.

    Raises:
        ModelError: a file is missing or damaged.
    """
    files = sorted(folder.glob("*.safetensors"))
    index = next(iter(folder.glob("*.safetensors.index.json")), None)
    if index is not None:
        named = set(orjson.loads(index.read_bytes()).get("weight_map", {}).values())
        missing = sorted(named - {file.name for file in files})
        if missing:
            raise ModelError(
                f"weight files are missing: {', '.join(missing[:4])}", code="weights-missing", where=str(folder),
                expected=f"every file that {index.name} names", hint="download the model again",
            )  # fmt: skip
    headers: dict[str, dict[str, Any]] = {}
    for file in files:
        header = read_header(file)
        header.pop("__metadata__", None)
        headers |= {name: {**entry, "file": file.name} for name, entry in header.items()}
    return headers


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """The header of a safetensors file: dtype, shape and `data_offsets` by tensor, and `__metadata__`.

    Raises:
        ModelError: the file is damaged or cut short.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            if not 0 < length <= min(size - 8, _MOST_HEADER):
                raise ValueError("its header is cut short")
            header: dict[str, dict[str, Any]] = orjson.loads(stream.read(length))
            stops = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            if max(stops, default=0) > size - 8 - length:
                raise ValueError("it is cut short")
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(
                f"not a safetensors file: {error}", code="model-unreadable", where=str(file),
                expected="a complete file", hint="download it again",
            ) from error  # fmt: skip
    return header
