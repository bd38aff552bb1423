# SPDX-License-Identifier: Apache-2.0
"""compressed-tensors: what vLLM, SGLang and transformers load. Written and read back with the format's own library."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from fewbit.checkpoints._base import CheckpointFormat, CheckpointJob, LayerFormat, NamedTensor
from fewbit.checkpoints._folder import quantization_of, write_folder
from fewbit.checkpoints._weights import Integers, SafetensorsWeights, decode_words, float8_qtensor
from fewbit.errors import ModelError, require
from fewbit.numerics.dtypes import Dtype
from fewbit.numerics.granularity import QSchemeType
from fewbit.numerics.grid import QuantizationGrid
from fewbit.numerics.ops import Array
from fewbit.numerics.packing import pack
from fewbit.numerics.qtensor import QTensor
from fewbit.numerics.scales import ScaleType, load_scale

if TYPE_CHECKING:
    from torch import Tensor

_STRATEGIES = {
    QSchemeType.per_tensor: "tensor",
    QSchemeType.per_channel: "channel",
    QSchemeType.per_group: "group",
    QSchemeType.per_block: "block",
    QSchemeType.per_token: "token",
}


class CompressedTensors(CheckpointFormat):
    """The format of llm-compressor."""

    name = "compressed_tensors"
    extra = "compressed-tensors"
    target = "vllm"
    float_head = "vLLM reads the output layer of compressed-tensors in float"

    def refusal(self, layer: LayerFormat, shape: tuple[int, ...] | None = None) -> str | None:
        """Why it cannot hold such a layer."""
        grid = layer.weight
        if grid.axis not in (0, -2):
            return "its weights are [out, in], and this layer has its outputs on another axis"
        if grid.dtype.is_integer:
            if grid.dtype.bits > 8:
                return f"it has no weights of {grid.dtype.bits} bits"
            if grid.float_zero:
                return "it has no zero points that are floats"
            if grid.scale_type.is_power:
                return "it has no integers with power-of-two scales"
            return None
        if grid.dtype is Dtype.fp8_e4m3 and not grid.scale_type.is_power:
            return None
        if (grid.dtype, grid.scale_type) in (
            (Dtype.fp4, ScaleType.float8_e8m0fnu), (Dtype.fp4, ScaleType.float8_e4m3fn),
            (Dtype.fp8_e4m3, ScaleType.float8_e8m0fnu),
        ):  # fmt: skip
            return None
        return f"it has no weights of type {grid.dtype.name} with {grid.scale_type.name} scales"

    def write(self, folder: Path, tensors: Iterable[NamedTensor], job: CheckpointJob) -> list[str]:
        """Weights, `config.json` with the quantization, and the files that readers need."""
        require("compressed_tensors", extra=self.extra, purpose="the format compressed-tensors")

        def encode(layer: str, tensor: QTensor) -> dict[str, Tensor]:
            kind = job.layers[layer]
            assert kind is not None
            return _stored(tensor, _format_name(kind))

        return write_folder(folder, tensors, job, encode, quantization_config(job.layers))

    def read(self, folder: Path) -> Iterator[tuple[str, Array]]:
        """Values by the names of the source's tensors, as the format's library decodes them."""
        import torch

        require("compressed_tensors", extra=self.extra, purpose="the format compressed-tensors")
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationConfig

        settings = orjson.loads((folder / "config.json").read_bytes())["quantization_config"]
        settings.pop("quant_method", None)
        config = QuantizationConfig.model_validate(settings)
        compressor = BaseCompressor.get_value_from_registry(config.format)
        schemes = {target: scheme for scheme in config.config_groups.values() for target in scheme.targets}
        weights = CompressedWeights(folder)
        for name in weights:
            if not weights.quantized(name):
                yield name, weights.raw(name)
                continue
            layer = name.removesuffix(".weight")
            parts = {part: weights.part(layer, part) for part in weights.parts}
            arrays = {part: _widened(part, array) for part, array in parts.items() if array is not None}
            if "weight_global_scale" in arrays:
                yield name, _decode_nvfp4(arrays)
            else:
                scheme = schemes.get(layer) or schemes["Linear"]
                yield name, compressor.decompress(arrays, scheme)["weight"].to(torch.float32)

    def open(self, path: Path) -> CompressedWeights | None:
        """A folder whose configuration names compressed-tensors."""
        if not path.is_dir() or quantization_of(path).get("quant_method") != "compressed-tensors":
            return None
        return CompressedWeights(path)


class CompressedWeights(SafetensorsWeights):
    """The weights of a compressed-tensors folder, decoded without the format's library."""

    parts = (
        "weight_packed", "weight", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx",
        "weight_global_scale", "input_scale", "input_zero_point", "input_global_scale",
    )  # fmt: skip

    def scheme(self, layer: str) -> dict[str, Any]:
        """The entry of `config_groups` that a layer belongs to: by its name, else by its class."""
        groups = list(self.settings["config_groups"].values())
        for group in groups:
            for target in group["targets"]:
                if target == layer or (target.startswith("re:") and re.match(target[3:], layer)):
                    return dict(group)
        return dict(next((group for group in groups if "Linear" in group["targets"]), groups[0]))

    def activation(self, name: str) -> QuantizationGrid | None:
        """How the input of a layer is quantized at run time."""
        settings = self.scheme(name.removesuffix(".weight")).get("input_activations")
        if not settings:
            return None
        by_name = {text: kind for kind, text in _STRATEGIES.items()} | {"tensor_group": QSchemeType.per_group}
        number = "fp4" if settings["num_bits"] == 4 and settings["type"] == "float" else f"int{settings['num_bits']}"
        dtype = Dtype.fp8_e4m3 if (settings["type"], settings["num_bits"]) == ("float", 8) else Dtype[number]
        size = settings.get("group_size") or -1
        powers = "uint8" in str(settings.get("scale_dtype"))
        kind = ScaleType.float8_e8m0fnu if powers else ScaleType.float32
        if settings["strategy"] == "tensor_group":
            kind = ScaleType.float8_e4m3fn
        return QuantizationGrid(
            dtype,
            by_name[settings["strategy"]],
            group_size=size,
            symmetric=settings.get("symmetric", True),
            scale_type=kind,
        )

    def _find_layers(self) -> dict[str, str]:
        layers = [name.removesuffix(".weight_scale") for name in self.stored if name.endswith(".weight_scale")]
        missing = [layer for layer in layers if not {f"{layer}.weight", f"{layer}.weight_packed"} & self.stored.keys()]
        if missing:
            raise ModelError(
                f"tensors of {missing[0]} are missing", code="checkpoint-incomplete", where=str(self.path),
                expected="packed weights with their scales", hint="all files of the model",
            )  # fmt: skip
        return {f"{layer}.weight": layer for layer in layers}

    def _shape(self, layer: str) -> tuple[int, ...]:
        if f"{layer}.weight" in self.stored:
            return tuple(self.stored[f"{layer}.weight"]["shape"])
        shape = self.part(layer, "weight_shape")
        if shape is not None:
            return tuple(int(side) for side in shape)
        rows, half = self.stored[f"{layer}.weight_packed"]["shape"]
        return rows, 2 * half

    def _decode(self, layer: str) -> Tensor:
        weight = self._integers(layer)
        if weight is not None:
            return weight.values()
        values: Tensor = self._floats(layer).dequantize()
        return values

    def _encoded(self, layer: str) -> QTensor | None:
        weight = self._integers(layer)
        return self._floats(layer) if weight is None else weight.qtensor()

    def _integers(self, layer: str) -> Integers | None:
        """Unpacked integers; `None` for a weight of small floats."""
        import torch

        rows, width = self._shape(layer)
        packed, plain = self.part(layer, "weight_packed"), self.part(layer, "weight")
        settings = self.scheme(layer)["weights"]
        bits = settings["num_bits"]
        if settings["type"] != "int":
            return None
        middle = 1 << (bits - 1)
        if packed is not None:
            codes = _unpack(packed, bits, width)
        else:
            assert plain is not None
            codes = (plain.to(torch.int16) + middle).to(torch.uint8)
        scale = self.raw(f"{layer}.weight_scale")
        scale = scale.reshape(rows, -1) if scale.numel() >= rows else scale.reshape(1, 1).expand(rows, 1)
        zero = self.part(layer, "weight_zero_point")
        if zero is None:
            zero = torch.full(scale.shape, middle, dtype=torch.int16)
        elif zero.dtype is torch.int32:
            zero = _unpack(zero.T, bits, rows).T
        else:
            zero = zero.to(torch.int16).reshape(scale.shape) + middle
        index, groups = self.part(layer, "weight_g_idx"), scale.shape[1]
        group = torch.arange(width) // (width // groups) if index is None else index.long()
        size = -1 if settings["strategy"] in ("channel", "tensor") else width // groups
        return Integers(codes, zero, scale, bits, group, size)

    def _floats(self, layer: str) -> QTensor:
        import torch

        scale = self.raw(f"{layer}.weight_scale")
        packed = self.part(layer, "weight_packed")
        if packed is None:
            structure = self.scheme(layer)["weights"].get("block_structure") or (128, 128)
            return float8_qtensor(self.raw(f"{layer}.weight"), scale, tuple(structure))
        shape, outer = (packed.shape[0], 2 * packed.shape[1]), self.part(layer, "weight_global_scale")
        if outer is None:
            grid = QuantizationGrid(
                Dtype.fp4, QSchemeType.per_group, group_size=32, scale_type=ScaleType.float8_e8m0fnu
            )
            return QTensor(grid, shape, (1, 32), packed, scale.view(torch.uint8))
        grid = QuantizationGrid(Dtype.fp4, QSchemeType.per_group, group_size=16, scale_type=ScaleType.float8_e4m3fn)
        return QTensor(
            grid, shape, (1, 16), packed, scale.view(torch.uint8), global_scale=(1 / outer.float()).reshape(())
        )


