# SPDX-License-Identifier: Apache-2.0
"""fewbit's own folder: every quantized tensor as it is, whatever its grid, with a description in `fewbit.json`.

A quantized weight of the layer L is stored as `L.weight_packed` (see `numerics.packing`), `L.weight_scale` and, if it
has them, `L.weight_zero_point` and `L.weight_global_scale`. `fewbit.json` says for each layer what they mean. The
weights lie in `fewbit.safetensors`: under the name `model.safetensors` other readers would take them for a float model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from fewbit.checkpoints._base import CheckpointFormat, CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._folder import write_folder
from fewbit.checkpoints._weights import SafetensorsWeights
from fewbit.errors import ModelError
from fewbit.numerics.dtypes import CodebookFormat, Dtype
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array
from fewbit.numerics.qtensor import QTensor

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "fewbit.json"
_VERSION = 1
_ROWS = 1 << 20
"""Elements that are decoded bit by bit at a time."""


class FewbitFolder(CheckpointFormat):
    """fewbit's own folder, lossless for every number format."""

    name = "safetensors"
    extra = "torch"
    target = "pytorch"
    float_head = ""

    def refusal(self, layer: LayerFormat, shape: tuple[int, ...] | None = None) -> str | None:
        """It holds everything."""
        return None

    def write(self, folder: Path, tensors: Iterable[NamedTensor], job: CheckpointJob) -> list[str]:
        """Weights, `fewbit.json`, `config.json`, and the files that tokenizers and processors need."""
        layers: dict[str, Any] = {}

        def encode(layer: str, tensor: QTensor) -> dict[str, Tensor]:
            arrays = {f"weight_{name}": _torch(array) for name, array in tensor.tensors().items()}
            planned = job.layers.get(layer)
            layers[layer] = {
                "grid": tensor.grid.to_dict(), "shape": tensor.shape, "block": tensor.block, "tensors": list(arrays),
                "input": None if planned is None or planned.activation is None else planned.activation.to_dict(),
            }  # fmt: skip
            return arrays

        files = write_folder(folder, tensors, job, encode, {"quant_method": "fewbit"}, stem="fewbit")
        # last, so that a folder with it is complete
        content = {"version": _VERSION, "layers": layers, "files": files}
        (folder / MANIFEST).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        return [*files, MANIFEST]

    def read(self, folder: Path) -> Iterator[tuple[str, Array]]:
        """Values by the names of the source's tensors, decoded bit by bit from the description alone."""
        import torch

        weights = FewbitWeights(folder)
        for name in weights:
            layer = name.removesuffix(".weight")
            if weights.qtensor(name) is None:
                yield name, weights.raw(name)
            else:
                entry = weights.manifest["layers"][layer]
                arrays = {part: weights.raw(f"{layer}.{part}").numpy() for part in entry["tensors"]}
                yield name, torch.from_numpy(decode_bits(entry, arrays))

    def open(self, path: Path) -> FewbitWeights | None:
        """A folder with `fewbit.json`."""
        return FewbitWeights(path) if path.is_dir() and (path / MANIFEST).is_file() else None