def _unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """Integers of words: dense, or 32 // bits per word as the library packed 3, 5, 6 and 7 bits before 0.18."""
    if words.shape[-1] == -(-count * bits // 32):
        return decode_words(words, bits, count)
    import torch

    shifts = torch.arange(0, 32 // bits * bits, bits, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).to(torch.uint8).flatten(-2)[..., :count].contiguous()


def quantization_config(layers: Mapping[str, LayerFormat | None]) -> dict[str, Any]:
    """The section `quantization_config` of `config.json`.

    The most common format has the target `Linear`; others name their layers; float layers are ignored.
    """
    formats: dict[LayerFormat, list[str]] = {}
    for name, kind in layers.items():
        if kind is not None:
            formats.setdefault(kind, []).append(name)
    ordered = sorted(formats, key=lambda kind: -len(formats[kind]))
    groups = {
        f"group_{index}": {
            "targets": ["Linear"] if index == 0 else formats[kind],
            "weights": _arguments(kind.weight, dynamic=False),
            "input_activations": None if kind.activation is None else _arguments(kind.activation, dynamic=True),
            "output_activations": None,
            "format": _format_name(kind),
        }
        for index, kind in enumerate(ordered)
    }
    kinds = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": kinds.pop() if len(kinds) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [name for name, kind in layers.items() if kind is None],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def _stored(tensor: QTensor, kind: str) -> dict[str, Tensor]:
    """The arrays of one layer by the names the format has for them."""
    import torch

    grid = tensor.grid
    scale = torch.as_tensor(load_scale(tensor.scale, grid.scale_type))
    integers = torch.as_tensor(tensor.codes())
    if kind in ("pack-quantized", "int-quantized"):
        bits, lowest = grid.dtype.bits, int(grid.dtype.lowest)
        arrays = {"weight_scale": _cast(scale, grid.scale_type.value)}
        if kind == "int-quantized":
            shift = 0 if grid.dtype.signed else 1 << (bits - 1)
            return {"weight": (integers.to(torch.int16) - shift).to(torch.int8), **arrays}
        arrays = {"weight_packed": _pack(integers, bits, lowest), **arrays}
        if grid.asymmetric:
            assert tensor.zero_point is not None
            zero = torch.as_tensor(tensor.zero_point)
            arrays["weight_zero_point"] = _pack(zero.T, bits, lowest).T.contiguous()
        return {**arrays, "weight_shape": torch.tensor(tensor.shape)}
    if kind == "float-quantized":
        return {"weight": integers.view(torch.float8_e4m3fn), "weight_scale": scale}
    if kind == "mxfp8-quantized":
        return {"weight": integers.view(torch.float8_e4m3fn), "weight_scale": torch.as_tensor(tensor.scale)}
    packed = integers[:, 0::2] | (integers[:, 1::2] << 4)  # the even column is the low nibble
    if kind == "mxfp4-pack-quantized":
        return {"weight_packed": packed, "weight_scale": torch.as_tensor(tensor.scale)}
    assert tensor.global_scale is not None
    return {
        "weight_packed": packed,
        "weight_scale": torch.as_tensor(tensor.scale).view(torch.float8_e4m3fn),
        "weight_global_scale": (1 / torch.as_tensor(tensor.global_scale)).reshape(1),
    }


def _pack(integers: Tensor, bits: int, lowest: int) -> Tensor:
    """Integers [n, m] counted from zero on in int32 words; rows fill complete words."""
    import torch

    rows = (integers.to(torch.int8) - lowest).view(torch.uint8) if lowest else integers
    padding = -rows.shape[1] % (32 // gcd(bits, 32))
    rows = torch.nn.functional.pad(rows, (0, padding)) if padding else rows
    packed: Tensor = pack(rows.clone(memory_format=torch.contiguous_format), bits)
    return packed.contiguous().view(torch.int32)[:, : -(-integers.shape[1] * bits // 32)]


def _format_name(kind: LayerFormat) -> str:
    grid = kind.weight
    if grid.dtype.is_integer:
        return "int-quantized" if kind.activation is not None and grid.dtype.bits == 8 else "pack-quantized"
    if grid.dtype is Dtype.fp4:
        return "nvfp4-pack-quantized" if grid.two_level else "mxfp4-pack-quantized"
    return "mxfp8-quantized" if grid.scale_type.is_power else "float-quantized"


def _arguments(grid: QuantizationGrid, *, dynamic: bool) -> dict[str, Any]:
    """`QuantizationArgs` of the library."""
    strategy = _STRATEGIES[grid.granularity]
    arguments: dict[str, Any] = {
        "num_bits": grid.dtype.bits,
        "type": "int" if grid.dtype.is_integer else "float",
        "symmetric": not grid.asymmetric,
        "strategy": "tensor_group" if grid.two_level else strategy,
        "dynamic": ("local" if grid.two_level else True) if dynamic else False,
    }
    if strategy == "group":
        arguments["group_size"] = grid.group_size
    if strategy == "block":
        arguments["block_structure"] = list(grid.block_size)
    if grid.scale_type is ScaleType.float8_e8m0fnu:
        arguments |= {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    elif grid.two_level:
        arguments |= {"scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"}
    return arguments


def _cast(tensor: Any, dtype: str | None) -> Tensor:
    import torch

    value = torch.as_tensor(tensor)
    return value.to(getattr(torch, dtype)) if dtype is not None and value.is_floating_point() else value


def _decode_nvfp4(arrays: Mapping[str, Tensor]) -> Tensor:
    """In float32; the library multiplies in bfloat16."""
    import torch
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    rows, half = arrays["weight_packed"].shape
    elements = unpack_fp4_from_uint8(arrays["weight_packed"], rows, 2 * half, dtype=torch.float32)
    scale = (arrays["weight_scale"].float() / arrays["weight_global_scale"]).repeat_interleave(16, 1)
    return elements * scale


def _widened(key: str, value: Tensor) -> Tensor:
    """Scales in float32, so that decoding does not round products."""
    import torch

    return value.float() if key == "weight_scale" and value.dtype in (torch.float16, torch.bfloat16) else value


CHECKPOINT = CompressedTensors()