class FewbitWeights(SafetensorsWeights):
    """The weights of a folder that fewbit wrote."""

    parts = ("weight_packed", "weight_scale", "weight_zero_point", "weight_global_scale")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of `fewbit.json`."""
        file = self.path / MANIFEST
        try:
            content = orjson.loads(file.read_bytes())
            if content["version"] == _VERSION and isinstance(content["layers"], dict):
                return dict(content)
            reason = f"its version is {content['version']!r}"
        except (ValueError, TypeError, KeyError) as error:
            reason = f"it is damaged: {error}"
        raise ModelError(
            f"{MANIFEST} cannot be read: {reason}", code="model-unreadable", where=str(file),
            expected=f"version {_VERSION}", hint="the version of fewbit that wrote it",
        )  # fmt: skip

    def activation(self, name: str) -> QuantizationGrid | None:
        """How the input of a layer is quantized at run time."""
        entry = self.manifest["layers"].get(name.removesuffix(".weight"), {}).get("input")
        return None if entry is None else QuantizationGrid.from_dict(entry)

    def _find_layers(self) -> dict[str, str]:
        layers: Mapping[str, Any] = self.manifest["layers"]
        missing = [f"{name}.{part}" for name, entry in layers.items() for part in entry["tensors"]]
        missing = [name for name in missing if name not in self.stored]
        if missing:
            raise ModelError(
                f"{len(missing)} tensors that {MANIFEST} names are not in the weight files", code="weights-missing",
                where=missing[0], expected="all files of the folder", hint="copy the complete folder",
            )  # fmt: skip
        return {f"{layer}.weight": layer for layer in layers}

    def _shape(self, layer: str) -> tuple[int, ...]:
        return tuple(self.manifest["layers"][layer]["shape"])

    def _decode(self, layer: str) -> Tensor:
        values: Tensor = self._encoded(layer).dequantize()
        return values

    def _encoded(self, layer: str) -> QTensor:
        entry = self.manifest["layers"][layer]
        arrays = {part.removeprefix("weight_"): self.raw(f"{layer}.{part}") for part in entry["tensors"]}
        grid = QuantizationGrid.from_dict(entry["grid"])
        return QTensor.from_tensors(grid, tuple(entry["shape"]), tuple(entry["block"]), arrays)


@dataclass(frozen=True)
class _Minifloat:
    """A float by its fields; all of its exponents are numbers."""

    exponent_bits: int
    mantissa_bits: int
    signed: bool = True

    def values(self, codes: np.ndarray) -> np.ndarray:
        mantissa = codes & ((1 << self.mantissa_bits) - 1)
        exponent = (codes >> self.mantissa_bits) & ((1 << self.exponent_bits) - 1)
        bias = (1 << (self.exponent_bits - 1)) - 1
        fraction = mantissa / 2.0**self.mantissa_bits + (exponent > 0)
        size = fraction * 2.0 ** (np.maximum(exponent, 1) - bias)
        sign = 1 - 2 * ((codes >> (self.exponent_bits + self.mantissa_bits)) & 1) if self.signed else 1
        return np.asarray(sign * size, np.float32)


_FLOATS = {
    "fp4": _Minifloat(2, 1), "fp6_e2m3": _Minifloat(2, 3), "fp6_e3m2": _Minifloat(3, 2), "fp8_e4m3": _Minifloat(4, 3),
    "fp8_e5m2": _Minifloat(5, 2), "float16": _Minifloat(5, 10), "bfloat16": _Minifloat(8, 7),
}  # fmt: skip


def decode_bits(entry: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The float32 values of a stored weight: from its description, bit by bit, without fewbit's numerics."""
    shape, block, grid = entry["shape"], entry["block"], entry["grid"]
    step = _scales(arrays["weight_scale"], grid["scale_type"])
    if "weight_global_scale" in arrays:
        step = step * np.float32(arrays["weight_global_scale"])
    zero = arrays.get("weight_zero_point")
    values = np.empty(shape, np.float32)
    rows = max(_ROWS // max(int(np.prod(shape[1:])), 1), 1) if len(shape) > 1 else max(shape[0], 1) if shape else 1
    for start in range(0, shape[0] if shape else 1, rows):
        stop = min(start + rows, shape[0]) if shape else 1
        part = _elements(
            arrays["weight_packed"][start:stop] if len(shape) > 1 else arrays["weight_packed"], grid["dtype"], shape
        )
        owners = [np.arange(side) // width for side, width in zip(shape, block)]
        if shape:
            owners[0] = owners[0][start:stop]
        index = np.ix_(*owners)
        if zero is not None:
            part = part - zero.astype(np.float32)[index]
        values[start:stop] = part * step[index]
    return values


def _elements(packed: np.ndarray, dtype: str, shape: list[int]) -> np.ndarray:
    match = re.fullmatch(r"(u?)int(\d+)", dtype)
    bits = int(match[2]) if match else {"nf4": 4}.get(dtype) or int(re.findall(r"\d+", dtype)[0])
    if bits in (8, 16, 32):
        codes = packed.view(f"uint{bits}").astype(np.int64)
    else:
        stream = np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little")[..., : shape[-1] * bits]
        codes = stream.reshape(*stream.shape[:-1], shape[-1], bits).astype(np.int64) @ (1 << np.arange(bits))
    if match:
        codes = codes if match[1] else np.where(codes >> (bits - 1), codes - (1 << bits), codes)
        return codes.astype(np.float32)
    if dtype in _FLOATS:
        return _FLOATS[dtype].values(codes)
    table = Dtype[dtype].value
    assert isinstance(table, CodebookFormat)
    return np.asarray(table.values, np.float32)[codes]


def _scales(stored: np.ndarray, kind: str) -> np.ndarray:
    if kind in ("float32", "float"):
        return stored
    codes = stored.astype(np.int64)
    if kind in ("pof2", "float8_e8m0fnu"):
        return np.asarray(2.0 ** (codes - 127.0), np.float32)
    names = {"float8_e4m3fn": _FLOATS["fp8_e4m3"], "float8_e5m3": _Minifloat(5, 3, signed=False)}
    return (names.get(kind) or _FLOATS[kind]).values(codes)


def _torch(array: Any) -> Tensor:
    import torch

    return torch.as_tensor(array)


CHECKPOINT = FewbitFolder()
